"""The door to llama.cpp: its log, its build, its failed assertions, and Ctrl-C while it works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.tiny_gguf import WORDS

GENERATE = """
import logging, sys
import edgedec
{set_up}
with edgedec.load(sys.argv[1]) as llm:
    assert llm.generate("Hello", max_tokens=3).usage.completion_tokens == 3
"""


def python(code: str, *args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=120, check=False)


def twice_the_same_word(path: Path, target: Path) -> Path:
    """A damaged file on which llama.cpp ends the process."""
    data = path.read_bytes()
    first, second = (word.replace(" ", "▁").encode() for word in WORDS[:2] if word != " ")
    raise NotImplementedError


def test_llama_cpp_says_nothing_unless_logging_is_configured(tiny: Path) -> None:
    quiet = python(GENERATE.format(set_up=""), tiny)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    loud = python(GENERATE.format(set_up="logging.basicConfig(level=logging.DEBUG)"), tiny)
    assert (loud.returncode, loud.stdout) == (0, "")
    assert "edgedec.llama.cpp:llama_model_loader" in loud.stderr
