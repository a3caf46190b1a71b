"""From measured cases to numbers. Pure.

Two speed-ups are computed, because they answer two questions. The ratio of sums says how much sooner the whole work is
done: (tokens of the mode / its seconds) / (tokens of plain / its seconds). The median of pairs says what a typical
answer gains, and one answer that a neighbour disturbed does not move it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from edgedec.bench.record import PLAIN, Answer, Measured
from edgedec.types import DrafterCounts


@dataclass(frozen=True, slots=True)
class Summary:
    """One mode on a group of cases. Speed-ups are over plain decoding of the same cases; 0: nothing to compare. Numbers
    that need steps are None where these are not known."""

    n_answers: int
    speedup: float  # ratio of sums
    speedup_median: float  # of pairs
    speedup_quartiles: tuple[float, float]
    speedup_range: tuple[float, float]
    tokens_per_second: float
    tokens_per_step: float | None
    drafted: int
    accepted: int
    acceptance_rate: float
    acceptance_per_pos: tuple[float, ...]  # accepted of drafted; [0]: right after the root
    drafters: Mapping[str, DrafterCounts]
    drafting_share: float | None  # of the time of steps, spent on looking for guesses
    outside_ms: float | None  # median of a step's time outside llama_decode
    forks: int
    near_ties: int  # of the forks
    largest_gap: float | None  # of the forks; None if there are none, or no token is known


def by_category(measured: Iterable[Measured]) -> dict[str, list[Measured]]:
    """The cases of each category, in the order of their first one."""
    groups: dict[str, list[Measured]] = {}
    for one in measured:
        groups.setdefault(one.case.category, []).append(one)
    return groups


def summarise(measured: Sequence[Measured], name: str) -> Summary:
    """What the mode ``name`` did."""
    answers = [one.answers[name] for one in measured]
    ratios = pair_ratios(measured, name)
    plain = rate_of(one.answers[PLAIN] for one in measured)
    rate = rate_of(answers)
    steps = [step for answer in answers for step in answer.steps]
    step_ms = sum(step.ms for step in steps)
    counts = add_counts(answer.drafters for answer in answers)
    drafted, accepted = sum(c.drafted for c in counts.values()), sum(c.accepted for c in counts.values())
    forks = [one.forks[name] for one in measured if name in one.forks]
    gaps = [fork.gap for fork in forks if fork.gap is not None]
    return Summary(
        n_answers=len(answers),
        speedup=rate / plain if plain else 0.0,
        speedup_median=statistics.median(ratios) if ratios else 0.0,
        speedup_quartiles=_quartiles(ratios),
        speedup_range=(min(ratios), max(ratios)) if ratios else (0.0, 0.0),
        tokens_per_second=rate,
        tokens_per_step=sum(step.n_tokens for step in steps) / len(steps) if steps else None,
        drafted=drafted,
        accepted=accepted,
        acceptance_rate=accepted / drafted if drafted else 0.0,
        acceptance_per_pos=_acceptance_per_pos(counts.values()),
        drafters=counts,
        drafting_share=sum(step.draft_ms for step in steps) / step_ms if step_ms else None,
        outside_ms=statistics.median(step.ms - step.decode_ms for step in steps) if steps else None,
        forks=len(forks),
        near_ties=sum(fork.is_near_tie is True for fork in forks),
        largest_gap=max(gaps, default=None),
    )


def pair_ratios(measured: Iterable[Measured], name: str) -> list[float]:
    """Speed over plain speed of each case where both were measured."""
    pairs = ((one.answers[name].rate, one.answers[PLAIN].rate) for one in measured)
    return [rate / plain for rate, plain in pairs if rate > 0 and plain > 0]


def rate_of(answers: Iterable[Answer]) -> float:
    """All tokens over all seconds; 0 if nothing was counted."""
    counted = [answer for answer in answers if answer.rate > 0]
    seconds = sum(answer.seconds for answer in counted)
    return sum(answer.n_tokens for answer in counted) / seconds if seconds else 0.0


def add_counts(parts: Iterable[Mapping[str, DrafterCounts]]) -> dict[str, DrafterCounts]:
    """The sums, by drafter."""
    total: dict[str, DrafterCounts] = {}
    for part in parts:
        for name, counts in part.items():
            old = total.get(name, DrafterCounts())
            total[name] = DrafterCounts(
                old.drafted + counts.drafted,
                old.accepted + counts.accepted,
                old.time_s + counts.time_s,
                _add(old.drafted_per_pos, counts.drafted_per_pos),
                _add(old.accepted_per_pos, counts.accepted_per_pos),
            )
    return total


def _acceptance_per_pos(counts: Iterable[DrafterCounts]) -> tuple[float, ...]:
    drafted: list[int] = []
    accepted: list[int] = []
    for one in counts:
        drafted, accepted = _add(drafted, one.drafted_per_pos), _add(accepted, one.accepted_per_pos)
    accepted = _add(accepted, [0] * len(drafted))
    return tuple(a / d if d else 0.0 for a, d in zip(accepted, drafted, strict=True))


def _add(a: Sequence[int], b: Sequence[int]) -> list[int]:
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    return [x + (shorter[i] if i < len(shorter) else 0) for i, x in enumerate(longer)]


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return (values[0], values[0]) if values else (0.0, 0.0)
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high
