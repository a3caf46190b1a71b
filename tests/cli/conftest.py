"""The command line, in this process (fast) or in one of its own (real)."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from edgedec.cli import main

COMMAND = [sys.executable, "-m", "edgedec"]


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self
        assert self.out.count("\n") == 1, "one object on one line"
        return json.loads(self.out)

    def assert_is_error(self, code: int, *words: str) -> None:
        """Two lines on stderr, no traceback, nothing on stdout."""
        assert self.code == code, self
        assert self.out == "", self
        lines = self.err.splitlines()
        assert len(lines) == 2, self
        assert lines[0].startswith("edgedec: "), self
        assert lines[0].endswith((".", "?", ")")), self
        assert lines[1].startswith("  "), self
        assert len(lines[1].strip()) > 10, self
        for word in words:
            assert word in self.err, self


Cli = Callable[..., Done]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    """``cli("run", …, stdin=bytes)`` in this process. Without ``stdin`` there is none, as in a service."""
    logger = logging.getLogger("edgedec")
    before = (logger.handlers[:], logger.level, logger.propagate)
    # An assertion that fails in llama.cpp shall look like one of the tests' process, not like an error message.
    monkeypatch.setattr("edgedec.llama.lib.on_fatal", lambda handler: None)

    def call(*args: str | Path, stdin: bytes | None = None) -> Done:
        stream = None if stdin is None else io.TextIOWrapper(io.BytesIO(stdin))
        monkeypatch.setattr(sys, "stdin", stream)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return Done(int(ended.value.code or 0), out, err)

    yield call
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


@pytest.fixture
def spawn() -> Cli:
    """``spawn("run", …, stdin=bytes)`` in a process of its own, with real exit codes and streams."""

    def call(*args: str | Path, stdin: bytes = b"", **env: str) -> Done:
        done = subprocess.run(
            [*COMMAND, *map(str, args)],
            input=stdin,
            capture_output=True,
            timeout=120,
            check=False,
            env={**os.environ, **env},
        )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    return call


@pytest.fixture
def model(tiny: Path) -> list[str]:
    """Flags for the tiny model, on one thread: others may be using the cores."""
    return ["-m", str(tiny), "--n-threads", "1"]
