"""The status line."""

from __future__ import annotations

import io

import pytest

from edgedec.cli.progress import StatusLine


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "60")
    return Terminal()


def shown(terminal: Terminal) -> str:
    """What is on the line after all that was written."""
    line: list[str] = []
    at = 0
    for character in terminal.getvalue():
        assert character != "\n", "one line only"
        if character == "\r":
            at = 0
            continue
        line[at : at + 1] = [character]
        at += 1
    return "".join(line).rstrip()


def test_what_is_quick_is_not_shown(terminal: Terminal, clock: Clock) -> None:
    line = StatusLine(terminal, clock=clock)
    line.update("loading", 0.1)
    clock.now = 0.9
    line.update("loading", 0.9)
    line.clear()
    assert terminal.getvalue() == ""


def test_what_takes_long_is_shown_and_taken_away(terminal: Terminal, clock: Clock) -> None:
    line = StatusLine(terminal, clock=clock)
    line.update("loading", 0.0)
    clock.now = 1.5
    line.update("loading", 0.5, "half")
    assert shown(terminal) == f"loading [{'█' * 12}{'░' * 12}]  50% half"
    clock.now = 1.55
    line.update("loading", 0.6)
    assert "50%" in shown(terminal), "not drawn more often than eyes can see"
    clock.now = 1.7
    line.update("loading", 7.0)
    assert shown(terminal).endswith("100%")
    line.clear()
    assert shown(terminal) == ""
    line.clear()
    line.update("reading")
    assert shown(terminal) == "", "patience begins anew"
    clock.now = 3.0
    line.update("reading")
    assert shown(terminal) == "reading"


def test_a_long_line_is_cut(terminal: Terminal, clock: Clock) -> None:
    line = StatusLine(terminal, patience_s=0, clock=clock)
    line.update("x" * 100, 0.5)
    assert shown(terminal) == "x" * 59


def test_a_pipe_sees_nothing(clock: Clock) -> None:
    stream = io.StringIO()
    line = StatusLine(stream, patience_s=0, clock=clock)
    line.update("loading", 0.5)
    line.clear()
    assert stream.getvalue() == ""
