"""From what a person typed for a model to a file on disk."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from edgedec.catalogue import choose, fetch, files, hub
from edgedec.catalogue.progress import Progress, silent
from edgedec.catalogue.schema import DEFAULT, cards
from edgedec.errors import DownloadError, ModelNotFoundError, UnknownNameError, UsageError

_WHAT_A_MODEL_IS = f"Give the path of a .gguf file, a name from the catalogue ({DEFAULT}), or hf:owner/repo."


def find(model: str | os.PathLike[str] | None = None, *, progress: Progress = silent) -> Path:
    """The GGUF file that ``model`` means, as an absolute path; of a model in several parts the first one.

    ``model`` is None (the default model), a path, a name from the catalogue, or ``hf:owner/repo[:FILE]``, where FILE is
    a file name or a quantisation such as ``Q4_K_M`` and may be left out if there is only one. A model that is on this
    machine is used without a look at the network.

    Raises `ModelNotFoundError` (a path without a file, a repository without a fitting one), `UnknownNameError`,
    `UsageError` (several files fit) and `DownloadError`.
    """
    if isinstance(model, os.PathLike):
        return _existing(Path(os.path.expanduser(model)).absolute(), "")
    name = DEFAULT if model is None else model
    path = Path(os.path.expanduser(name)).absolute()
    if os.path.isfile(path) and model is not None:
        return path
    if name.startswith("hf:"):
        return _from_repository(name, progress)
    for card in cards():
        if card.name == name:
            return fetch.bring(card, progress)
    if "://" in name:
        raise UsageError(f"{name} is an address.", "Download the file and give its path, or write hf:owner/repo:FILE.")
    if os.path.exists(path) or _looks_like_path(name):
        return _existing(path, name)
    unknown = UnknownNameError("model", name, [card.name for card in cards()])
    unknown.hint += " The path of a file ends in .gguf; a repository on the Hugging Face hub is hf:owner/repo."
    raise unknown


def _looks_like_path(name: str) -> bool:
    separators = [sep for sep in (os.sep, os.altsep) if sep]
    return name.startswith((".", "~")) or name.lower().endswith(".gguf") or any(sep in name for sep in separators)


def _existing(path: Path, typed: str) -> Path:
    if os.path.isdir(path):
        inside = _ggufs_in(path)
        hint = f"In it: {_some(inside)}." if inside else f"It holds no .gguf file. {_WHAT_A_MODEL_IS}"
        raise ModelNotFoundError(f"{path} is a folder.", hint)
    if os.path.exists(path):
        return path
    nearby = _ggufs_in(path.parent)
    nearest = difflib.get_close_matches(path.name, nearby, n=3, cutoff=0.4)
    if nearby:
        hint = f"In {path.parent}: {_some(nearest or nearby)}."
    elif os.path.isdir(path.parent):
        hint = _WHAT_A_MODEL_IS
    elif re.fullmatch(r"\w[\w.-]*/[\w.-]+", typed) and not typed.lower().endswith(".gguf"):
        hint = f"A repository on the Hugging Face hub is written hf:{typed}."
    else:
        hint = f"There is no folder {path.parent} either. {_WHAT_A_MODEL_IS}"
    raise ModelNotFoundError(f"There is no file {path}.", hint)


def _ggufs_in(folder: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.lower().endswith(".gguf"))
    except OSError:
        return []


def _some(names: Iterable[str], most: int = 8) -> str:
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more


def _from_repository(spec: str, progress: Progress) -> Path:
    match = re.fullmatch(r"hf:([\w.-]+/[\w.-]+)(?::(.+))?", spec)
    if not match:
        raise UsageError(f"{spec} does not name a repository.", "Write hf:owner/repo, or hf:owner/repo:Q4_K_M.")
    repo, wanted = match[1], match[2]

    here = choose.models_in(hub.cached_names(repo))
    fitting = choose.matching(here, wanted) if wanted else list(here)
    if len(fitting) == 1 and (path := hub.cached(repo, fitting[0])):
        return path
    progress("Asking the Hugging Face hub", None, None)
    try:
        sizes = hub.listing(repo)
        parts = _the_one(repo, wanted, choose.models_in(sizes))
        files.need_space(hub.cache_dir(), sum(sizes[part] for part in parts if not hub.cached(repo, part)))
        paths = [hub.download(repo, part, progress) for part in parts]
        return paths[0]
    except DownloadError as error:
        hint = "Check the name and the connection, or give the path of a .gguf file."
        raise DownloadError(f"{spec} could not be fetched. Hugging Face hub: {error}.", hint) from error


def _the_one(repo: str, wanted: str | None, models: dict[str, list[str]]) -> list[str]:
    """All parts of the one model that is meant."""
    if not models:
        raise ModelNotFoundError(f"{repo} holds no .gguf file.", "Look for a repository whose name ends in -GGUF.")
    fitting = choose.matching(models, wanted) if wanted else list(models)
    if not fitting:
        nearest = difflib.get_close_matches(wanted or "", models, n=8, cutoff=0.3)
        raise ModelNotFoundError(f"{repo} holds no {wanted}.", f"It has: {_some(nearest or models)}.")
    if len(fitting) > 1:
        raise UsageError(
            f"{repo} holds {len(fitting)} models{f' for {wanted}' if wanted else ''}.",
            f"Add one of them, as in hf:{repo}:{fitting[0]}: {_some(fitting, 20)}.",
        )
    return models[fitting[0]]
