"""Text files that a person means when naming files and folders."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from edgedec.errors import UsageError

_MAX_BYTES = 32 << 20  # of a file that was named: no corpus holds as much
_MAX_FOUND_BYTES = 1 << 20  # of a file in a folder: what is longer is data or generated
_LOOK_BYTES = 8192  # a zero byte in this many first ones: not a text
_SKIPPED_FOLDERS = {"__pycache__", "node_modules", "site-packages", "target", "venv"}


@dataclass(slots=True)
class TextFiles:
    """What was found. ``left_out``: how many files in folders are no such files, by what they are."""

    paths: list[Path] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


def find(names: tuple[str, ...]) -> TextFiles:
    """Files as named, and the text files in named folders, hidden ones and links left out. Paths are absolute.

    Raises UsageError for a name that leads to no file or folder, or to a file that is not a text.
    """
    found = TextFiles()
    for name in names:
        path = Path(os.path.abspath(os.path.expanduser(name)))
        if path.is_dir():
            for inside in _files_in(path):
                if reason := _why_not(inside, _MAX_FOUND_BYTES):
                    found.left_out[reason] += 1
                else:
                    found.paths.append(inside)
        elif reason := _why_not(path, _MAX_BYTES):
            raise UsageError(f"{path} cannot be added: {reason}.", "Give text files in UTF-8, or folders with such.")
        else:
            found.paths.append(path)
    found.paths = list(dict.fromkeys(found.paths))
    return found


def read(path: Path) -> str:
    """The text, without what an editor may have put in front. Lines end as they do in the answers of models."""
    return path.read_text("utf-8-sig")


def _files_in(folder: Path) -> Iterator[Path]:
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED_FOLDERS)
        for name in sorted(files):
            path = Path(where, name)
            if not name.startswith(".") and path.is_file() and not path.is_symlink():
                yield path


def _why_not(path: Path, max_bytes: int) -> str:
    """What keeps a file from being added; "" if nothing does."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > max_bytes:
                return f"more than {max_bytes:,} bytes"
            content = file.read()
    except OSError as error:
        return error.strerror or "not readable"
    if not content.strip():
        return "empty"
    if b"\0" in content[:_LOOK_BYTES]:
        return "not a text"
    try:
        content.decode()
    except UnicodeDecodeError:
        return "not in UTF-8"
    return ""
