"""The door to llama.cpp: its log, its build, its failed assertions, and Ctrl-C while it works."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from edgedec.llama import lib
from tests.damage import same_word_twice

GENERATE = """
import logging, sys
import edgedec
{set_up}
with edgedec.load(sys.argv[1], n_threads=1) as llm:
    assert llm.generate("Hello", max_tokens=3).usage.completion_tokens == 3
"""

DIE = """
import os, sys
from pathlib import Path
from edgedec.llama import lib
from edgedec.llama.model import LlamaModel
{set_up}
LlamaModel(Path(sys.argv[1]))
print("survived")
"""


def python(code: str, *args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=120, check=False)


def test_llama_cpp_says_nothing_unless_logging_is_configured(tiny: Path) -> None:
    quiet = python(GENERATE.format(set_up=""), tiny)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    loud = python(GENERATE.format(set_up="logging.basicConfig(level=logging.DEBUG)"), tiny)
    assert (loud.returncode, loud.stdout) == (0, "")
    assert ":edgedec.llama.cpp:llama_model_loader: loaded meta data" in loud.stderr


def test_a_missing_library_is_an_error_that_says_what_to_do() -> None:
    done = python(
        "import sys; sys.modules['llama_cpp'] = None\n"
        "from edgedec.errors import EdgedecError\n"
        "try: import edgedec.llama.model\n"
        "except EdgedecError as error: print(error, '|', error.hint)"
    )
    assert done.stdout.startswith("llama.cpp cannot be loaded: ")
    assert "edgedec doctor" in done.stdout
    assert done.stdout.count("\n") == 1


def test_complaints_are_collected_line_by_line() -> None:
    with lib.complaints() as found:
        lib._log_callback(4, b"first ", None)
        lib._log_callback(5, b"line\nsec", None)
        lib._log_callback(5, b"ond line\n", None)
        lib._log_callback(3, b"a warning \xff\n\n", None)
        lib._log_callback(2, b"an information\n", None)
        assert found == []
    assert found == ["first line", "second line", "a warning \ufffd"]
    with lib.complaints() as later:
        pass
    assert later == []


def test_what_the_build_says_about_itself() -> None:
    cpu = next(device for device in lib.devices() if device.kind == "cpu")
    assert cpu.name
    assert cpu.memory_total >= cpu.memory_free > 0
    versions = lib.versions()
    assert versions["llama_cpp_python"] in lib.build()
    assert lib.system_info() in lib.build()
    assert isinstance(lib.supports_gpu_offload(), bool)


def test_the_abort_predicate_reads_the_flag() -> None:
    flag = (ctypes.c_char * 2)()
    predicate = lib.abort_predicate()
    assert not predicate(ctypes.addressof(flag))
    flag[0] = b"\x01"
    assert predicate(ctypes.addressof(flag))


def test_a_failed_assertion_is_told_in_one_line(tiny: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(same_word_twice(tiny.read_bytes()))
    done = python(DIE.format(set_up=""), bad)
    assert done.returncode == -signal.SIGABRT
    assert done.stdout == ""
    assert done.stderr.startswith("llama.cpp: GGML_ASSERT(")
    assert done.stderr.count("\n") == 1


def test_a_failed_assertion_can_be_handled(tiny: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(same_word_twice(tiny.read_bytes()))
    handler = "lib.on_fatal(lambda message: (print('!', message, flush=True), os._exit(7)))"
    done = python(DIE.format(set_up=handler), bad)
    assert done.returncode == 7
    assert done.stdout.startswith("! GGML_ASSERT(")
    assert "/" not in done.stdout, "whoever reads it does not care where llama.cpp was compiled"
    assert done.stderr == ""


def test_undisturbed_hands_results_and_errors_on() -> None:
    assert lib.undisturbed(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        lib.undisturbed(lambda: 1 // 0)


def test_an_interrupt_strikes_the_waiting_not_the_work() -> None:
    stop, finished = threading.Event(), threading.Event()

    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(60)
        finished.set()

    with pytest.raises(KeyboardInterrupt):
        lib.undisturbed(work, stop.set)
    assert finished.is_set()


def test_away_from_the_main_thread_work_is_done_in_place() -> None:
    places: list[int] = []
    thread = threading.Thread(target=lambda: lib.undisturbed(lambda: places.append(threading.get_ident())))
    thread.start()
    thread.join()
    assert places == [thread.ident]
