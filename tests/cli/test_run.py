"""``edgedec run``: what is printed where, and that flags do what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edgedec import drafters
from edgedec.cli.run import numbers
from edgedec.types import Result, SpeculationStats, Timing, Usage
from tests.cli.conftest import COMMAND, Cli
from tests.tiny_gguf import write_text_model

KEYS: dict[str, Any] = {
    "model": {"name": str, "path": str, "architecture": str, "n_params": int},
    "text": str,
    "token_ids": list,
    "finish_reason": str,
    "seed": int,
    "usage": {"prompt_tokens": int, "cached_tokens": int, "completion_tokens": int},
    "timing": {
        "load_s": float,
        "prefill_s": float,
        "decode_s": float,
        "ttft_s": float,
        "tokens_per_second": float,
        "plain_tokens_per_second": float,
        "speedup": float,
    },
    "speculation": {
        "mode": str,
        "steps": int,
        "plain_steps": int,
        "drafted": int,
        "accepted": int,
        "acceptance_rate": float,
        "tokens_per_step": float,
        "note": str,
        "drafters": {name: {"drafted": int, "accepted": int, "time_s": float} for name in drafters.AUTO},
    },
    "spans": list,
}


def assert_layout(value: Any, layout: Any, where: str = "") -> None:
    if isinstance(layout, dict):
        assert value.keys() == layout.keys(), where
        for key in layout:
            assert_layout(value[key], layout[key], f"{where}.{key}")
    else:
        assert type(value) is layout, where


# Output


def test_the_answer_and_nothing_else(spawn: Cli, model: list[str]) -> None:
    done = spawn("run", "Why is the sky blue?", *model, "-n", "30", "--seed", "1")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("\n")
    assert len(done.out) > 20
    as_json = spawn("run", "Why is the sky blue?", *model, "-n", "30", "--seed", "1", "--json")
    assert as_json.err == ""
    assert as_json.json["text"] + "\n" == done.out


def test_the_object_has_exactly_the_documented_keys(cli: Cli, model: list[str], tiny: Path) -> None:
    found = cli("run", "Why is the sky blue?", *model, "-n", "200", "--temperature", "0", "--json").json
    assert_layout(found, KEYS)
    assert found["model"] == {"name": "tiny", "path": str(tiny), "architecture": "llama", "n_params": 109888}
    assert found["finish_reason"] == "length"
    assert found["usage"]["completion_tokens"] == len(found["token_ids"]) == sum(n for n, _ in found["spans"]) == 200
    assert found["timing"]["load_s"] > 0
    assert found["timing"]["ttft_s"] >= found["timing"]["prefill_s"] > 0
    speculation = found["speculation"]
    assert speculation["mode"] == "auto"
    assert 0 < speculation["plain_steps"] <= speculation["steps"]
    assert speculation["accepted"] <= speculation["drafted"]
    assert speculation["tokens_per_step"] == 200 / speculation["steps"]
    by_source = {source: sum(n for n, who in found["spans"] if who == source) for source in ("suffix", "target")}
    assert by_source == {"suffix": speculation["accepted"], "target": 200 - speculation["accepted"]}


def test_the_documented_keys_are_these() -> None:
    text = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    example = json.loads(text.partition("### `--json`")[2].partition("```json")[2].partition("```")[0])

    def keys(value: Any) -> Any:
        return {key: keys(inner) for key, inner in value.items()} if isinstance(value, dict) else None

    assert keys(example) == keys(KEYS)


def test_without_speculation_there_are_no_drafters(cli: Cli, model: list[str]) -> None:
    found = cli("run", "Hi", *model, "-n", "20", "--speculate", "off", "--json").json
    assert found["speculation"]["mode"] == "off"
    assert found["speculation"]["drafters"] == {}
    assert found["speculation"]["steps"] == found["speculation"]["plain_steps"] == 20
    assert found["spans"] == [[20, "target"]]


def test_a_model_that_cannot_be_sped_up_says_why(cli: Cli, tmp_path: Path) -> None:
    path = write_text_model(tmp_path / "m.gguf", "mamba")
    done = cli("run", "Hi", "-m", path, "-n", "5", "--n-threads", "1", "--json", "--stats")
    assert "recurrent" in done.json["speculation"]["note"]
    assert "not guessing: the recurrent memory" in done.err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_the_terminal_cannot_show(spawn: Cli, model: list[str], encoding: str) -> None:
    flags = ["run", "Hi", *model, "-n", "60", "--temperature", "3", "--seed", "6"]
    text = spawn(*flags, "--json").json["text"]
    assert not text.isascii(), "otherwise this tests nothing"
    assert spawn(*flags, "--json", PYTHONIOENCODING=encoding, PYTHONUTF8="0").json["text"] == text
    done = subprocess.run(
        [*COMMAND, *flags],
        capture_output=True, timeout=60, check=False,
        env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == f"{text}\n".encode(encoding, "replace")


# The same text


def test_a_seed_fixes_the_text(cli: Cli, model: list[str]) -> None:
    texts = {seed: [cli("run", "Hi", *model, "-n", "40", "--seed", seed).out for _ in range(2)] for seed in "123"}
    assert all(first == second for first, second in texts.values())
    assert len({first for first, _ in texts.values()}) == 3


def test_without_a_seed_there_is_a_random_one(cli: Cli, model: list[str]) -> None:
    first, second = (cli("run", "Hi", *model, "-n", "40", "--json").json for _ in range(2))
    assert first["seed"] != second["seed"]
    assert cli("run", "Hi", *model, "-n", "40", "--seed", first["seed"]).out == first["text"] + "\n"


@pytest.mark.parametrize(
    "sampling", ["--temperature 0", "--seed 5", "--seed 5 --repeat-penalty 1.3 --dry-multiplier 1"]
)
def test_guessing_does_not_change_the_text(cli: Cli, model: list[str], sampling: str) -> None:
    flags = ["run", "one two " * 20, *model, "-n", "300", *sampling.split(), "--json"]
    plain, auto, suffix = (cli(*flags, "--speculate", mode).json for mode in ("off", "auto", "suffix"))
    assert plain["token_ids"] == auto["token_ids"] == suffix["token_ids"]
    assert plain["text"] == auto["text"] == suffix["text"]
    assert suffix["speculation"]["mode"] == "suffix"


@pytest.mark.gguf
def test_guessing_does_not_change_the_text_of_a_real_model(spawn: Cli, smollm2: Path) -> None:
    prompt = "Repeat this list three times: apple, pear, plum, cherry."
    flags = ["run", prompt, "-m", smollm2, "-n", "48", "--temperature", "0", "--json"]
    plain, auto = (spawn(*flags, "--speculate", mode).json for mode in ("off", "auto"))
    assert plain["text"] == auto["text"]
    assert auto["speculation"]["steps"] <= plain["speculation"]["steps"]
    assert plain["model"]["name"] == "SmolLM2-135M-Instruct.Q4_1"


@pytest.mark.gguf
def test_a_real_answer_ends_by_itself(spawn: Cli, smollm2: Path) -> None:
    prompt = "What is the capital of France? Answer with one word."
    found = spawn("run", prompt, "-m", smollm2, "--temperature", "0", "--json", "-n", "100").json
    assert found["finish_reason"] == "eog"
    assert "Paris" in found["text"]
    assert "<|" not in found["text"]


# The prompt


def test_the_prompt_may_come_through_a_pipe(spawn: Cli, model: list[str]) -> None:
    flags = [*model, "-n", "20", "--seed", "1"]
    wanted = spawn("run", "Grüße 🦊\n", *flags).out
    assert spawn("run", "-", *flags, stdin="Grüße 🦊\n".encode()).out == wanted
    assert spawn("run", *flags, stdin="Grüße 🦊\n".encode()).out == wanted
    assert spawn("run", "Grüße 🦊\n", *flags, stdin=b"something else").out == wanted


def test_a_pipe_may_carry_any_bytes(cli: Cli, model: list[str]) -> None:
    flags = ["run", "--raw", *model, "-n", "5", "--json"]
    found = cli(*flags, stdin=b"\xff\0\x80 a").json
    assert found["usage"]["prompt_tokens"] == 1 + 3 + 1 + 3 + 1, "BOS, U+FFFD, NUL, U+FFFD, a word"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not allow such arguments")
def test_an_argument_may_be_any_bytes(spawn: Cli, model: list[str]) -> None:
    assert spawn("run", os.fsdecode(b"\xff\xfe"), *model, "-n", "5").code == 0


def test_a_prompt_may_look_like_a_flag(cli: Cli, model: list[str]) -> None:
    assert cli("run", *model, "-n", "5", "--", "--help me").code == 0


def test_raw_sends_the_prompt_as_it_is(cli: Cli, model: list[str]) -> None:
    def n_prompt(*flags: str) -> int:
        return int(cli("run", "Hi", *model, "-n", "1", "--json", *flags).json["usage"]["prompt_tokens"])

    assert n_prompt("--raw") == 1 + 2
    template = n_prompt()
    assert template == 1 + (1 + 1 + 2 + 1 + 1) + (1 + 1), "BOS, <|user|>\\nHi<|end|>\\n, <|assistant|>\\n"
    assert n_prompt("--system", "Yo") == template + (1 + 1 + 2 + 1 + 1)
    assert n_prompt("--system", "") == template + (1 + 1 + 1 + 1)


def test_raw_may_spell_control_tokens(cli: Cli, model: list[str]) -> None:
    flags = [*model, "-n", "8", "--temperature", "0", "--json"]
    by_hand = cli("run", "--raw", "<|user|>\nHi<|end|>\n<|assistant|>\n", *flags).json
    assert by_hand["token_ids"] == cli("run", "Hi", *flags).json["token_ids"]
    quoted = cli("run", "<|end|>", *flags).json
    assert quoted["usage"]["prompt_tokens"] > by_hand["usage"]["prompt_tokens"], "in a message it is only text"


def test_a_model_without_a_template(cli: Cli, tmp_path: Path) -> None:
    path = write_text_model(tmp_path / "bare.gguf", chat_template=None)
    found = cli("run", "Hi", "-m", path, "--n-threads", "1", "-n", "5", "--json").json
    assert found["usage"]["prompt_tokens"] == 1 + len("User:Hi\n\nAssistant:") + 1 - 1, "one token is both newlines"


@pytest.mark.gguf
def test_three_thousand_tokens_through_a_pipe(spawn: Cli, smollm2: Path) -> None:
    text = "The lighthouse keeper wrote down every ship that passed. " * 300
    done = spawn("run", "-m", smollm2, "-n", "3", "--temperature", "0", "--json", stdin=text.encode())
    assert 3000 < done.json["usage"]["prompt_tokens"] < 4096
    assert done.json["usage"]["completion_tokens"] == 3


def test_the_context_grows_to_what_is_needed(cli: Cli, tmp_path: Path) -> None:
    path = write_text_model(tmp_path / "long.gguf", n_ctx_train=16384)
    flags = ["-m", path, "--n-threads", "1", "--raw", "--json", "-v"]
    done = cli("run", "x" * 100, *flags, "-n", "3")
    assert "the context grows" not in done.err
    done = cli("run", "x" * 9000, *flags, "-n", "3")
    assert "the context grows from 4096 to 9216 tokens" in done.err
    assert done.json["usage"] == {"prompt_tokens": 9001, "cached_tokens": 0, "completion_tokens": 3}
    done = cli("run", "x" * 9000, *flags, "-n", "3", "--n-ctx", "8192")
    assert done.code == 1
    assert "The prompt has 9001 tokens, but the context holds 8192" in done.err


# Where it ends


@pytest.mark.parametrize("n", [1, 2, 7, 50])
def test_max_tokens_is_exact(cli: Cli, model: list[str], n: int) -> None:
    found = cli("run", "one two one two", *model, "-n", n, "--temperature", "0", "--json").json
    assert (found["usage"]["completion_tokens"], found["finish_reason"]) == (n, "length")


def test_without_max_tokens_the_context_is_filled(cli: Cli, model: list[str]) -> None:
    found = cli("run", "Hi", *model, "--n-ctx", "64", "--temperature", "0", "--json").json
    assert found["usage"]["prompt_tokens"] + found["usage"]["completion_tokens"] == 64
    assert found["finish_reason"] == "length"


def test_stop_ends_before_the_text(cli: Cli, model: list[str]) -> None:
    flags = ["run", "Hi", *model, "-n", "60", "--seed", "4"]
    text = cli(*flags).out[:-1]
    for stop in (text[10], text[12:17], text[30:33] + "never", text[40:]):
        done = cli(*flags, "--stop", stop)
        assert done.out == text.partition(stop)[0] + "\n"
    found = cli(*flags, "--stop", "never", "--stop", text[20:24], "--stop", text[25:40], "--json").json
    assert found["text"] == text.partition(text[20:24])[0]
    assert found["finish_reason"] == "stop"
    assert found["usage"]["completion_tokens"] == len(found["token_ids"]) < 60


# The numbers line


def test_numbers_on_stderr_when_asked(spawn: Cli, model: list[str]) -> None:
    done = spawn("run", "Hi", *model, "-n", "20", "--seed", "1", "--stats")
    assert done.err.count("\n") == 1
    assert done.err.startswith("20 tokens · ")
    assert "tok/s" in done.err
    assert done.out == spawn("run", "Hi", *model, "-n", "20", "--seed", "1", "--no-stats").out


def test_the_numbers_line() -> None:
    result = Result(
        text="",
        token_ids=[],
        finish_reason="eog",
        usage=Usage(10, 4, 21),
        timing=Timing(tokens_per_second=12.34, speedup=1.5, ttft_s=0.256),
        speculation=SpeculationStats(steps=12, tokens_per_step=1.75),
        spans=[],
    )
    assert numbers(result) == (
        "21 tokens · 12.3 tok/s · 1.75 tokens/step · 1.50× plain · first token after 0.26 s"
        " · 4 of 10 prompt tokens cached"
    )
    result.speculation.steps = 0
    assert numbers(result) == "stopped before the first token"


# Help


def test_help_and_version(cli: Cli) -> None:
    assert cli("run", "--help").out == cli("run", "-h").out
    assert "--max-tokens" in cli("run", "--help").out
    for args in ((), ("--help",)):
        done = cli(*args)
        assert (done.code, done.err) == (0, "")
        assert "doctor" in done.out
    assert cli("--version").out.startswith("edgedec, version ")


def test_the_log_is_shown_when_asked(spawn: Cli, model: list[str]) -> None:
    flags = ["run", "Hi", *model, "-n", "5", "--seed", "1"]
    quiet, some, all_ = spawn(*flags), spawn(*flags, "-v"), spawn(*flags, "-vv")
    assert quiet.out == some.out == all_.out
    assert quiet.err == ""
    assert "edgedec.llama.cpp: llama_model_loader" in some.err
    assert len(all_.err) >= len(some.err) > 500
