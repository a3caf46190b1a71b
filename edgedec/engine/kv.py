"""What the KV memory holds for one sequence id, kept in step with llama.cpp and never trusted without a check.

The invariant: ``tokens`` are exactly the tokens whose cells are in memory, at positions 0, 1, 2, … Whoever needs
more of them re-evaluates. A rollback that the memory refuses, or that did not do what was asked, empties it: the
next step then evaluates everything again, slower but right. A running state (recurrent and hybrid models) says nothing
about itself: it goes back by a snapshot only, and only within the batch that was decoded last, which is what its
snapshots were taken of.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from edgedec.llama.base import Context

log = logging.getLogger("edgedec.engine")


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    n = min(len(a), len(b))
    for i in range(n):
        if a[i] != b[i]:
            return i
    return n


class KvSlot:
    """The cells of one sequence id."""

    def __init__(self, context: Context, seq_id: int = 0) -> None:
        self._context = context
        self._seq_id = seq_id
        self._n_last = 0  # tokens of the last batch, while its snapshots are as it left them
        self.tokens: list[int] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def reuse(self, prompt: Sequence[int]) -> int:
        """Keep the longest prefix of ``prompt`` that is in memory, less its last token (whose logits are needed), and
        drop the rest. Returns how many tokens were kept."""
        self.trim(min(common_prefix(self.tokens, prompt), len(prompt) - 1))
        return len(self.tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """These tokens were decoded behind the others, in one batch."""
        self.tokens.extend(tokens)
        self._n_last = len(tokens)

    def trim(self, n: int) -> bool:
        """Drop all cells from position ``n`` on. False: it could not be done, and the memory is now empty."""
        if n >= len(self.tokens):
            return True
        if n == 0:
            self.clear()
            return True
        n_rollback, n_out = self._context.traits.n_rollback, len(self.tokens) - n
        has_snapshot = n_rollback < 0 or n_out <= min(n_rollback, self._n_last - 1)
        if has_snapshot and self._context.seq_rm(self._seq_id, n, -1) and self._is_intact(n):
            del self.tokens[n:]
            self._n_last = 0
            return True
        log.info("the memory could not go back from %d to %d tokens; it is evaluated again", len(self.tokens), n)
        self.clear()
        return False

    def _is_intact(self, n: int) -> bool:
        """Whether positions up to ``n - 1`` are there, as far back as the next token will look."""
        traits = self._context.traits
        if self._context.seq_pos_max(self._seq_id) != n - 1:
            return False
        if traits.n_rollback >= 0:
            return True  # a running state has no oldest position
        oldest_needed = max(0, n - traits.n_window) if traits.n_window else 0
        return 0 <= self._context.seq_pos_min(self._seq_id) <= oldest_needed

    def resync(self) -> None:
        """After a failed or aborted decode: go back to what is certain to be in memory."""
        known = len(self.tokens)
        if known and self._context.traits.n_rollback < 0:
            held = self._context.seq_pos_max(self._seq_id) + 1
            is_trimmed = held <= known or self._context.seq_rm(self._seq_id, known, -1)
            if is_trimmed and self._is_intact(known):
                return
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._context.clear()
        self.tokens.clear()
        self._n_last = 0
