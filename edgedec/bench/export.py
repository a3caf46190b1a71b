"""A bench run as an object for programs: ``--json``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from edgedec.bench.device import Device, limit
from edgedec.bench.record import Measured
from edgedec.bench.result import Bench
from edgedec.bench.summary import by_category, summarise


def as_object(bench: Bench) -> dict[str, Any]:
    """The object of ``--json``; its layout is documented in docs/bench.md and stable."""
    found: dict[str, Any] = {
        "machine": bench.machine,
        "model": bench.model,
        "settings": {
            "suite": bench.suite,
            "turns": bench.turns,
            "modes": bench.names,
            "n_threads": bench.n_threads,
            **asdict(bench.settings),
        },
        "note": bench.note,
        "cost_ms": _cost(bench.here),
        "noise": bench.noise,
        "against": bench.against,
        **_groups_object(bench, bench.here, bench.measured),
        "replay": {device.name: _replay_object(bench, device, cases) for device, cases in bench.replays},
        "skipped": [{"id": prompt_id, "turn": turn} for prompt_id, turn in bench.skipped],
        "prompts": [_case_object(one) for one in bench.measured],
    }
    return found


def _cost(device: Device | None) -> dict[str, float]:
    return {str(n): round(ms, 4) for n, ms in device.cost_ms.items()} if device else {}


def _groups_object(bench: Bench, device: Device | None, measured: Sequence[Measured]) -> dict[str, Any]:
    def group(cases: Sequence[Measured]) -> dict[str, Any]:
        names = [name for name in bench.names if all(name in one.answers for one in cases)]
        return {
            "answers": len(cases),
            "limit": _plain_number(limit(device, cases, bench.n_rows_max)) if device else None,
            "modes": {name: _plain_number(asdict(summarise(cases, name))) for name in names},
        }

    return {
        "overall": group(measured),
        "categories": {name: group(cases) for name, cases in by_category(measured).items()},
    }


def _replay_object(bench: Bench, device: Device, measured: Sequence[Measured]) -> dict[str, Any]:
    return {
        "description": device.description,
        "source": device.source,
        "cost_ms": _cost(device),
        **_groups_object(bench, device, measured),
    }


def _plain_number(value: Any) -> Any:
    """Rounded, and without what JSON has no word for."""
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain_number(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain_number(inner) for inner in value]
    return value


def _case_object(one: Measured) -> dict[str, Any]:
    return {
        "id": one.case.prompt_id,
        "category": one.case.category,
        "turn": one.case.turn,
        "prompt_tokens": len(one.case.ids),
        "modes": {
            name: {
                "finish_reason": answer.finish_reason,
                "tokens": answer.n_tokens,
                "seconds": round(answer.seconds, 6),
                "tokens_per_second": round(answer.rate, 3),
                "steps": _step_counts((step.n_rows, step.n_tokens) for step in answer.steps),
                "fork": _plain_number(asdict(one.forks[name])) if name in one.forks else None,
                "text": answer.text,
            }
            for name, answer in one.answers.items()
        },
    }


def _step_counts(steps: Iterable[tuple[int, int]]) -> list[list[int]]:
    """[rows, tokens, how many such steps], so that anybody can replay the run under a curve."""
    counts: dict[tuple[int, int], int] = {}
    for step in steps:
        counts[step] = counts.get(step, 0) + 1
    return [[n_rows, n_tokens, n] for (n_rows, n_tokens), n in sorted(counts.items())]
