"""Reading a suite of prompts: one JSON object per line with "category" and "turns", as in Spec-Bench."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Item:
    """The first turn of one conversation."""

    id: str
    category: str
    text: str


def read(path: Path) -> list[Item]:
    """All items of a file, in order."""
    items = []
    for i, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        if line.strip():
            entry = json.loads(line)
            items.append(Item(str(entry.get("question_id", i)), entry.get("category", "all"), entry["turns"][0]))
    return items


def spread(items: list[Item], n: int) -> list[Item]:
    """``n`` items taken in turn from every category, so that a small sample has some of each."""
    queues: dict[str, Iterator[Item]] = {}
    for category in dict.fromkeys(item.category for item in items):
        queues[category] = iter([item for item in items if item.category == category])
    chosen: list[Item] = []
    while queues and len(chosen) < n:
        for category in list(queues):
            item = next(queues[category], None)
            if item is None:
                del queues[category]
            elif len(chosen) < n:
                chosen.append(item)
    return chosen
