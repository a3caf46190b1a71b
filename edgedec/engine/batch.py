"""From a sequence and its draft to the rows of one decode. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.llama.base import Rows
from edgedec.types import Draft


def prefill_rows(seq_id: int, tokens: Sequence[int], n_past: int) -> Rows:
    """Rows that only fill the memory: ``tokens`` follow ``n_past`` earlier ones; no logits."""
    n = len(tokens)
    return Rows(tokens, range(n_past, n_past + n), ((seq_id,),) * n, (False,) * n)


def decode_rows(seq_id: int, pending: Sequence[int], n_past: int, draft: Draft) -> Rows:
    """One step. ``pending`` are the tokens not yet in memory, the root last; the draft's nodes follow it.

    Logits are asked for at the root (row ``len(pending) - 1``) and at each node (the rows after it, in order). Drafts
    are chains here: node i sits i + 1 positions behind the root.
    """
    if not draft.is_chain:
        raise ValueError("only chains can be batched on one sequence id")
    n_before, n = len(pending) - 1, len(pending) + len(draft)
    return Rows(
        (*pending, *draft.tokens),
        range(n_past, n_past + n),
        ((seq_id,),) * n,
        (False,) * n_before + (True,) * (1 + len(draft)),
    )
