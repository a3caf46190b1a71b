"""Suites of prompts: the built-in one, and files like Spec-Bench's."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from edgedec.errors import UsageError

NO_CATEGORY = "uncategorised"


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the user says in one conversation, turn by turn."""

    id: str
    category: str
    turns: tuple[str, ...]


def builtin() -> list[Prompt]:
    """Forty prompts in twelve categories, written for this package."""
    text = resources.files("edgedec.bench").joinpath("suite.toml").read_text(encoding="utf-8")
    return [
        Prompt(entry["id"], entry["category"], tuple(turn.strip() for turn in entry["turns"]))
        for entry in tomllib.loads(text)["prompt"]
    ]


def read(path: Path) -> list[Prompt]:
    """A file of JSON objects, one per line, with "turns" and, if wanted, "category" and "question_id" or "id": the
    layout of Spec-Bench. Raises UsageError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"The suite {path} cannot be read: {error.strerror}.", "Check the path.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"The suite {path} is not UTF-8 text.", _LAYOUT) from error
    prompts = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                prompts.append(_prompt(json.loads(line), str(number)))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise UsageError(f"Line {number} of {path} is not a prompt.", _LAYOUT) from error
    if not prompts:
        raise UsageError(f"The suite {path} has no prompts.", _LAYOUT)
    return prompts


_LAYOUT = 'Write one JSON object per line: {"category": "writing", "turns": ["first question", "second question"]}.'


def _prompt(entry: Mapping[str, Any], default_id: str) -> Prompt:
    turns = entry["turns"]
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn.strip() for turn in turns):
        raise ValueError("turns are a list of texts")
    name = entry.get("question_id", entry.get("id", default_id))
    return Prompt(str(name), str(entry.get("category", NO_CATEGORY)), tuple(turns))


def first_of_each(prompts: Iterable[Prompt], n: int) -> list[Prompt]:
    """The first ``n`` prompts of every category, in their order."""
    seen: Counter[str] = Counter()
    chosen = []
    for prompt in prompts:
        seen[prompt.category] += 1
        if seen[prompt.category] <= n:
            chosen.append(prompt)
    return chosen
