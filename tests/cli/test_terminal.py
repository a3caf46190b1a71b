"""A person at a terminal: the numbers line, Ctrl-C, and readers that leave early."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND

if sys.platform == "win32":
    pytest.skip("there are no pseudo-terminals and no SIGINT for one process", allow_module_level=True)

import pty

PATIENCE_S = 30  # to end after Ctrl-C; without it each of these runs takes minutes


@contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    """(what the program gets, what the person sees)."""
    person, program = pty.openpty()
    try:
        yield program, person
    finally:
        os.close(person)


def read_all(person: int) -> str:
    data = b""
    while True:
        try:
            block = os.read(person, 4096)
        except OSError:  # Linux: nobody writes any more
            block = b""
        if not block:
            return data.decode()
        data += block


@contextmanager
def running(*args: str | Path, stdin: bytes = b"") -> Iterator[subprocess.Popen[bytes]]:
    pipe = subprocess.PIPE
    process = subprocess.Popen([*COMMAND, *map(str, args)], stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdin
    process.stdin.write(stdin)
    process.stdin.close()
    process.stdin = None
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def interrupt(process: subprocess.Popen[bytes]) -> tuple[str, str]:
    """Ctrl-C. The rest of stdout and of stderr."""
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, (process.returncode, out, err)
    return out.decode(), err.decode()


def wait_for(process: subprocess.Popen[bytes], words: bytes) -> None:
    """Read stderr until these words were on it."""
    assert process.stderr
    for line in process.stderr:
        if words in line:
            return
    raise AssertionError(f"{words!r} never came")


# The numbers line


@pytest.mark.parametrize(("flags", "is_there"), [((), True), (("--no-stats",), False)])
def test_the_numbers_line_on_a_terminal(model: list[str], flags: tuple[str, ...], is_there: bool) -> None:
    with terminal() as (program, person):
        process = subprocess.Popen(
            [*COMMAND, "run", "Hi", *model, "-n", "9", "--seed", "1", *flags],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=program,
        )  # fmt: skip
        os.close(program)
        seen = read_all(person)
        out = process.communicate()[0].decode()
    assert process.returncode == 0
    assert out.endswith("\n")
    assert ("9 tokens · " in seen) == is_there
    assert seen.count("\n") == is_there


def test_a_person_without_a_prompt_is_not_waited_for(model: list[str]) -> None:
    with terminal() as (program, person):
        process = subprocess.Popen(
            [*COMMAND, "run", *model], stdin=program, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        os.close(program)
        out, err = process.communicate(timeout=60)
        assert select.select([person], [], [], 0)[0] == [person], "the terminal was only closed, not read"
    assert (process.returncode, out) == (2, b"")
    assert err.startswith(b"edgedec: There is no prompt.")


# Ctrl-C


@pytest.mark.gguf
def test_ctrl_c_while_the_answer_comes(smollm2: Path) -> None:
    flags = ["-m", smollm2, "-n", "8000", "--n-ctx", "8192", "--seed", "1"]
    with running("run", "Tell me a very long story.", *flags) as process:
        assert process.stdout
        start = process.stdout.read(20).decode(errors="ignore")
        rest, err = interrupt(process)
    assert len(start) > 10
    assert rest.endswith("\n"), "the shell's prompt gets a line of its own"
    assert err.strip() == ""


@pytest.mark.gguf
def test_ctrl_c_keeps_the_object(smollm2: Path) -> None:
    import json

    flags = ["-m", smollm2, "-n", "8000", "--n-ctx", "8192", "--json", "-v"]
    with running("run", "Tell me a very long story.", *flags) as process:
        wait_for(process, b"measured cost")
        out, _ = interrupt(process)
    if out:  # else it was still before the first token
        assert json.loads(out)["finish_reason"] == "cancelled"


@pytest.mark.gguf
def test_ctrl_c_while_the_prompt_is_read(smollm2: Path) -> None:
    text = "The lighthouse keeper wrote down every ship that passed. " * 750
    with running("run", "-m", smollm2, "--n-ctx", "8192", "-v", stdin=text.encode()) as process:
        wait_for(process, b"measured cost")
        out, err = interrupt(process)
    assert out.strip() == ""
    assert "Traceback" not in err


@pytest.mark.gguf
@pytest.mark.parametrize("moment", [b"loader: loaded meta data", b"constructing llama_context", b"reserve took"])
def test_ctrl_c_while_the_model_is_loaded(smollm2: Path, moment: bytes) -> None:
    with running("run", "Hi", "-m", smollm2, "-n", "8000", "--n-ctx", "8192", "-v") as process:
        wait_for(process, moment)
        out, err = interrupt(process)
    assert out.strip() == ""
    assert "Traceback" not in err
    assert "Exception ignored" not in err


# Readers that leave


@pytest.mark.parametrize("flag", ["--no-stats", "--json"])
def test_a_reader_that_leaves(model: list[str], flag: str) -> None:
    with running("run", "Hi", *model, "-n", "1500", "--seed", "1", flag) as process:
        assert process.stdout
        if flag != "--json":
            assert len(process.stdout.read(10)) == 10
        process.stdout.close()
        process.stdout = None
        assert process.stderr
        err = process.stderr.read()
        assert (process.wait(60), err) == (1, b"")


def test_head_takes_what_it_wants(model: list[str]) -> None:
    command = 'set -o pipefail; "$@" | head -c 10'
    done = subprocess.run(
        ["bash", "-c", command, "bash", *COMMAND, "run", "Hi", *model, "-n", "1500", "--seed", "1"],
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert len(done.stdout) == 10
    assert (done.returncode, done.stderr) == (1, b"")
