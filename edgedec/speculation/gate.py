"""Never slower: guessing may only spend what the clock allows.

Time is kept against plain decoding. A step that checked guesses earns ``tokens × plain`` and costs what it took; a
plain step earns what it took less the time spent on looking for guesses. The difference is credit. A step with
guesses may at worst bring one token for the price of many rows, so it is allowed only while that worst case fits
into the credit plus a small allowance. Then, whatever drafters do, an answer is never more than ``EPSILON`` of its
time plus the allowance behind plain decoding (up to the error of the baseline). Looking is spending too: the policy
stops it while not even the smallest guess could be afforded, unless ``EPSILON`` alone pays for it.
"""

from __future__ import annotations

from dataclasses import dataclass

EPSILON = 0.01
_ALLOWANCE_STEPS = 3.0  # plain steps
_ALLOWANCE_MS = 50.0  # at most


@dataclass(slots=True)
class Gate:
    """The account of one answer, in milliseconds."""

    earned_ms: float = 0.0  # what the tokens so far would have cost plainly
    spent_ms: float = 0.0

    def settle(self, earned_ms: float, spent_ms: float) -> None:
        """A step's tokens would have cost ``earned_ms`` plainly, and cost ``spent_ms``."""
        self.earned_ms += earned_ms
        self.spent_ms += spent_ms

    def slack_ms(self, plain_ms: float) -> float:
        """What the next step may lose in the worst case."""
        allowance = min(_ALLOWANCE_STEPS * plain_ms, _ALLOWANCE_MS)
        return self.earned_ms - self.spent_ms + EPSILON * self.spent_ms + allowance

    @property
    def speedup(self) -> float:
        """Plain time over real time so far; 0 before the first step."""
        return self.earned_ms / self.spent_ms if self.spent_ms > 0 else 0.0
