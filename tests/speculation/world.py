"""A machine and a text without a model: the token at position i is i, a step takes what a table says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from edgedec.speculation.policy import PLAIN, Policy
from edgedec.types import Candidates, Draft

Cost = Callable[[int], float]
"""Rows → milliseconds."""

Source = Callable[[int], Candidates]
"""What a drafter proposes where the text has so many tokens."""

N_MAX = 32

CURVES = {  # multiples of T(1)
    "cpu": {1: 1, 2: 1.67, 3: 2.12, 4: 2.55, 5: 3.21, 6: 3.69, 8: 4.37, 12: 6.18, 16: 8.0, 24: 11.6, 33: 15.8},
    "cpu f32": {1: 1, 2: 1.39, 3: 1.54, 4: 1.65, 5: 1.78, 6: 1.93, 8: 2.36, 12: 2.91, 16: 3.58, 24: 4.82, 33: 6.3},
    "cuda": {1: 1, 2: 1.07, 3: 1.12, 5: 1.28, 6: 1.55, 7: 1.61, 8: 1.73, 9: 3.9, 16: 4.0, 33: 4.9},
    "metal": {1: 1, 2: 1.71, 4: 3.1, 8: 4.83, 15: 5.9, 16: 6.0, 32: 6.1, 33: 9.0},
    "laptop": {1: 1, 2: 1.06, 4: 1.15, 8: 1.35, 16: 1.8, 33: 3.1},
    "flat": {1: 1, 33: 1},
    "linear": {1: 1, 33: 33},
}


def cost_of(points: dict[int, float], plain_ms: float = 10.0) -> Cost:
    """Straight lines between the points, the last one's value beyond them."""
    widths = sorted(points)

    def cost(n: int) -> float:
        above = next((w for w in widths if w >= n), widths[-1])
        below = max(w for w in widths if w <= n)
        share = (n - below) / (above - below) if above > below else 0.0
        return plain_ms * (points[below] + share * (points[above] - points[below]))

    return cost


def full_table(cost: Cost) -> dict[int, float]:
    """Every width that a step can have."""
    return {n: cost(n) for n in range(1, N_MAX + 2)}


def chain(
    position: int, n_right: int, n: int = 16, *, score: float = 0.9, match_len: float = 5.0, source: str = "a"
) -> Candidates:
    """``n`` nodes after the token at ``position - 1``, of which the first ``n_right`` are true."""
    return Candidates(
        source,
        [position + i if i < n_right else -1 - i for i in range(n)],
        list(range(-1, n - 1)),
        [score] * n,
        [(match_len,)] * n,
    )


def walk(draft: Draft, position: int, n_most: int) -> list[int]:
    """What the step brings: true nodes, then one token more."""
    children = {(parent, token): i for i, (parent, token) in enumerate(zip(draft.parents, draft.tokens, strict=True))}
    node, emitted = -1, [position]
    while (node := children.get((node, emitted[-1]), -2)) != -2 and len(emitted) < n_most:
        emitted.append(position + len(emitted))
    return emitted


@dataclass(frozen=True)
class Step:
    position: int
    n_emitted: int
    n_drafted: int
    ms: float
    looked: bool


@dataclass
class Answer:
    steps: list[Step] = field(default_factory=list)

    @property
    def n_tokens(self) -> int:
        return sum(step.n_emitted for step in self.steps)

    @property
    def ms(self) -> float:
        return sum(step.ms for step in self.steps)

    def after(self, position: int) -> Answer:
        return Answer([step for step in self.steps if step.position >= position])

    @property
    def ms_per_token(self) -> float:
        return self.ms / self.n_tokens


def answer(
    policy: Policy,
    cost: Cost,
    sources: Source | Sequence[Source],
    n_tokens: int,
    *,
    look_ms: float = 0.0,
    stretch: Callable[[int], float] = lambda position: 1.0,
) -> Answer:
    """Decode ``n_tokens``, asking policy and drafters as the engine does. ``stretch``: position → factor on a step."""
    drafters = [sources] if callable(sources) else sources
    policy.begin()
    done = Answer()
    position = 0
    while position < n_tokens:
        n_useful = min(policy.n_max, n_tokens - position - 1)
        proposals = [source(position) for source in drafters] if n_useful > 0 else []
        draft = policy.choose(proposals, n_useful) if proposals else PLAIN
        assert len(draft) <= n_useful or not draft
        emitted = walk(draft, position, n_tokens - position)
        draft_ms = look_ms if proposals else 0.0
        step_ms = cost(1 + len(draft)) * stretch(position) + draft_ms
        policy.learn(proposals, draft, emitted, step_ms, draft_ms)
        done.steps.append(Step(position, len(emitted), len(draft), step_ms, bool(proposals)))
        position += len(emitted)
    return done
