"""What a user may get wrong: two lines on stderr, the right exit code, nothing on stdout, never a traceback."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, Cli
from tests.damage import broken, same_word_twice
from tests.tiny_gguf import write_text_model

# Model files


def test_model_files_that_are_not_there(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    cli("run", "Hi", "-m", tmp_path / "nothing.gguf").assert_is_error(2, "There is no file", "nothing.gguf")
    cli("run", "Hi", "-m", tiny.parent / "tinny.gguf").assert_is_error(2, "There is no file", "tiny.gguf")
    cli("run", "Hi", "-m", tmp_path / "no" / "where.gguf").assert_is_error(2, "There is no folder")
    cli("run", "Hi", "-m", tmp_path).assert_is_error(2, "is a folder", "holds no .gguf file")
    cli("run", "Hi", "-m", tiny.parent).assert_is_error(2, "is a folder", "tiny.gguf")
    cli("run", "Hi", "-m", "").assert_is_error(2)
    cli("run", "Hi", "-m", "smollm2-135").assert_is_error(2, "Unknown model", "Did you mean 'smollm2-135m'?")
    cli("run", "Hi", "-m", "owner/repo").assert_is_error(2, "hf:owner/repo")
    cli("run", "Hi", "-m", "hf:").assert_is_error(2, "hf:owner/repo")
    cli("run", "Hi", "-m", "https://example.org/model.gguf").assert_is_error(2, "is an address")
    cli("run", "Hi", "-m", "/dev/null").assert_is_error(1, "is empty")


def test_models_that_cannot_be_fetched(cli: Cli) -> None:
    cli("run", "Hi", "-m", "hf:owner/repo:Q4_0").assert_is_error(1, "HF_HUB_OFFLINE")
    cli("run", "Hi").assert_is_error(1, "smollm2-135m could not be fetched")


def test_model_files_that_are_broken(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    for content in broken(tiny).values():
        path.write_bytes(content)
        cli("run", "Hi", "-m", path).assert_is_error(1, "bad.gguf")


def test_models_that_do_not_write_text(cli: Cli, tiny_embedding: Path, tmp_path: Path) -> None:
    cli("run", "Hi", "-m", tiny_embedding).assert_is_error(1, "embedding model")
    cli("run", "Hi", "-m", write_text_model(tmp_path / "e.gguf", is_embedding=True)).assert_is_error(1, "embedding")


def test_a_file_on_which_llama_cpp_ends_the_process(spawn: Cli, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(same_word_twice(tiny.read_bytes()))
    spawn("run", "Hi", "-m", path).assert_is_error(1, "llama.cpp stopped: GGML_ASSERT(", "fetch it again")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_file_that_may_not_be_read(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "secret.gguf"
    path.write_bytes(tiny.read_bytes())
    path.chmod(0)
    cli("run", "Hi", "-m", path).assert_is_error(2, "cannot be read", "Permission denied")


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% for m in messages %}", "is not valid"),
        ("{{ raise_exception('no system role') }}", "refused the messages: no system role"),
        ("{{ messages[0].content.nothing.at.all }}", "failed"),
        ("{{ 1 // 0 }}", "failed"),
        ("{{ ''.__class__.__mro__ }}", "failed"),
    ],
)
def test_broken_templates(cli: Cli, tmp_path: Path, template: str, words: str) -> None:
    path = write_text_model(tmp_path / "t.gguf", chat_template=template)
    done = cli("run", "Hi", "-m", path, "--n-threads", "1", "-n", "2")
    done.assert_is_error(1, words)
    assert cli("run", "Hi", "-m", path, "--n-threads", "1", "-n", "2", "--raw").code == 0


# Numbers and names


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--temperature abc", ["'abc' is not a valid float", "edgedec run --help"]),
        ("--temperature -1", ["temperature is -1.0", "from 0 (greedy)"]),
        ("--temperature nan", ["temperature is nan", "finite"]),
        ("--temperature inf", ["temperature is inf", "finite"]),
        ("--temperature 1e999", ["finite"]),
        ("--top-p 0", ["top_p is 0.0", "above 0"]),
        ("--top-p 1.1", ["top_p is 1.1"]),
        ("--top-p -inf", ["top_p is -inf"]),
        ("--min-p -0.1", ["min_p is -0.1"]),
        ("--min-p 2", ["min_p is 2.0"]),
        ("--top-k -1", ["top_k is -1", "0 switches it off"]),
        ("--top-k 2.5", ["'2.5' is not a valid integer"]),
        ("--top-k 99999999999999999999", ["top_k"]),
        ("--repeat-penalty 0", ["repeat_penalty is 0.0"]),
        ("--repeat-penalty -1", ["repeat_penalty is -1.0"]),
        ("--repeat-penalty nan", ["repeat_penalty is nan"]),
        ("--presence-penalty 1000", ["presence_penalty"]),
        ("--frequency-penalty=-1000", ["frequency_penalty"]),
        ("--penalty-last-n -2", ["penalty_last_n is -2"]),
        ("--dry-multiplier -1", ["dry_multiplier"]),
        ("--dry-base 0.5", ["dry_base"]),
        ("--dry-allowed-length 0", ["dry_allowed_length"]),
        ("--seed -1", ["seed is -1"]),
        ("--seed 18446744073709551616", ["seed is 18446744073709551616"]),
        ("--seed 1e3", ["'1e3' is not a valid integer"]),
        ("-n 0", ["max_tokens is 0", "whole number ≥ 1"]),
        ("-n -5", ["max_tokens is -5"]),
        ("-n many", ["'many' is not a valid integer"]),
        ("--stop=", ["stop string is empty"]),
        ("--n-ctx 0", ["n_ctx is 0"]),
        ("--n-ctx -5", ["n_ctx is -5"]),
        ("--n-ctx 10000000", ["n_ctx is 10000000", "trained for 2048"]),
        ("--n-ctx 99999999999", ["n_ctx is 99999999999"]),
        ("--n-threads -1", ["n_threads is -1"]),
        ("--n-threads 100000", ["n_threads is 100000"]),
        ("--n-gpu-layers -2", ["n_gpu_layers is -2"]),
        ("--n-gpu-layers all", ["'all' is not a valid integer"]),
        ("--type-k foo", ["type_k is 'foo'", "q8_0"]),
        ("--type-v F16", ["type_v is 'F16'", "f16"]),
        ("--flash-attn maybe", ["flash_attn is 'maybe'", "auto, on, off"]),
        ("--type-v q4_0 --flash-attn off", ["type_v q4_0 needs flash attention"]),
        ("--speculate sufix", ["Unknown drafter 'sufix'", "Did you mean 'suffix'?"]),
        ("--speculate suffix,nothing", ["Unknown drafter 'nothing'"]),
        ("--speculate auto,suffix", ["cannot be combined"]),
        ("--speculate=", ["No speculation mode"]),
        ("--speculate ,,", ["No speculation mode"]),
        ("--raw --system Brief", ["system", "raw"]),
        ("--nonsense", ["No such option", "--nonsense", "edgedec run --help"]),
        ("--temprature 1", ["No such option", "--temperature"]),
        ("--seed", ["requires an argument"]),
        ("a second prompt", ["unexpected extra argument"]),
    ],
)
def test_wrong_usage(cli: Cli, model: list[str], flags: str, words: list[str]) -> None:
    n_threads_given = [] if "--n-threads" in flags else model[2:]
    cli("run", "Hi", *model[:2], *n_threads_given, *flags.split()).assert_is_error(2, *words)


def test_numbers_are_checked_before_a_model_is_fetched(cli: Cli) -> None:
    for flags in ("--temperature -1", "-n 0", "--stop=", "--n-ctx 0", "--speculate auto,off", "--raw --system x"):
        cli("run", "Hi", *flags.split()).assert_is_error(2)


def test_a_prompt_that_does_not_fit(cli: Cli, model: list[str]) -> None:
    done = cli("run", "--raw", "x" * 40, *model, "--n-ctx", "32")
    done.assert_is_error(1, "The prompt has 41 tokens, but the context holds 32", "larger n_ctx (up to 2048)")
    done = cli("run", "--raw", "x" * 5000, *model)
    done.assert_is_error(1, "The prompt has 5001 tokens, but the context holds 2048", "Shorten the prompt.")


def test_an_empty_prompt(cli: Cli, model: list[str]) -> None:
    for prompt in ("", " ", "\n\t"):
        cli("run", prompt, *model).assert_is_error(2, "The prompt is empty")
        cli("run", "-", *model, stdin=prompt.encode()).assert_is_error(2, "The prompt is empty")
    cli("run", *model).assert_is_error(2, "There is no prompt")
    cli("run", "-", *model).assert_is_error(2, "There is no prompt")


def test_commands_that_do_not_exist(cli: Cli) -> None:
    cli("rum", "Hi").assert_is_error(2, "Unknown command 'rum'", "Did you mean 'run'?")
    cli("").assert_is_error(2)
    cli("--nonsense").assert_is_error(2, "No such option", "edgedec --help")
    cli("doctor", "--fix").assert_is_error(2, "No such option", "edgedec doctor --help")


def test_extreme_numbers_that_are_allowed(cli: Cli, model: list[str]) -> None:
    for flags in (
        "--temperature 1e-300",
        "--temperature 100 --top-k 0 --top-p 1 --min-p 0",
        "--top-p 1e-300",
        "--top-k 2147483647",
        "--repeat-penalty 100 --penalty-last-n -1",
        "--penalty-last-n 1000000000000 --repeat-penalty 1.1",
        "--presence-penalty 100 --frequency-penalty -100",
        "--dry-multiplier 1e308 --dry-base 1e308 --dry-allowed-length 1000000",
        "--seed 18446744073709551615",
        "--n-ctx 8 --raw",
        "-n 100000000000 --stop e --stop a --stop 1 --stop R",
    ):
        done = cli("run", "Hi", *model, *(() if "-n 1" in flags else ("-n", "4")), *flags.split())
        assert (done.code, done.err) == (0, ""), (flags, done)


# Outside


def test_a_home_that_cannot_be_written(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("EDGEDEC_HOME", str(tmp_path / "file"))
    cli("run", "Hi").assert_is_error(1, "cannot be written to", "EDGEDEC_HOME")


def test_a_home_that_cannot_be_written_does_not_matter_for_a_path(
    cli: Cli, model: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("EDGEDEC_HOME", str(tmp_path / "file"))
    assert cli("run", "Hi", *model, "-n", "2").code == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full disk")
@pytest.mark.parametrize("flag", ["--no-stats", "--json"])
def test_a_full_disk(model: list[str], flag: str) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "run", "Hi", *model, "-n", "4", flag],
            stdout=full, stderr=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.decode().splitlines() == [
        "edgedec: No space left on device.",
        "  Check the disk, and what is read from or written to.",
    ]


@pytest.mark.skipif(os.name != "posix", reason="closes descriptors as a shell does")
def test_streams_that_are_closed(model: list[str]) -> None:
    def shell(redirect: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["sh", "-c", f'exec "$@" {redirect}', "sh", *COMMAND, "run", "Hi", *model, "-n", "4", "--seed", "1"],
            capture_output=True, timeout=60, check=False,
        )  # fmt: skip

    done = shell(">&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    done = shell("2>&-")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout
    assert shell("<&-").stdout == done.stdout


def test_a_library_that_cannot_be_loaded(model: list[str]) -> None:
    code = "import sys; sys.modules['llama_cpp'] = None; from edgedec.cli import main; main(sys.argv[1:])"
    done = subprocess.run(
        [COMMAND[0], "-c", code, "run", "Hi", *model], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("edgedec: llama.cpp cannot be loaded: ")
    assert done.stderr.splitlines()[1:] == ["  Run edgedec doctor, which says what to do."]
