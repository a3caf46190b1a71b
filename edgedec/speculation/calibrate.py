"""From a drafter's raw scores to probabilities: learnt online from what the target really said.

Discounted counts per bucket (source, depth, matched length, raw score), with the raw score as the prior. Only nodes
that were *reached* (all their ancestors were right) are labels; counting the others would teach that deep nodes
fail. Every step labels the first node of every proposal, used or not, so a source is judged also while it is not
used.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from edgedec.types import Candidates

_DEPTHS = (1, 2, 3, 4)
_MATCHES = (1, 2, 3, 5, 9, 17, 33)
_SCORES = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 0.95)
_PRIOR_WEIGHT = 8.0  # observations that the raw score is worth
_KEEP = 0.98  # per observation of a bucket: a memory of about 50

Bucket = tuple[str, int, int, int]


class Calibrator:
    """P(node is right | its parent is) for the nodes of any drafter."""

    def __init__(self) -> None:
        self._counts: dict[Bucket, tuple[float, float]] = {}  # (hits, trials), discounted

    @staticmethod
    def _bucket(source: str, depth: int, match_len: float, score: float) -> Bucket:
        return (source, bisect_right(_DEPTHS, depth), bisect_right(_MATCHES, match_len), bisect_right(_SCORES, score))

    def probability(self, source: str, depth: int, match_len: float, score: float) -> float:
        """``depth`` 1 is the first token after the root; ``match_len``: context the proposal rests on, in tokens."""
        hits, trials = self._counts.get(self._bucket(source, depth, match_len, score), (0.0, 0.0))
        return (hits + _PRIOR_WEIGHT * score) / (trials + _PRIOR_WEIGHT)

    def probabilities(self, candidates: Candidates) -> list[float]:
        """One per node, in order."""
        return [
            self.probability(candidates.source, depth, features[0] if features else 0.0, score)
            for depth, features, score in zip(depths(candidates), candidates.features, candidates.scores, strict=True)
        ]

    def learn(self, candidates: Candidates, emitted: Sequence[int]) -> None:
        """The target went on with ``emitted``: label the nodes that were reached."""
        reached = {-1: 0}  # nodes on the emitted path, and their depth
        for i, parent in enumerate(candidates.parents):
            depth = reached.get(parent, -1) + 1
            if not 0 < depth <= len(emitted):
                continue
            hit = candidates.tokens[i] == emitted[depth - 1]
            if hit:
                reached[i] = depth
            features = candidates.features[i]
            bucket = self._bucket(candidates.source, depth, features[0] if features else 0.0, candidates.scores[i])
            hits, trials = self._counts.get(bucket, (0.0, 0.0))
            self._counts[bucket] = (_KEEP * hits + hit, _KEEP * trials + 1.0)

    def chance(self, candidates: Candidates) -> float:
        """Probability that the next token is among those proposed for it."""
        return sum(
            self.probability(candidates.source, 1, features[0] if features else 0.0, score)
            for parent, features, score in zip(candidates.parents, candidates.features, candidates.scores, strict=True)
            if parent < 0
        )


def depths(candidates: Candidates) -> list[int]:
    """Depth of each node; 1 for a child of the root."""
    found: list[int] = []
    for parent in candidates.parents:
        found.append(1 if parent < 0 else found[parent] + 1)
    return found
