"""One status line on a terminal's stderr, for what takes more than a second."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import TextIO

_WIDTH = 24
_REDRAW_S = 0.1


class StatusLine:
    """Draws over itself; silent when the stream is not a terminal.

    ``patience_s``: how long something must take before it is shown.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        patience_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._is_live = self._stream.isatty()
        self._patience_s = patience_s
        self._clock = clock
        self._label = ""
        self._since = 0.0
        self._drawn_at = 0.0
        self._drawn = ""

    def update(self, label: str, fraction: float | None = None, detail: str = "") -> None:
        """Say what is going on; ``fraction`` 0…1 draws a bar."""
        if not self._is_live:
            return
        now = self._clock()
        if label != self._label:
            self._label, self._since = label, now
        if now - self._since < self._patience_s or (self._drawn and now - self._drawn_at < _REDRAW_S):
            return
        bar = ""
        if fraction is not None:
            fraction = min(1.0, max(0.0, fraction))
            n = round(_WIDTH * fraction)
            bar = f" [{'█' * n}{'░' * (_WIDTH - n)}] {fraction:4.0%}"
        self._draw(f"{label}{bar} {detail}".rstrip())
        self._drawn_at = now

    def clear(self) -> None:
        """Take the line away."""
        self._label = ""
        if self._drawn:
            self._draw("")

    def _draw(self, text: str) -> None:
        text = text[: shutil.get_terminal_size().columns - 1]
        self._stream.write("\r" + text + " " * (len(self._drawn) - len(text)) + ("\r" if not text else ""))
        self._stream.flush()
        self._drawn = text
