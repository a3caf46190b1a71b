"""`edgedec.llama.base.Context` on numpy."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from edgedec.errors import AbortedError, ClosedError, DecodeError, NoSlotError, UsageError
from edgedec.llama.base import ContextParams, Logits, MemoryKind, MemoryTraits, Rows
from edgedec.llama.fake.memory import Memory

if TYPE_CHECKING:
    from edgedec.llama.fake.model import FakeModel

Delay = Callable[[int, int], float]
"""(rows in the piece, position of the first one) -> seconds."""


class FakeClock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        """Seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


class FakeContext:
    """Made by `FakeModel.new_context`, which keeps it in ``model.contexts``.

    For tests: ``n_decode_calls``, ``n_rows`` (evaluated), ``batches`` (every batch it was given), `refuse_seq_rm` and
    `fail_decode`.
    """

    def __init__(self, model: FakeModel, params: ContextParams) -> None:
        if params.n_ctx < 1 or params.n_batch < 1 or params.n_ubatch < 1 or not 1 <= params.n_seq_max <= 256:
            raise UsageError("n_ctx, n_batch, n_ubatch and n_seq_max must be positive (n_seq_max ≤ 256).")
        self._model = model
        self._closed = False
        self._n_ctx = params.n_ctx
        self._n_batch = min(params.n_batch, params.n_ctx)
        self._n_seq_max = params.n_seq_max
        self._n_outputs_max = min(params.n_outputs_max, self._n_batch)
        self._n_threads = params.n_threads or 1
        if self._n_seq_max > self._n_outputs_max:  # here llama.cpp ends the process
            raise UsageError(f"n_seq_max is {self._n_seq_max}, but a batch has only {self._n_outputs_max} outputs.")
        n_ubatch = min(params.n_ubatch, self._n_batch)
        if model.n_rs_seq and n_ubatch < model.n_rs_seq + 2:
            raise UsageError(f"{model.n_rs_seq} snapshots need n_ubatch ≥ {model.n_rs_seq + 2}; it is {n_ubatch}.")
        self._memory = Memory(
            model.kind,
            n_ctx=params.n_ctx,
            n_ubatch=n_ubatch,
            n_seq_max=params.n_seq_max,
            n_window=model.n_window,
            n_rs_seq=model.n_rs_seq,
            swa_full=params.swa_full,
            n_tail=model.rule.n_tail,
        )
        self._traits = self._find_traits(params)
        self._out: Logits = np.empty((self._n_outputs_max, model.n_vocab), np.float32)
        self._out_rows: dict[int, int] = {}  # row of the batch -> row of _out
        self._abort = threading.Event()
        self._seq_rm_refusals = 0
        self._decode_errors: list[DecodeError] = []
        self.n_decode_calls = 0
        self.n_rows = 0
        self.batches: list[Rows] = []

    def _find_traits(self, params: ContextParams) -> MemoryTraits:
        kind = self._model.kind
        if kind is MemoryKind.WINDOW and not params.swa_full:
            return MemoryTraits(kind, n_rollback=-1, n_window=self._model.n_window)
        if kind in (MemoryKind.RECURRENT, MemoryKind.HYBRID):
            return MemoryTraits(kind, n_rollback=self._model.n_rs_seq)
        return MemoryTraits(MemoryKind.FULL, n_rollback=-1, can_branch=params.n_seq_max > 1)

    def refuse_seq_rm(self, times: int = 1) -> None:
        """The next ``times`` calls of `seq_rm` change nothing and return False; -1: all, 0: none any more."""
        self._seq_rm_refusals = times

    def fail_decode(self, *errors: DecodeError) -> None:
        """The next calls of `decode` raise these, one each, and change nothing."""
        self._decode_errors.extend(errors)

    @property
    def n_ctx(self) -> int:
        return self._n_ctx

    @property
    def n_batch(self) -> int:
        return self._n_batch

    @property
    def n_seq_max(self) -> int:
        return self._n_seq_max

    @property
    def n_outputs_max(self) -> int:
        return self._n_outputs_max

    @property
    def n_threads(self) -> int:
        return self._n_threads

    @property
    def traits(self) -> MemoryTraits:
        return self._traits

    def _live(self) -> Memory:
        if self._closed or self._model.closed:
            raise ClosedError("The context has been closed.", "Load the model again.")
        return self._memory

    def decode(self, rows: Rows) -> None:
        memory = self._live()
        rows = Rows(tuple(rows.tokens), tuple(rows.positions), tuple(rows.seq_ids), tuple(rows.outputs))
        self.n_decode_calls += 1
        self.batches.append(rows)
        self._out[: len(self._out_rows)] = np.nan  # whoever kept a view of the last decode shall notice
        self._out_rows = {}
        if self._decode_errors:
            raise self._decode_errors.pop(0)
        self._check(rows)
        memory.check(rows)
        pieces = [(numbers, _pick(rows, numbers)) for numbers in memory.split(rows)]
        if not memory.fits([piece for _, piece in pieces]):
            raise NoSlotError(f"The KV memory has no room for {len(rows)} tokens.", "Use a larger n_ctx.", code=1)
        out_rows: dict[int, int] = {}
        for numbers, piece in pieces:
            self._spend(len(piece), piece.positions[0])
            if self._abort.is_set():
                memory.place_aborted(piece)
                raise AbortedError("Decoding was stopped.", code=2)
            sights = memory.place(piece)
            wanted = [i for i, output in enumerate(piece.outputs) if output]
            done = len(out_rows)
            if wanted:
                self._model.rule.fill(self._out[done : done + len(wanted)], sights)
                out_rows.update((numbers[i], done + j) for j, i in enumerate(wanted))
            self.n_rows += len(piece)
        self._out_rows = out_rows

    def _check(self, rows: Rows) -> None:
        n = len(rows)
        if not n == len(rows.positions) == len(rows.seq_ids) == len(rows.outputs):
            raise DecodeError("A batch has lists of different lengths.", code=-1)
        if not 1 <= n <= self._n_batch:
            raise DecodeError(f"A batch has {n} rows; 1 to {self._n_batch} are possible.", code=-1)
        if min(rows.tokens) < 0 or max(rows.tokens) >= self._model.n_vocab:
            raise DecodeError(f"A batch has a token id outside 0…{self._model.n_vocab - 1}.", code=-1)
        if sum(rows.outputs) > self._n_outputs_max:
            raise DecodeError(f"A batch asks for more than {self._n_outputs_max} rows of logits.", code=-1)

    def _spend(self, n_rows: int, n_past: int) -> None:
        if self._model.delay is not None:
            seconds = self._model.delay(n_rows, n_past)
            if self._model.sleep:
                self._abort.wait(seconds)
            else:
                self._model.clock.advance(seconds)

    def logits(self, row: int) -> Logits:
        self._live()
        if row not in self._out_rows:
            raise IndexError(f"row {row} of the last decode has no logits")
        view: Logits = self._out[self._out_rows[row]]
        return view

    def _seq(self, seq_id: int) -> int:
        if not 0 <= seq_id < self._n_seq_max:
            raise DecodeError(f"Sequence id {seq_id} does not exist (0…{self._n_seq_max - 1}).", code=-1)
        return seq_id

    def seq_rm(self, seq_id: int, p0: int, p1: int) -> bool:
        memory = self._live()
        if self._seq_rm_refusals:
            self._seq_rm_refusals -= self._seq_rm_refusals > 0
            return False
        return memory.seq_rm(seq_id if seq_id == -1 else self._seq(seq_id), p0, p1)

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        self._live().seq_cp(self._seq(src), self._seq(dst), p0, p1)

    def seq_keep(self, seq_id: int) -> None:
        self._live().seq_keep(self._seq(seq_id))

    def seq_pos_min(self, seq_id: int) -> int:
        return self._live().pos_min(self._seq(seq_id))

    def seq_pos_max(self, seq_id: int) -> int:
        return self._live().pos_max(self._seq(seq_id))

    def clear(self) -> None:
        self._live().clear()

    def state_save(self, seq_id: int) -> bytes:
        saved = self._live().save(self._seq(seq_id))
        return json.dumps({"model": self._model.fingerprint, **saved}).encode()

    def state_load(self, seq_id: int, data: bytes) -> None:
        memory = self._live()
        try:
            saved = json.loads(data)
            model = saved["model"]
        except (ValueError, KeyError, TypeError) as error:
            raise DecodeError("The saved state is damaged.", "Evaluate the text again.") from error
        if model != self._model.fingerprint:
            raise DecodeError("The saved state belongs to another model.", "Evaluate the text again.")
        if not memory.load(self._seq(seq_id), saved):
            raise DecodeError("The saved state does not fit into the context.", "Use a larger n_ctx.")

    def abort(self) -> None:
        self._abort.set()

    def clear_abort(self) -> None:
        self._abort.clear()

    def close(self) -> None:
        self._closed = True


def _pick(rows: Rows, numbers: list[int]) -> Rows:
    if len(numbers) == len(rows):
        return rows
    return Rows(
        [rows.tokens[i] for i in numbers],
        [rows.positions[i] for i in numbers],
        [rows.seq_ids[i] for i in numbers],
        [rows.outputs[i] for i in numbers],
    )
