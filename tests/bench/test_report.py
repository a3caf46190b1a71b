"""What a run looks like: to people, to programs, in a picture."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgedec.bench import plot
from edgedec.bench.export import as_object
from edgedec.bench.forks import Fork
from edgedec.bench.record import Answer, Settings
from edgedec.bench.report import lines, table
from edgedec.bench.result import Bench
from edgedec.errors import EdgedecError, UsageError
from edgedec.types import DrafterCounts
from tests.bench.lab import FLAT, STAIRS, answer, measured, plain

COUNTS = {"suffix": DrafterCounts(6, 4, 0.002, [2, 2, 2], [2, 1, 1])}


def bench(**changes: Any) -> Bench:
    auto = answer([(1, 1), (4, 3), (4, 3), (1, 1)], drafters=COUNTS)
    server = Answer("text", None, "length", 8, 0.04)
    cases = [
        measured(0, "edit", plain=plain(8), auto=auto, server=server),
        measured(1, "chat", plain=plain(8), auto=plain(8), server=server),
    ]
    cases[0].forks["auto"] = Fork(3, 0.25, True)
    cases[1].forks["auto"] = Fork(0, math.inf, False)
    cases[1].forks["server"] = Fork(None)
    again = [measured(i, c, plain=plain(8), auto=auto) for i, c in enumerate(("edit", "chat"))]
    made = Bench(
        measured=cases,
        skipped=[("p9", 2)],
        names=["plain", "auto", "server"],
        settings=Settings(max_tokens=9),
        suite="built-in",
        turns=1,
        machine={"cpu": "made up"},
        model={"name": "tiny", "path": "tiny.gguf", "architecture": "llama", "n_params": 7},
        n_threads=2,
        n_rows_max=33,
        here=STAIRS,
        noise=0.5,
        replays=[(FLAT, again)],
        against={"url": "http://127.0.0.1:8080"},
    )
    return replace(made, **changes)


# ---- for programs


def test_the_object_is_json_and_has_the_fixed_layout() -> None:
    found = json.loads(json.dumps(as_object(bench()), allow_nan=False))
    assert {"machine", "model", "overall", "categories", "prompts"} <= set(found)
    assert found["model"] == {"name": "tiny", "path": "tiny.gguf", "architecture": "llama", "n_params": 7}
    assert list(found["categories"]) == ["edit", "chat"]
    for group in (found["overall"], *found["categories"].values()):
        assert list(group["modes"]) == ["plain", "auto", "server"]
        for mode in group["modes"].values():
            assert {"speedup", "tokens_per_second", "tokens_per_step", "forks"} <= set(mode)
    auto = found["categories"]["edit"]["modes"]["auto"]
    assert auto["speedup"] == pytest.approx(2.0)
    assert auto["tokens_per_step"] == 2.0
    assert auto["acceptance_per_pos"] == [1.0, 0.5, 0.5]
    assert auto["drafters"]["suffix"]["drafted"] == 6
    assert found["categories"]["edit"]["limit"] == pytest.approx(2.0)
    assert found["overall"]["modes"]["auto"] | {"forks": 2, "near_ties": 1} == found["overall"]["modes"]["auto"]
    assert found["overall"]["modes"]["auto"]["largest_gap"] is None, "infinite"
    assert found["overall"]["modes"]["server"]["tokens_per_step"] is None
    assert found["settings"]["max_tokens"] == 9
    assert found["cost_ms"]["2"] == 20.0
    assert found["noise"] == 0.5
    assert found["skipped"] == [{"id": "p9", "turn": 2}]
    assert found["against"] == {"url": "http://127.0.0.1:8080"}


def test_the_object_has_every_answer() -> None:
    found = as_object(bench())["prompts"]
    assert [(one["id"], one["category"], one["turn"], one["prompt_tokens"]) for one in found] == [
        ("p0", "edit", 1, 3),
        ("p1", "chat", 1, 3),
    ]
    auto = found[0]["modes"]["auto"]
    assert auto["steps"] == [[1, 1, 2], [4, 3, 2]]
    assert (auto["tokens"], auto["seconds"], auto["tokens_per_second"]) == (8, 0.04, 200.0)
    assert auto["fork"] == {"at": 3, "gap": 0.25, "is_near_tie": True}
    assert found[0]["modes"]["plain"]["fork"] is None
    assert found[1]["modes"]["auto"]["fork"]["gap"] is None
    assert found[0]["modes"]["server"]["steps"] == []


def test_replays_have_the_same_layout_without_the_server() -> None:
    found = as_object(bench())["replay"]["flat"]
    assert found["source"] == "made up"
    assert list(found["overall"]["modes"]) == ["plain", "auto"]
    assert found["overall"]["modes"]["auto"]["speedup"] == pytest.approx(2.0)
    assert found["overall"]["limit"] == pytest.approx(8.0)
    assert list(found["categories"]) == ["edit", "chat"]


def test_a_model_that_cannot_be_sped_up() -> None:
    found = as_object(bench(here=None, note="the memory cannot take guesses back", replays=[], noise=None))
    assert found["note"] == "the memory cannot take guesses back"
    assert (found["cost_ms"], found["overall"]["limit"], found["replay"]) == ({}, None, {})


# ---- for people


def rows_of(text: str, title: str) -> dict[str, list[str]]:
    """The table whose header begins with that word: first column -> the others of its first row."""
    for block in text.split("\n\n"):
        found = block.splitlines()
        for i, line in enumerate(found):
            if line.split()[0] == title and "×" not in line:
                return {row.split()[0]: row.split()[1:] for row in reversed(found[i + 1 :])}
    raise AssertionError(f"no table {title}")


def test_the_report_begins_with_speedups_by_category() -> None:
    text = "\n".join(lines(bench(), per_category=False))
    assert text.startswith("tiny · 2 threads · greedy · up to 9 tokens · 2 answers in 2 categories")
    found = rows_of(text, "category")
    assert found["edit"] == ["1", "100.0", "2.00×", "2.00×", "2.00×"]
    assert found["chat"] == ["1", "100.0", "1.00×", "2.00×", "2.00×"]
    assert found["overall"] == ["2", "100.0", "1.33×", "2.00×", "2.00×"]


def test_details_are_overall_or_per_category() -> None:
    text = "\n".join(lines(bench(), per_category=False))
    found = rows_of(text, "overall")
    assert found["auto"] == ["133.3", "1.33×", "1.50×", "1.25–1.75", "1.33", "67%", "5.0%", "1.00", "2"]
    assert found["plain"] == ["100.0", "1.00", "1.00"]
    assert found["server"] == ["200.0", "2.00×", "2.00×", "2.00–2.00", "1"]
    assert "\nedit  " in text
    assert "\nedit    tok/s" not in text
    detailed = rows_of("\n".join(lines(bench(), per_category=True)), "edit")
    assert detailed["auto"][:3] == ["200.0", "2.00×", "2.00×"]


def test_the_report_tells_forks_drafters_and_what_was_left_out() -> None:
    text = "\n".join(lines(bench(), per_category=False))
    assert rows_of(text, "mode")["auto"] == ["suffix", "6", "4", "67%", "2"]
    assert "near-tie" in text
    assert "NOT A NEAR-TIE" in text
    assert "not known" in text
    assert "0.500 logits" in text
    assert "p9/2" in text
    assert text.count("accepted at depth") == 1
    assert "1.00  0.50  0.50" in text


def test_a_replay_has_a_table_of_its_own_without_the_server() -> None:
    text = "\n".join(lines(bench(), per_category=False))
    assert "replayed on a machine where rows are free\n(made up)" in text
    assert rows_of(text, "flat")["chat"] == ["1", "100.0", "2.00×", "8.00×"]


def test_a_report_of_nothing() -> None:
    text = "\n".join(lines(bench(measured=[], replays=[], here=None, note="there is no way back"), per_category=True))
    assert "Not guessing: there is no way back." in text
    assert "limit" not in text


def test_the_temperature_is_told() -> None:
    text = lines(bench(settings=Settings(9, 0.8, 7)), per_category=False)[0]
    assert "temperature 0.8, seed 7" in text


def test_columns_are_aligned() -> None:
    assert table([["a", "b"], ["longer", "1"], ["x", "22"]]) == ["a        b", "longer   1", "x       22"]


# ---- in a picture


@pytest.fixture
def no_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


@pytest.mark.usefixtures("no_matplotlib")
def test_without_matplotlib_the_error_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(EdgedecError, match="matplotlib") as caught:
        plot.check(tmp_path / "a.png")
    assert "edgedec[plot]" in caught.value.hint


@pytest.mark.usefixtures("no_matplotlib")
def test_names_are_checked_first(tmp_path: Path) -> None:
    for name in ("a.gif", "a", "a.png.txt"):
        with pytest.raises(UsageError, match="not a picture"):
            plot.check(tmp_path / name)
    with pytest.raises(UsageError, match="does not exist"):
        plot.check(tmp_path / "nowhere" / "a.svg")


class Recorder:
    """Stands for whatever a picture is made of: remembers every call, gives back more of itself."""

    def __init__(self, calls: list[tuple[str, tuple[Any, ...]]], name: str = "") -> None:
        self._calls, self._name = calls, name

    def __getattr__(self, name: str) -> Recorder:
        return Recorder(self._calls, name)

    def __call__(self, *args: Any, **_: Any) -> Any:
        self._calls.append((self._name, args))
        if self._name in ("subfigures", "subplots") and args:
            return Recorder(self._calls), Recorder(self._calls)
        return Recorder(self._calls)


def test_what_is_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[tuple[str, tuple[Any, ...]]] = []
    monkeypatch.setattr(plot, "_figure", lambda *_: Recorder(calls))
    plot.draw(bench(), tmp_path / "a.svg")
    bars = [args[1] for name, args in calls if name == "bar"]
    assert bars == [[pytest.approx(2.0), pytest.approx(1.0), pytest.approx(4 / 3)], [pytest.approx(2.0)] * 3]
    drawn = [args for name, args in calls if name == "plot"]
    assert ((1, 2, 4, 5, 8), (10.0, 20.0, 20.0, 50.0, 80.0)) in drawn, "T(n)"
    assert ((1,), (9.0,), "x") in drawn, "only widths that were seen three times"
    assert (range(1, 4), (1.0, 0.5, 0.5)) in drawn, "acceptance by depth"
    assert ("savefig", (tmp_path / "a.svg",)) in calls


@pytest.mark.parametrize("name", ["a.png", "a.SVG"])
def test_a_real_picture(tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / name
    for made in (bench(), bench(here=None, measured=bench().measured[1:])):
        plot.check(path)
        plot.draw(made, path)
        assert path.read_bytes().startswith(b"\x89PNG" if name.endswith("png") else b"<?xml")
