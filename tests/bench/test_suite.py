from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from edgedec.bench import suite
from edgedec.bench.suite import Prompt
from edgedec.errors import UsageError

CATEGORIES = {
    "edit-code", "fix-spelling", "rewrite-data", "summarise", "extract", "answer", "translate", "math", "chat", "story",
    "list", "agent",
}  # fmt: skip


def write(folder: Path, *entries: object) -> Path:
    path = folder / "suite.jsonl"
    path.write_text("\n".join(e if isinstance(e, str) else json.dumps(e) for e in entries), encoding="utf-8")
    return path


def test_the_built_in_suite_has_forty_prompts_in_twelve_categories() -> None:
    prompts = suite.builtin()
    counts = Counter(prompt.category for prompt in prompts)
    assert len(prompts) == 40
    assert set(counts) == CATEGORIES
    assert min(counts.values()) >= 3
    assert len({prompt.id for prompt in prompts}) == 40
    assert sum(len(prompt.turns) > 1 for prompt in prompts) >= 10
    for prompt in prompts:
        assert all(turn == turn.strip() and len(turn) > 20 for turn in prompt.turns), prompt.id


def test_both_turns_of_spec_bench_are_read(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"question_id": 81, "category": "writing", "turns": ["Compose a post.", "Rewrite it.\n"], "reference": []},
        "",
        {"id": "x", "category": "qa", "turns": ["Why?"]},
        {"turns": ["What?"]},
    )
    assert suite.read(path) == [
        Prompt("81", "writing", ("Compose a post.", "Rewrite it.\n")),
        Prompt("x", "qa", ("Why?",)),
        Prompt("4", suite.NO_CATEGORY, ("What?",)),
    ]


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "7", '{"id": 1}', '{"turns": []}', '{"turns": "Why?"}', '{"turns": ["Why?", 3]}', '{"turns": [" "]}'],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, line: str) -> None:
    path = write(tmp_path, {"turns": ["Why?"]}, line)
    with pytest.raises(UsageError, match="Line 2 of") as caught:
        suite.read(path)
    assert "turns" in caught.value.hint


def test_files_that_are_no_suites(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        suite.read(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="cannot be read"):
        suite.read(tmp_path)
    with pytest.raises(UsageError, match="no prompts"):
        suite.read(write(tmp_path, "", " "))
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes('{"turns": ["café"]}'.encode("latin-1"))
    with pytest.raises(UsageError, match="UTF-8"):
        suite.read(latin)


def test_the_first_of_each_category() -> None:
    prompts = [Prompt(str(i), category, ("?",)) for i, category in enumerate("abacba")]
    assert [prompt.id for prompt in suite.first_of_each(prompts, 1)] == ["0", "1", "3"]
    assert [prompt.id for prompt in suite.first_of_each(prompts, 2)] == ["0", "1", "2", "3", "4"]
    assert suite.first_of_each(prompts, 9) == prompts
