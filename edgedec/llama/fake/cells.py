"""The two stores behind `edgedec.llama.fake.memory`: cells of attention, and running states.

Written after llama.cpp's ``llama_kv_cache`` and ``llama_memory_recurrent``: what they refuse is refused here, what they
spoil in silence is spoilt here too. What a real cell holds (keys and values, per layer) is replaced by 64-bit hashes:
in the first layer of the token and its position, in the next of what the row saw there, so that a row that saw wrong
cells when it was evaluated stays wrong. A recurrent state is a hash chain over the tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edgedec.llama.base import Rows

Hashes = npt.NDArray[np.uint64]

INT_MAX = 2**31 - 1
M64 = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    """splitmix64 of one number, 64 bits in and out (Steele, Lea, Flood 2014)."""
    x = (x + GOLDEN) & M64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & M64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & M64
    return x ^ (x >> 31)


_U30, _U27, _U31 = np.uint64(30), np.uint64(27), np.uint64(31)
_GOLDEN, _MUL1, _MUL2 = np.uint64(GOLDEN), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mix_array(x: Hashes) -> Hashes:
    """`mix` of every element."""
    x = x + _GOLDEN
    x = (x ^ (x >> _U30)) * _MUL1
    x = (x ^ (x >> _U27)) * _MUL2
    return x ^ (x >> _U31)


class Sight(NamedTuple):
    """What one row knows: a hash of everything that it sees, and the last tokens in order, its own at the end."""

    key: int
    tail: tuple[int, ...]


def _span(p0: int, p1: int) -> tuple[int, int]:
    return max(p0, 0), INT_MAX if p1 < 0 else p1


class View(NamedTuple):
    """Cells in the order of their positions."""

    cells: npt.NDArray[np.intp]
    at: npt.NDArray[np.int32]


class Group(NamedTuple):
    """Rows of a batch that carry the same ids. ``odd``: cells about which the ids disagree."""

    numbers: list[int]
    positions: npt.NDArray[np.int_]
    view: View
    odd: View | None


class Cells:
    """The cache of ``n_layers`` layers of attention (llama_kv_cache, one stream). ``n_window`` 0: no sliding window."""

    def __init__(self, size: int, n_seq_max: int, n_layers: int, n_window: int = 0) -> None:
        self.n_window = n_window
        self.pos = np.full(size, -1, np.int32)
        self.token = np.zeros(size, np.int32)
        self.values = np.zeros((n_layers, size), np.uint64)
        self.seq = np.zeros((n_seq_max, size), np.bool_)
        self.head = 0

    def copy(self) -> Cells:
        other = copy.copy(self)
        for name in ("pos", "token", "values", "seq"):
            setattr(other, name, getattr(self, name).copy())
        return other

    def pos_min(self, seq_id: int) -> int:
        held = self.pos[self.seq[seq_id]]
        return int(held.min()) if held.size else -1

    def pos_max(self, seq_id: int) -> int:
        held = self.pos[self.seq[seq_id]]
        return int(held.max()) if held.size else -1

    def _free(self, which: npt.NDArray[np.bool_]) -> None:
        """Empty these cells; the search for room starts at the first of them if that is earlier than now."""
        if which.any():
            self.pos[which] = -1
            self.seq[:, which] = False
            self.head = min(self.head, int(which.argmax()))

    def seq_rm(self, seq_id: int, p0: int, p1: int) -> None:
        p0, p1 = _span(p0, p1)
        inside = (self.pos >= p0) & (self.pos < p1)
        if seq_id >= 0:
            inside &= self.seq[seq_id]
            self.seq[seq_id, inside] = False
            inside &= ~self.seq.any(axis=0)
        self._free(inside)

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        p0, p1 = _span(p0, p1)
        self.seq[dst] |= self.seq[src] & (self.pos >= p0) & (self.pos < p1)

    def seq_keep(self, seq_id: int) -> None:
        kept = self.seq[seq_id].copy()
        self._free((self.pos >= 0) & ~kept)
        self.seq[:] = False
        self.seq[seq_id] = kept

    def clear(self) -> None:
        self.pos[:] = -1
        self.seq[:] = False
        self.head = 0

    def _out_of_window(self) -> npt.NDArray[np.bool_]:
        """Cells that their only owner will never look at again. Shared ones are never given up."""
        single = self.seq.sum(axis=0) == 1
        out = np.zeros(single.shape, np.bool_)
        for s, held in enumerate(self.seq):
            out |= held & single & (self.pos_max(s) + 1 - self.pos >= self.n_window)
        return out

    def find(self, n: int) -> npt.NDArray[np.intp] | None:
        """Room for ``n`` rows, not necessarily in a line, searched from the head and around; None if there is not."""
        usable = self.pos < 0
        n_used = usable.size - int(np.count_nonzero(usable))
        if self.n_window:
            usable |= self._out_of_window()
        found = np.flatnonzero(usable)
        if found.size < n:
            return None
        head = 0 if self.head > n_used + 2 * n else self.head
        start = int(np.searchsorted(found, head))
        return np.concatenate((found[start:], found[:start]))[:n]

    def place(self, rows: Rows) -> npt.NDArray[np.intp] | None:
        """Give each row a cell and return their numbers; None: no room, nothing was changed."""
        slot = self.find(len(rows))
        if slot is None:
            return None
        lost: dict[int, int] = {}  # sequence -> largest position that is overwritten
        for i in slot[self.pos[slot] >= 0]:
            owner = int(self.seq[:, i].argmax())
            lost[owner] = max(lost.get(owner, -1), int(self.pos[i]))
        self.pos[slot] = rows.positions
        self.token[slot] = rows.tokens
        self.seq[:, slot] = False
        for i, ids in zip(slot.tolist(), rows.seq_ids, strict=True):
            for s in ids:
                self.seq[s, i] = True
        for s, top in lost.items():  # no holes: everything below an overwritten position goes as well
            if self.pos_min(s) <= top:
                self.seq_rm(s, 0, top + 1)
        self.head = int(slot[-1]) + 1
        return slot

    def groups(self, rows: Rows) -> list[Group]:
        """Rows that were placed, by their ids, with what each group can see.

        llama.cpp takes one of several ids, and which one depends on the C++ library's hash set. Cells that only some
        of the ids carry are therefore a mistake of the caller; they lead to something that no single id would see.
        """
        numbers: dict[tuple[int, ...], list[int]] = {}
        for i, ids in enumerate(rows.seq_ids):
            numbers.setdefault(ids, []).append(i)
        found = []
        for ids, of in numbers.items():
            carried, odd = self.seq[ids[0]], None
            if len(ids) > 1:
                all_ids = self.seq[list(ids)]
                carried = np.logical_and.reduce(all_ids)
                disputed = np.logical_or.reduce(all_ids) & ~carried
                odd = self._view(disputed) if disputed.any() else None
            found.append(Group(of, np.array([rows.positions[i] for i in of]), self._view(carried), odd))
        return found

    def _view(self, which: npt.NDArray[np.bool_]) -> View:
        held = np.flatnonzero(which)
        at = self.pos[held]
        order = np.argsort(at, kind="stable")
        return View(held[order], at[order])

    def attend(self, layer: int, slot: npt.NDArray[np.intp], groups: Sequence[Group], hidden: Hashes) -> Hashes:
        """One layer: store what the rows are, and return what they become by all that they see, which is cells that
        carry their id, not later than themselves, inside the window."""
        values = self.values[layer]
        values[slot] = mix_array(hidden)
        became = np.empty_like(hidden)
        for numbers, positions, view, odd in groups:
            seen = self._sums(values, view, positions)
            if odd is not None:
                seen += np.uint64(3) * self._sums(values, odd, positions)
            became[numbers] = hidden[numbers] ^ seen
        return mix_array(became)

    def _sums(self, values: Hashes, view: View, positions: npt.NDArray[np.int_]) -> Hashes:
        """Per position, the sum over the cells that are in its reach."""
        sums = np.zeros(view.cells.size + 1, np.uint64)
        np.cumsum(values[view.cells], out=sums[1:])
        total = sums[view.at.searchsorted(positions, "right")]
        if self.n_window:
            total -= sums[view.at.searchsorted(positions - self.n_window, "right")]
        return total

    def tails(self, groups: Sequence[Group], n: int) -> dict[int, tuple[int, ...]]:
        """The last ``n`` tokens that each row sees, its own at the end."""
        found = {}
        for group in groups:
            ends = group.view.at.searchsorted(group.positions, "right").tolist()
            tokens = self.token[group.view.cells[max(0, min(ends) - n) :]].tolist()
            first = group.view.cells.size - len(tokens)
            for i, end in zip(group.numbers, ends, strict=True):
                found[i] = tuple(tokens[max(0, end - n - first) : end - first])
        return found


NOTHING = Sight(0, ())
_GARBAGE = Sight(mix(0xBAD), ())


@dataclass(slots=True)
class _StateCell:
    """One running state. ``planes[i]``: the state i tokens ago, if it was written then."""

    pos: int
    planes: list[Sight]
    seqs: set[int] = field(default_factory=set)


class States:
    """The recurrent part (llama_memory_recurrent): per sequence one state and ``n_rs_seq`` snapshots before it.

    A decode of n rows writes only the newest n of the ``1 + n_rs_seq`` planes; a rollback to an older one is granted
    all the same and leads to a stale state. At most one rollback can be pending.
    """

    def __init__(self, n_seq_max: int, n_rs_seq: int) -> None:
        self.n_rs_seq = n_rs_seq
        self.tail: list[_StateCell | None] = [None] * n_seq_max
        self.pending = [0] * n_seq_max  # rollback that the next decode starts from

    def pos(self, seq_id: int) -> int:
        cell = self.tail[seq_id]
        return cell.pos if cell else -1

    def _leave(self, seq_id: int) -> None:
        cell = self.tail[seq_id]
        if cell:
            cell.seqs.discard(seq_id)
            self.tail[seq_id] = None

    def seq_rm(self, seq_id: int, p0: int, p1: int) -> bool:
        p0, p1 = _span(p0, p1)
        if not 0 <= seq_id < len(self.tail):
            return False  # -1 as well, even for everything
        if (p0, p1) == (0, INT_MAX):
            self.pending[seq_id] = 0
        cell = self.tail[seq_id]
        if cell and p0 <= cell.pos < p1:
            if p0 == 0:
                self._leave(seq_id)
            elif self.pending[seq_id] or cell.pos - p0 + 1 > self.n_rs_seq:
                return False
            else:
                self.pending[seq_id] = cell.pos - p0 + 1
                cell.pos = p0 - 1
        return True

    def seq_cp(self, src: int, dst: int) -> None:
        if src == dst:
            return
        self._leave(dst)
        cell = self.tail[src]
        if cell:
            cell.seqs.add(dst)
            self.tail[dst] = cell

    def seq_keep(self, seq_id: int) -> None:
        for s in range(len(self.tail)):
            if s != seq_id:
                self._leave(s)

    def clear(self) -> None:
        self.tail = [None] * len(self.tail)
        self.pending = [0] * len(self.tail)

    def current(self, seq_id: int) -> Sight:
        cell, pending = self.tail[seq_id], self.pending[seq_id]
        if cell is None:
            return _GARBAGE if pending else NOTHING  # only the newest plane of a new state is zeroed
        return cell.planes[pending]

    def _own(self, seq_id: int, pos: int) -> _StateCell:
        """The cell of this sequence alone, after ``pos``. Snapshots do not follow when a shared cell is left."""
        cell = self.tail[seq_id]
        if cell is None or cell.seqs != {seq_id}:
            self._leave(seq_id)
            cell = _StateCell(pos, [_GARBAGE] * (1 + self.n_rs_seq), {seq_id})
            self.tail[seq_id] = cell
        cell.pos = pos
        self.pending[seq_id] = 0
        return cell

    def restore(self, seq_id: int, pos: int, state: Sight) -> None:
        self._own(seq_id, pos).planes[0] = state

    def place(self, rows: Rows, n_tail: int, computed: bool = True) -> list[Sight]:
        """Run the rows through the states; the state after each. Not ``computed``: positions move, states do not."""
        sights: list[Sight] = []
        run: dict[int, list[Sight]] = {}
        for token, pos, (seq_id, *_) in zip(rows.tokens, rows.positions, rows.seq_ids, strict=True):
            state = run[seq_id][-1] if seq_id in run else self.current(seq_id)
            state = Sight(mix(state.key ^ mix((token << 32) + pos)), (*state.tail, token)[-n_tail:])
            run.setdefault(seq_id, []).append(state)
            sights.append(state)
        last = {ids[0]: pos for ids, pos in zip(rows.seq_ids, rows.positions, strict=True)}
        for seq_id, states in run.items():
            cell = self._own(seq_id, last[seq_id])
            if computed:
                newest = states[::-1][: 1 + self.n_rs_seq]
                cell.planes[: len(newest)] = newest
        return sights
