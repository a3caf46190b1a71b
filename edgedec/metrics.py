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
    n_gen_tokens_per_pos: list[int] = field(default_factory=list)
    n_acc_tokens_per_pos: list[int] = field(default_factory=list)
    t_draft_us: float = 0.0

    def drafted_at(self, depth: int) -> None:
        """One token of this drafter was in a draft at ``depth`` (1: right after the root)."""
        self.n_gen_tokens += 1
        _count(self.n_gen_tokens_per_pos, depth)

    def accepted_at(self, depth: int) -> None:
        """One token of this drafter was accepted at ``depth``."""
        self.n_acc_tokens += 1
        _count(self.n_acc_tokens_per_pos, depth)

    def counts(self) -> DrafterCounts:
        """The public view."""
        return DrafterCounts(
            self.n_gen_tokens,
            self.n_acc_tokens,
            self.t_draft_us / 1e6,
            self.n_gen_tokens_per_pos,
            self.n_acc_tokens_per_pos,
        )


def _count(per_pos: list[int], depth: int) -> None:
    per_pos.extend([0] * (depth - len(per_pos)))
    per_pos[depth - 1] += 1
