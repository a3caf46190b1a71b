"""From proposals to the draft of one step, and from the outcome to better judgement. No clock, no model: times come in.

One `Policy` belongs to one loaded model: its cost curve and its calibration outlive requests. `begin` opens the account
of a new answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.speculation.calibrate import Calibrator
from edgedec.speculation.cost import CostCurve
from edgedec.speculation.gate import EPSILON, Gate
from edgedec.speculation.select import best_set, merge, to_draft
from edgedec.types import Candidates, Draft

_MARGIN = 1.03  # expected gain below this is within the error of the estimates
_CONTROL_EVERY = 64  # steps between plain ones, so that the baseline stays a measurement
_LOOK_WEIGHT = 0.1  # of the latest step in the running mean

PLAIN = Draft()


class Policy:
    """Decides how much to guess.

    Args:
        cost: T(n) of this model on this machine.
        n_max: nodes in a draft at most.
        leaves_max: branches at most; 1 means chains.
    """

    def __init__(self, cost: CostCurve, *, n_max: int, leaves_max: int = 1) -> None:
        self.cost = cost
        self._n_max = n_max
        self._leaves_max = leaves_max
        self._calibrator = Calibrator()
        self._gate = Gate()
        self._since_plain = 0
        self._look_ms = 0.0  # what looking for guesses costs, used or not

    def begin(self) -> None:
        """A new answer starts: its account is empty. What was learnt stays."""
        self.cost.restart()
        self._gate = Gate()
        self._since_plain = 0

    @property
    def n_max(self) -> int:
        """Nodes worth looking for now. 0 while not even one could be afforded: looking would only add to the debt,
        unless it is so cheap that the account recovers all the same. Then it goes on, for what it teaches."""
        plain_ms = self.cost.plain_ms
        is_cheap = self._look_ms <= EPSILON * plain_ms
        return self._n_max if is_cheap or self._affordable(1, plain_ms) else 0

    def choose(self, proposals: Sequence[Candidates], n_max: int) -> Draft:
        """The draft of the next step, at most ``n_max`` nodes; empty if guessing is not expected to pay."""
        usable = [c for c in proposals if len(c)]
        if not usable or n_max < 1 or self._since_plain >= _CONTROL_EVERY or not self.cost.is_grounded:
            return PLAIN
        plain_ms = self.cost.plain_ms
        affordable = self._affordable(min(n_max, self._n_max), plain_ms)
        if affordable < 1:
            return PLAIN
        if sum(self._calibrator.chance(c) for c in usable) < self._least_chance(affordable, plain_ms):
            return PLAIN  # most steps of a text without repetition end here
        trie = merge([(c, self._calibrator.probabilities(c)) for c in usable])
        nodes, rate = best_set(trie, self.cost.predict, n_max=affordable, leaves_max=self._leaves_max)
        if not nodes or rate * plain_ms < _MARGIN:
            return PLAIN
        return to_draft(trie, nodes)

    def _least_chance(self, n_max: int, plain_ms: float) -> float:
        """What the first guessed tokens must be worth together, if all behind them were certain, for any width to
        pay."""
        return min((_MARGIN * self.cost.predict(n + 1) / plain_ms - 1) / n for n in range(1, n_max + 1))

    def _affordable(self, n_max: int, plain_ms: float) -> int:
        """The widest draft whose total failure the account can bear."""
        slack = self._gate.slack_ms(plain_ms)
        n = n_max
        while n > 0 and self.cost.predict(n + 1) - plain_ms > slack:
            n -= 1
        return n

    def learn(
        self,
        proposals: Sequence[Candidates],
        draft: Draft,
        emitted: Sequence[int],
        step_ms: float,
        draft_ms: float,
    ) -> None:
        """The outcome of a step.

        Args:
            proposals: all that was proposed, used or not.
            draft: what was checked.
            emitted: the tokens that the step brought.
            step_ms: the whole step, drafting included.
            draft_ms: the part of it that a runtime without drafters would not have spent.
        """
        for candidates in proposals:
            if len(candidates):
                self._calibrator.learn(candidates, emitted)
        if proposals:
            self._look_ms += _LOOK_WEIGHT * (draft_ms - self._look_ms)
        if len(draft):
            self._since_plain += 1
            self.cost.observe(1 + len(draft), step_ms)
            disturbance = self.cost.disturbance(1 + len(draft), step_ms)  # plain decoding would have met it as well
            self._gate.settle(len(emitted) * self.cost.plain_ms + disturbance, step_ms)
        else:
            self._since_plain = 0
            self.cost.observe(1, step_ms - draft_ms)
            self._gate.settle(step_ms - draft_ms, step_ms)

    @property
    def plain_ms(self) -> float:
        """The baseline: milliseconds of a plain step now."""
        return self.cost.plain_ms

    @property
    def speedup(self) -> float:
        """Of the current answer over plain decoding, measured; 0 before its first step."""
        return self._gate.speedup
