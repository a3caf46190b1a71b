"""The memory of a fake context: which batches it takes, and what each row sees.

Written after llama.cpp's ``llama_batch_allocr::init`` and ``init_batch``, ``seq_*`` of ``llama_kv_cache``,
``llama_kv_cache_iswa``, ``llama_memory_recurrent`` and ``llama_memory_hybrid``.

Differences: sizes are not padded to 256; hybrid memory refuses rows with several ids (llama.cpp would cut such a batch
into one piece per level of the tree, which nobody wants); recurrent batches of many long sequences are cut into pieces
in a simpler order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from edgedec.errors import DecodeError
from edgedec.llama.base import MemoryKind, Rows
from edgedec.llama.fake.cells import Cells, Group, Sight, States, mix_array


class Memory:
    """The whole memory of a context: attention caches, recurrent states, or both, as its kind has them."""

    def __init__(
        self,
        kind: MemoryKind,
        *,
        n_ctx: int,
        n_ubatch: int,
        n_seq_max: int,
        n_window: int,
        n_rs_seq: int,
        swa_full: bool,
        n_tail: int,
    ) -> None:
        self.n_ubatch = n_ubatch
        self.n_seq_max = n_seq_max
        self.n_tail = n_tail
        self.caches: list[Cells] = []
        self.states: States | None = None
        if kind is not MemoryKind.RECURRENT:
            self.caches.append(Cells(n_ctx, n_seq_max, 2 if kind is MemoryKind.FULL else 1))
        if kind is MemoryKind.WINDOW:
            size = n_ctx if swa_full else min(n_ctx, n_window * n_seq_max + n_ubatch)
            self.caches.append(Cells(size, n_seq_max, 1, n_window))
        if kind in (MemoryKind.RECURRENT, MemoryKind.HYBRID):
            self.states = States(n_seq_max, n_rs_seq)

    @property
    def _parts(self) -> list[Cells | States]:
        return [*self.caches, *([self.states] if self.states else [])]

    def pos_min(self, seq_id: int) -> int:
        found = [cells.pos_min(seq_id) for cells in self.caches[-1:]]
        return max(found + ([self.states.pos(seq_id)] if self.states else []))

    def pos_max(self, seq_id: int) -> int:
        found = [cells.pos_max(seq_id) for cells in self.caches[-1:]]
        return min(found + ([self.states.pos(seq_id)] if self.states else []))

    def seq_rm(self, seq_id: int, p0: int, p1: int) -> bool:
        if self.states and not self.states.seq_rm(seq_id, p0, p1):
            return False
        for cells in self.caches:
            cells.seq_rm(seq_id, p0, p1)
        return True

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        for cells in self.caches:
            cells.seq_cp(src, dst, p0, p1)
        if self.states:
            self.states.seq_cp(src, dst)

    def seq_keep(self, seq_id: int) -> None:
        for part in self._parts:
            part.seq_keep(seq_id)

    def clear(self) -> None:
        for part in self._parts:
            part.clear()

    def check(self, rows: Rows) -> None:
        """llama.cpp's rules for positions and sequence ids; DecodeError with code -1 if one is broken."""
        placed: dict[int, list[int]] = {}
        for i, (pos, ids) in enumerate(zip(rows.positions, rows.seq_ids, strict=True)):
            if not ids or min(ids) < 0 or max(ids) >= self.n_seq_max:
                raise DecodeError(f"Row {i} has sequence ids {ids} of {self.n_seq_max}.", code=-1)
            if pos < 0:
                raise DecodeError(f"Row {i} has position {pos}.", code=-1)
            for s in set(ids):
                placed.setdefault(s, []).append(pos)
        for s, positions in placed.items():
            first, last, before = min(positions), max(positions), self.pos_max(s)
            if before >= 0 and first != before + 1:
                raise DecodeError(f"Sequence {s} ends at {before}, but the batch starts at {first}.", code=-1)
            if last - first + 1 > len(set(positions)):
                raise DecodeError(f"Positions of sequence {s} have a gap.", code=-1)
            if positions != sorted(positions):
                raise DecodeError(f"Positions of sequence {s} decrease.", code=-1)
        for ids in {tuple(ids) for ids in rows.seq_ids if len(ids) > 1}:
            if len({(self.pos_min(s), self.pos_max(s)) for s in ids}) > 1:
                raise DecodeError(f"Sequences {ids} share a row, but have diverged.", code=-1)

    def split(self, rows: Rows) -> list[list[int]]:
        """Row numbers of the pieces (ubatches) that are evaluated one after the other."""
        if self.states:
            return list(self._split_equal(rows, 1 + self.states.n_rs_seq if self.states.n_rs_seq else 0))
        return [list(range(i, min(i + self.n_ubatch, len(rows)))) for i in range(0, len(rows), self.n_ubatch)]

    def _split_equal(self, rows: Rows, n_keep: int) -> Iterator[list[int]]:
        """The same number of rows of every sequence; the last ``n_keep`` of a sequence stay together, because the
        snapshots of a rollback are written by one piece."""
        waiting: dict[int, list[int]] = {}
        for i, ids in enumerate(rows.seq_ids):
            waiting.setdefault(ids[0], []).append(i)
        while waiting:
            seqs = list(waiting)[: self.n_ubatch]
            n = min(min(len(waiting[s]) for s in seqs), self.n_ubatch // len(seqs))
            whole = [s for s in seqs if not 0 < len(waiting[s]) - n < n_keep]
            if not whole:
                left = len(waiting[seqs[0]])
                n = left if left <= self.n_ubatch else left - n_keep
            seqs = whole or seqs[:1]
            yield [i for s in seqs for i in waiting[s][:n]]
            for s in seqs:
                waiting[s] = waiting[s][n:]
            waiting = {s: queue for s, queue in waiting.items() if queue}

    def fits(self, pieces: Sequence[Rows]) -> bool:
        """Whether all pieces find room, tried on a copy if there are several."""
        if self.states and any(len(ids) > 1 for rows in pieces for ids in rows.seq_ids):
            return False
        if len(pieces) == 1:
            return all(cells.find(len(pieces[0])) is not None for cells in self.caches)
        trials = [cells.copy() for cells in self.caches]
        return all(cells.place(rows) is not None for cells in trials for rows in pieces)

    def place(self, rows: Rows) -> list[Sight]:
        """Append rows that fit; what each of them that asked for output knows."""
        slots = [cells.place(rows) for cells in self.caches]
        wanted = [i for i, output in enumerate(rows.outputs) if output]
        if self.states:
            states = self.states.place(rows, self.n_tail)
            if not self.caches:
                return [states[i] for i in wanted]
            hidden = np.array([state.key for state in states], np.uint64)
        else:
            hidden = mix_array(((np.array(rows.tokens, np.int64) << 32) + np.array(rows.positions)).astype(np.uint64))
        groups: list[Group] = []
        # The layers with the window come first, so that the others remember what it showed.
        for cells, slot in zip(self.caches[::-1], slots[::-1], strict=True):
            assert slot is not None
            groups = cells.groups(rows)
            for layer in range(len(cells.values)):
                hidden = cells.attend(layer, slot, groups, hidden)
        tails = self.caches[0].tails(groups, self.n_tail)
        return [Sight(int(hidden[i]), tails[i]) for i in wanted]

    def place_aborted(self, rows: Rows) -> None:
        """What ``llama_decode`` leaves behind when these rows were stopped: it takes their positions back from one id
        of each row only (the last, with the usual C++ library), and not at all where the memory refuses that."""
        for cells in self.caches:
            cells.place(rows)
        if self.states:
            self.states.place(rows, self.n_tail, computed=False)
        first: dict[int, int] = {}
        for ids, pos in zip(rows.seq_ids, rows.positions, strict=True):
            first[ids[-1]] = min(first.get(ids[-1], pos), pos)
        for seq_id, pos in first.items():
            self.seq_rm(seq_id, pos, -1)

    def save(self, seq_id: int) -> dict[str, Any]:
        """One sequence as plain lists, for `load`."""
        caches = []
        for cells in self.caches:
            held = np.flatnonzero(cells.seq[seq_id])
            caches.append([cells.token[held].tolist(), cells.pos[held].tolist(), cells.values[:, held].tolist()])
        state = [self.states.pos(seq_id), *self.states.current(seq_id)] if self.states else None
        return {"caches": caches, "state": state}

    def load(self, seq_id: int, saved: dict[str, Any]) -> bool:
        """Put a sequence back, under any id. False: no room; the sequence is empty then."""
        self.seq_rm(seq_id, -1, -1)
        for cells, (tokens, positions, values) in zip(self.caches, saved["caches"], strict=True):
            if not tokens:
                continue
            slot = cells.place(Rows(tokens, positions, [(seq_id,)] * len(tokens), [False] * len(tokens)))
            if slot is None:
                self.seq_rm(seq_id, -1, -1)
                return False
            cells.values[:, slot] = np.array(values, np.uint64)
        if self.states and saved["state"][0] >= 0:
            pos, key, tail = saved["state"]
            self.states.restore(seq_id, pos, Sight(key, tuple(tail)))
        return True
