"""Which of the files in a repository is meant. Names use ``/``; a model in several parts goes by its first part."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PART = re.compile(r"(?P<stem>.+)-(?P<i>\d{5})-of-(?P<n>\d{5})\.gguf", re.IGNORECASE)
_NOT_A_MODEL = ("mmproj", "imatrix")  # image projectors and quantisation statistics are GGUF files, too


def models_in(names: Iterable[str]) -> dict[str, list[str]]:
    """First part → all parts, in order, of each complete model among ``names``."""
    ggufs = {name for name in names if name.lower().endswith(".gguf")}
    models = {}
    for name in sorted(ggufs):
        if any(word in name.rpartition("/")[2].lower() for word in _NOT_A_MODEL):
            continue
        if not (part := _PART.fullmatch(name)):
            models[name] = [name]
        elif int(part["i"]) == 1:
            parts = [f"{part['stem']}-{i:05d}-of-{part['n']}{name[-5:]}" for i in range(1, int(part["n"]) + 1)]
            if ggufs.issuperset(parts):
                models[name] = parts
    return models


def matching(models: Iterable[str], wanted: str) -> list[str]:
    """Those of ``models`` that ``wanted`` can mean, the strictest reading that any of them satisfies: the whole name,
    the name without its folder, or a quantisation (``Q4_K_M`` is in ``model-Q4_K_M.gguf``, ``Q4_K`` is not)."""
    names = list(models)
    word = re.compile(rf"(?<![a-z0-9]){re.escape(wanted)}(?![a-z0-9_])", re.IGNORECASE)
    for found in (
        [name for name in names if name == wanted],
        [name for name in names if name.rpartition("/")[2] == wanted],
        [name for name in names if word.search(name)],
    ):
        if found:
            return found
    return []
