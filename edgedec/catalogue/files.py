"""Bytes on disk: is this the file that the card describes, and how a new one gets its name only when it is complete.

Beside the model ``NAME`` the models folder may hold ``NAME.verified.json`` (the last check that passed, so that a start
does not hash the file again), ``NAME.lock`` (held while somebody fetches) and ``NAME.bad`` (what was in the way).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from pathlib import Path
from typing import IO

import msgspec

from edgedec.catalogue.progress import Progress, megabytes
from edgedec.catalogue.schema import ModelFile
from edgedec.errors import DownloadError


class Check(msgspec.Struct, frozen=True):
    """A file that had ``sha256`` when its size and time of change were these."""

    path: str
    size: int
    mtime_ns: int
    sha256: str


def _record(folder: Path, file: ModelFile) -> Path:
    return folder / f"{file.name}.verified.json"


def remembered(folder: Path, file: ModelFile) -> Path | None:
    """Where ``file`` was found to be right, if it has not been touched since. ``folder``: the models folder."""
    try:
        check = msgspec.json.decode(_record(folder, file).read_bytes(), type=Check)
        status = os.stat(check.path)
    except (OSError, msgspec.MsgspecError):
        return None
    same = (check.size, check.mtime_ns, check.sha256) == (status.st_size, status.st_mtime_ns, file.sha256)
    return Path(check.path) if same and check.size == file.size else None


def remember(folder: Path, file: ModelFile, path: Path) -> None:
    """Note that ``path`` is ``file``. A folder that cannot be written to costs a hash at each start, nothing else."""
    status = path.stat()
    check = Check(str(path), status.st_size, status.st_mtime_ns, file.sha256)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        _record(folder, file).write_bytes(msgspec.json.encode(check))


def what_is_wrong(path: Path, file: ModelFile) -> str:
    """ "" if ``path`` holds exactly the bytes of ``file``, else what differs. Reads all of it if the size is right."""
    try:
        size = path.stat().st_size
        if size != file.size:
            return f"has {size:,} bytes instead of {file.size:,}"
        with path.open("rb") as stream:
            right = hashlib.file_digest(stream, "sha256").hexdigest() == file.sha256
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return "" if right else "has another SHA-256 than it should"


def copy_checked(source: IO[bytes], target: Path, file: ModelFile, progress: Progress) -> None:
    """Write ``source`` to the new file ``target``, down to the disk. Raises `DownloadError` unless it is ``file``."""
    digest = hashlib.sha256()
    done = 0
    with target.open("xb") as out:
        while block := source.read(1 << 20):
            done += len(block)
            if done > file.size:
                raise DownloadError(f"{file.name} is longer than {file.size:,} bytes")
            digest.update(block)
            out.write(block)
            progress(f"Unpacking {file.name}", done, file.size)
        out.flush()
        os.fsync(out.fileno())
    if done != file.size:
        raise DownloadError(f"{file.name} ends after {done:,} of {file.size:,} bytes")
    if digest.hexdigest() != file.sha256:
        raise DownloadError(f"{file.name} has another SHA-256 than it should")


def place(part: Path, target: Path) -> None:
    """Give a complete file its final name. What had that name before becomes ``.bad``: it may be the user's own."""
    if target.exists():
        os.replace(target, target.with_name(f"{target.name}.bad"))
    os.replace(part, target)


def need_space(folder: Path, n_bytes: int) -> None:
    """Raise `DownloadError` if the disk of ``folder``, which need not exist yet, has less than ``n_bytes`` free."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(existing).free
    if free < n_bytes:
        raise DownloadError(f"{folder} needs {megabytes(n_bytes)} of free disk space, but has {megabytes(free)}")
