"""Counters, named as llama.cpp names them. Rates and averages are derived, never stored."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgedec.types import DrafterCounts


@dataclass(slots=True)
class DrafterMetrics:
    """What one drafter did: tokens it put into drafts (``gen``) and of those the accepted ones (``acc``)."""

    n_call_draft: int = 0
    n_gen_tokens: int = 0
    n_acc_tokens: int = 0
    n_acc_tokens_per_pos: list[int] = field(default_factory=list)
    t_draft_us: float = 0.0

    def accepted_at(self, depth: int) -> None:
        """One token of this drafter was accepted at ``depth`` (1: right after the root)."""
        self.n_acc_tokens += 1
        missing = depth - len(self.n_acc_tokens_per_pos)
        self.n_acc_tokens_per_pos.extend([0] * missing)
        self.n_acc_tokens_per_pos[depth - 1] += 1

    def counts(self) -> DrafterCounts:
        """The public view."""
        return DrafterCounts(self.n_gen_tokens, self.n_acc_tokens, self.t_draft_us / 1e6)
