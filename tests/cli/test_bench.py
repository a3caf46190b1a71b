"""``edgedec bench`` on the tiny model: what it prints, and what it refuses before a model is loaded."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from edgedec.bench import server
from edgedec.bench.record import Answer, Case, Settings
from edgedec.bench.server import Endpoint
from edgedec.errors import EdgedecError
from tests.cli.conftest import Cli

PROMPTS = [
    {"question_id": 1, "category": "copy", "turns": ["one two three one two three one two", "again"]},
    {"question_id": 2, "category": "talk", "turns": ["Hello there"]},
    {"question_id": 3, "category": "talk", "turns": ["And who are you?"]},
]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "suite.jsonl"
    path.write_text("\n".join(map(json.dumps, PROMPTS)), encoding="utf-8")
    return path


@pytest.fixture
def flags(model: list[str], suite: Path) -> list[str]:
    return [*model, "--suite", str(suite), "--max-tokens", "12"]


def test_the_object(cli: Cli, flags: list[str], home: Path) -> None:
    found = cli("bench", *flags, "--modes", "plain,auto,suffix+recycle", "--json").json
    assert list(found["categories"]) == ["copy", "talk"]
    assert found["settings"]["modes"] == ["plain", "auto", "suffix+recycle"]
    assert found["model"]["path"] == flags[1]
    assert found["machine"]["physical_cores"] >= 1
    assert found["settings"]["n_threads"] == 1
    for mode in found["overall"]["modes"].values():
        assert mode["n_answers"] == 3
        assert mode["tokens_per_second"] > 0
        assert mode["forks"] == mode["near_ties"]
    assert found["overall"]["limit"] >= 1.0
    assert found["cost_ms"]["1"] > 0
    assert [one["id"] for one in found["prompts"]] == ["1", "2", "3"]
    assert not (home / "corpus").exists(), "what is measured is not learnt"


def test_the_tables(cli: Cli, flags: list[str]) -> None:
    done = cli("bench", *flags, "--per-category", "--replay", "cuda-34b-q8_0")
    assert done.code == 0, done
    for words in (
        "category",
        "plain tok/s",
        "copy",
        "talk",
        "overall",
        "replayed on this machine",
        "pull request 5625",
    ):
        assert words in done.out
    assert done.err == ""


def test_prompts_and_turns(cli: Cli, flags: list[str]) -> None:
    found = cli("bench", *flags, "--prompts", "1", "--turns", "2", "--json").json
    assert [(one["id"], one["turn"]) for one in found["prompts"]] == [("1", 1), ("1", 2), ("2", 1)]


def test_the_built_in_suite_and_a_small_context(cli: Cli, model: list[str]) -> None:
    """Nearly all of it is too long for so few tokens, and that is said."""
    done = cli("bench", *model, "--n-ctx", "96", "--prompts", "1", "--max-tokens", "4")
    assert done.code == 0, done
    assert "left out" in done.out


def test_sampled_answers_are_the_same_text(cli: Cli, flags: list[str]) -> None:
    found = cli("bench", *flags, "--temperature", "0.8", "--seed", "3", "--json").json
    assert found["settings"]["seed"] == 3
    for one in found["prompts"]:
        modes = one["modes"]
        assert modes["auto"]["fork"] is not None or modes["auto"]["text"] == modes["plain"]["text"]


class Echo:
    """Stands for a server: says the same to everything."""

    name = "server"

    def __init__(self, endpoint: Endpoint, stop: object) -> None:
        self.endpoint = endpoint

    def answer(self, case: Case, settings: Settings) -> Answer:
        return Answer("ok", None, "eog", 10, 0.01)


def test_a_server_is_one_more_mode(cli: Cli, flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = Endpoint("http://127.0.0.1:8080", "native", "/models/a.gguf", "b1", 64)
    monkeypatch.setattr(server, "find", lambda url: endpoint)
    monkeypatch.setattr(server, "Server", Echo)
    found = cli("bench", *flags, "--against", endpoint.url, "--json").json
    assert found["against"]["model"] == "/models/a.gguf"
    mode = found["overall"]["modes"]["server"]
    assert mode["tokens_per_second"] == pytest.approx(1000.0)
    assert mode["forks"] == mode["n_answers"], "texts are compared"
    assert all(one["prompt_tokens"] + 12 <= 64 for one in found["prompts"]), "the server's context counts as well"
    sampled = cli("bench", *flags, "--against", endpoint.url, "--temperature", "0.8", "--json").json
    assert sampled["overall"]["modes"]["server"]["forks"] == 0, "a server draws in its own way"


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (("--modes", "plain,sufix"), ("sufix", "Did you mean 'suffix'?")),
        (("--modes", "plain"), ("no mode",)),
        (("--suite", "nowhere.jsonl"), ("nowhere.jsonl", "cannot be read")),
        (("--replay", "laptop"), ("laptop", "laptop-8core-q4")),
        (("--replay", "nowhere.json"), ("nowhere.json", "cannot be read")),
        (("--plot", "picture.gif"), ("picture.gif", ".svg")),
        (("--plot", "no/such/folder/picture.png"), ("does not exist",)),
        (("--against", "localhost:8080"), ("address", "http://127.0.0.1:8080")),
        (("--prompts", "0"), ("prompts",)),
        (("--turns", "0"), ("turns",)),
        (("--max-tokens", "1"), ("max-tokens",)),
        (("--temperature", "-1"), ("temperature",)),
        (("--speculate", "auto"), ("--speculate",)),
        (("surplus",), ("surplus",)),
    ],
)
def test_wrong_usage_is_found_before_the_model(cli: Cli, extra: tuple[str, ...], words: tuple[str, ...]) -> None:
    cli("bench", "-m", "nowhere.gguf", *extra).assert_is_error(2, *words)


def test_a_suite_with_a_broken_line(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"turns": ["Hi"]}\n{"turns"', encoding="utf-8")
    cli("bench", "-m", "nowhere.gguf", "--suite", path).assert_is_error(2, "Line 2", "turns")


def test_a_missing_model(cli: Cli) -> None:
    cli("bench", "-m", "nowhere.gguf").assert_is_error(2, "nowhere.gguf")


def test_a_server_that_is_not_there(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(url: str) -> Endpoint:
        raise EdgedecError(f"The server at {url} does not answer: refused.", "Start it.  Then try again.")

    monkeypatch.setattr(server, "find", find)
    cli("bench", "-m", "nowhere.gguf", "--against", "http://127.0.0.1:1").assert_is_error(1, "does not answer")


def test_pictures_without_matplotlib(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    cli("bench", "-m", "nowhere.gguf", "--plot", tmp_path / "a.png").assert_is_error(1, "matplotlib", "edgedec[plot]")
