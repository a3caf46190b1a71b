"""How a long errand tells what it is doing."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int | None, int | None], None]
"""``progress(message, done, total)``, in bytes. The same message comes again while ``done`` grows; ``total`` is None if
it is not known. ``done`` None: a note to show once. It may be called from another thread, and must not block."""


def silent(message: str, done: int | None, total: int | None) -> None:
    """The progress of somebody who does not want to know."""


def megabytes(n_bytes: int) -> str:
    """``98362432`` → ``"98 MB"``."""
    return f"{n_bytes / 1e6:,.0f} MB"
