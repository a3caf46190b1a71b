"""What the KV memory holds for one sequence id, kept in step with llama.cpp and never trusted without a check.

The invariant: ``tokens`` are exactly the tokens whose cells are in memory, at positions 0, 1, 2, … Whoever needs
more of them re-evaluates. A rollback that the memory refuses, or that did not do what was asked, empties it: the
next step then evaluates everything again, slower but right.
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
        self.tokens: list[int] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def reuse(self, prompt: Sequence[int]) -> int:
        """Keep the longest prefix of ``prompt`` that is in memory, less its last token (whose logits are needed), and
        drop the rest. Returns how many tokens were kept."""
        self.trim(min(common_prefix(self.tokens, prompt), len(prompt) - 1))
        return len(self.tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """These tokens were decoded behind the others."""
        self.tokens.extend(tokens)

    def trim(self, n: int) -> bool:
        """Drop all cells from position ``n`` on. False: it could not be done, and the memory is now empty."""
        if n >= len(self.tokens):
            return True
        if n == 0:
            self.clear()
            return True
        if self._context.seq_rm(self._seq_id, n, -1) and self._is_intact(n):
            del self.tokens[n:]
            return True
        log.info("the memory could not go back from %d to %d tokens; it is evaluated again", len(self.tokens), n)
        self.clear()
        return False

    def _is_intact(self, n: int) -> bool:
        """Whether positions up to ``n - 1`` are there, as far back as the next token will look."""
        window = self._context.traits.n_window
        oldest_needed = max(0, n - window) if window else 0
        return (
            self._context.seq_pos_max(self._seq_id) == n - 1
            and 0 <= self._context.seq_pos_min(self._seq_id) <= oldest_needed
        )

    def resync(self) -> None:
        """After a failed or aborted decode: go back to what is certain to be in memory."""
        known = len(self.tokens)
        held = self._context.seq_pos_max(self._seq_id) + 1
        if held == known and (known == 0 or self._is_intact(known)):
            return
        if held > known > 0 and self._context.seq_rm(self._seq_id, known, -1) and self._is_intact(known):
            return
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._context.clear()
        self.tokens.clear()
