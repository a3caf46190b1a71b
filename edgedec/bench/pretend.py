"""A context that knows the text: the engine runs on it as on any other, and decoding takes what a curve says.

The rows that the engine reads are those of a known answer, so it writes that answer again. Time is the real clock's,
for all that the engine does itself, plus the curve's for every decode.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgedec.bench.device import Device
from edgedec.llama.base import Logits, MemoryTraits, Rows

N_KEPT = 64  # of the likeliest tokens of a row; drafters look at fewer

_FLOOR = 20.0  # logits below the likeliest token: all that was not kept
_AHEAD = 1.0  # logits by which a token leads that was said though another was likelier


@dataclass(frozen=True, slots=True)
class Text:
    """An answer as it was. ``tokens``: with the one that ended it. ``likely`` and ``logits``, each [tokens, kept]: the
    likeliest tokens of the row that chose each of them; nothing is kept where nobody will look."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    likely: npt.NDArray[np.int32]
    logits: npt.NDArray[np.float32]


class PretendContext:
    """`edgedec.llama.base.Context`. Say with `play` which text comes; rows that are not of it must not be read."""

    def __init__(
        self,
        device: Device,
        *,
        n_ctx: int,
        n_vocab: int,
        n_rows_max: int,
        n_seq_max: int,
        traits: MemoryTraits,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._device = device
        self._n_ctx = n_ctx
        self._n_rows_max = n_rows_max
        self._n_seq_max = n_seq_max
        self._traits = traits
        self._clock = clock
        self._ahead_s = 0.0  # of the real clock
        self._text: Text | None = None
        self._held: dict[int, set[int]] = {}  # sequence id -> positions in memory
        self._positions: Sequence[int] = ()  # of the last batch
        self._row = np.empty(n_vocab, np.float32)

    def now(self) -> float:
        """Seconds."""
        return self._clock() + self._ahead_s

    def play(self, text: Text) -> None:
        """From now on this text is being written."""
        self._text = text

    def decode(self, rows: Rows) -> None:
        for ids, position in zip(rows.seq_ids, rows.positions, strict=True):
            for seq_id in ids:
                self._held.setdefault(seq_id, set()).add(position)
        self._positions = rows.positions
        n_rows = sum(rows.outputs)
        if n_rows:  # reading a prompt is not what is studied
            self._ahead_s += self._device.ms(n_rows) / 1e3

    def logits(self, row: int) -> Logits:
        assert self._text is not None
        began = self._clock()
        i = self._positions[row] + 1 - len(self._text.prompt)
        likely, logits = self._text.likely[i], self._text.logits[i]
        best = float(logits.max(initial=0.0))
        self._row.fill(best - _FLOOR)
        self._row[likely] = logits
        said = self._text.tokens[i]
        if int(self._row.argmax()) != said:  # it was drawn, or nothing was kept
            self._row[said] = best + _AHEAD
        self._ahead_s -= self._clock() - began  # llama.cpp gives a view for nothing
        return self._row

    def seq_rm(self, seq_id: int, p0: int, p1: int) -> bool:
        for held in self._held.values() if seq_id < 0 else (self._held.get(seq_id, set()),):
            held.difference_update([p for p in held if p >= p0 and (p1 < 0 or p < p1)])
        return True

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        found = {p for p in self._held.get(src, ()) if p >= p0 and (p1 < 0 or p < p1)}
        self._held.setdefault(dst, set()).update(found)

    def seq_keep(self, seq_id: int) -> None:
        self._held = {seq_id: self._held.get(seq_id, set())}

    def seq_pos_min(self, seq_id: int) -> int:
        return min(self._held.get(seq_id, ()), default=-1)

    def seq_pos_max(self, seq_id: int) -> int:
        return max(self._held.get(seq_id, ()), default=-1)

    def clear(self) -> None:
        self._held.clear()

    def state_save(self, seq_id: int) -> bytes:
        raise NotImplementedError("a text that is known need not be saved")

    def state_load(self, seq_id: int, data: bytes) -> None:
        raise NotImplementedError("a text that is known need not be saved")

    def abort(self) -> None:
        """Nothing here takes long."""

    def clear_abort(self) -> None:
        """See `abort`."""

    def close(self) -> None:
        """Nothing to free."""

    @property
    def n_ctx(self) -> int:
        return self._n_ctx

    @property
    def n_batch(self) -> int:
        return self._n_ctx

    @property
    def n_seq_max(self) -> int:
        return self._n_seq_max

    @property
    def n_outputs_max(self) -> int:
        return self._n_rows_max

    @property
    def n_threads(self) -> int:
        return 1

    @property
    def traits(self) -> MemoryTraits:
        return self._traits
