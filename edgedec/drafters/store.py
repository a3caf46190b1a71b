"""Texts on disk that the `history` drafter may use: past answers, and documents that the user added.

One folder per vocabulary. It holds at most two files that count, those with the highest number N:

    index-N   everything up to some moment, sorted for searching (`Contexts`); never changed
    tail-N    what came since, appended record by record

An append is one write at the end of the tail. Everything else (merging a tail that has grown, adding and removing
documents, letting old answers go) writes ``index-(N+1)`` beside them, gives it its name when it is complete, and
deletes what has a lower number: removed text is gone from all files. So a process may be killed at any moment, and
readers need no lock. Writers take turns by a lock file.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import secrets
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from edgedec.drafters.contexts import DEPTH, Contexts, Tokens, reversed_text, sorted_positions
from edgedec.errors import EdgedecError, UsageError

Kind = Literal["answer", "document"]

LIMIT = 2_000_000
"""Tokens that a store holds, not counting a tail that is about to be merged."""

TAIL_LIMIT = 32_768
"""Tokens in a tail that is worth merging. Sorting as many anew takes a few milliseconds."""

_LAYOUT = 1
_LOCK_SECONDS = 5.0  # to wait for another writer: merging takes about half a second at most
_RECORD = struct.Struct("<4sIII")  # magic, bytes of JSON, tokens, checksum of both
_RECORD_MAGIC = b"edt1"
_FOOTER = struct.Struct("<8sIIIIII")  # magic, layout, byte order, tokens of text, positions, bytes of JSON, checksum
_FOOTER_MAGIC = b"edgedec\n"
_BYTE_ORDER = 1 if sys.byteorder == "little" else 2


@dataclass(frozen=True, slots=True)
class Document:
    """A text of the store. ``name`` is a document's path; ``owner`` what an answer belongs to and goes with; ``model``
    what wrote or tokenised it; ``time`` in seconds since 1970."""

    kind: Kind
    tokens: Tokens = field(compare=False, repr=False)
    name: str = ""
    owner: str = ""
    model: str = ""
    time: int = field(default_factory=lambda: int(time.time()))
    id: str = field(default_factory=lambda: secrets.token_hex(6))


class Store:
    """The texts of one vocabulary.

    What another process or object changes is seen after the next `refresh`. Methods raise OSError when the disk fails,
    and EdgedecError for a file that is damaged or a lock that stays taken.

    Args:
        folder: created when something is stored.
        limit: tokens to hold. Documents may take three quarters; answers beyond it go, oldest first.
    """

    def __init__(self, folder: Path, *, limit: int = LIMIT) -> None:
        self.folder = folder
        self.limit = limit
        self._generation = -1
        self._index: _Index | None = None
        self._tail: list[Document] = []
        self._tail_end = 0  # bytes of the tail that are whole records
        self._recent: Contexts | None = None

    # ---- reading

    def refresh(self) -> None:
        """Look at the disk again. Takes microseconds when nothing has changed."""
        for attempts_left in (2, 1, 0):
            try:
                self._follow(self._newest())
                return
            except FileNotFoundError:  # a writer has just replaced it
                if not attempts_left:
                    raise

    def _newest(self) -> int:
        return max((number for number, _ in self._files()), default=0)

    def _files(self) -> list[tuple[int, str]]:
        """(number, name) of every index and tail."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        split = ((name.partition("-"), name) for name in names)
        return [(int(number), name) for (kind, _, number), name in split
                if kind in ("index", "tail") and number.isdecimal()]  # fmt: skip

    def _follow(self, generation: int) -> None:
        if generation != self._generation:
            self._index = _Index(self._path("index", generation)) if generation else None
            self._generation, self._tail, self._tail_end, self._recent = generation, [], 0, None
        with contextlib.suppress(FileNotFoundError):
            path = self._path("tail", generation)
            if path.stat().st_size > self._tail_end:
                fresh, self._tail_end = _read_records(path, self._tail_end)
                if fresh:
                    self._tail += fresh
                    self._recent = None

    def _path(self, kind: str, generation: int) -> Path:
        return self.folder / f"{kind}-{generation}"

    def contexts(self) -> list[Contexts]:
        """What was there at the last `refresh`, the most recent part first."""
        if self._recent is None and self._tail:
            self._recent = Contexts.of([document.tokens for document in self._tail])
        parts = (self._recent, self._index.contexts if self._index else None)
        return [part for part in parts if part is not None]

    def documents(self) -> list[Document]:
        """Everything, oldest first."""
        self.refresh()
        return self._documents()

    def _documents(self) -> list[Document]:
        return [*(self._index.documents() if self._index else ()), *self._tail]

    @property
    def n_bytes(self) -> int:
        """Size on disk."""
        return sum(self.folder.joinpath(name).stat().st_size for _, name in self._files())

    # ---- writing

    def append(self, document: Document) -> None:
        """Store a text. It is safe from a crash of this process when this returns."""
        with self._locked():
            path = self._path("tail", self._generation)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
            with open(handle, "r+b") as file:
                file.truncate(self._tail_end)  # what a writer left that was killed
                file.seek(self._tail_end)
                file.write(_record(document))

    def add(self, documents: Sequence[Document]) -> None:
        """Store documents; those of the same name are replaced. All or, if they do not fit (UsageError), none."""
        names = {document.name for document in documents}

        def change(held: list[Document]) -> list[Document]:
            kept = [d for d in held if d.kind != "document" or d.name not in names]
            n_tokens = sum(len(d.tokens) for d in (*kept, *documents) if d.kind == "document")
            if n_tokens > self.document_limit:
                raise UsageError(
                    f"The documents would have {n_tokens:,} tokens; {self.document_limit:,} are possible.",
                    "Add fewer, or remove some: edgedec corpus list shows them.",
                )
            return [*kept, *documents]

        self._rewrite(change)

    @property
    def document_limit(self) -> int:
        """Tokens that documents may take."""
        return self.limit * 3 // 4

    def remove(self, unwanted: Callable[[Document], bool]) -> list[Document]:
        """Remove the texts for which ``unwanted`` is true from all files, and return them."""
        removed: list[Document] = []

        def change(held: list[Document]) -> list[Document] | None:
            removed.extend(d for d in held if unwanted(d))
            gone = {d.id for d in removed}
            return [d for d in held if d.id not in gone] if removed else None

        if self._files():
            self._rewrite(change)
        return removed

    @property
    def n_tail(self) -> int:
        """Tokens in the tail, as last seen."""
        return sum(len(d.tokens) for d in self._tail)

    def merge(self, n_tail: int = TAIL_LIMIT) -> None:
        """Make one index of index and tail if the tail has at least ``n_tail`` tokens. Takes about 0.4 s with two
        million tokens."""
        self.refresh()
        if self.n_tail >= n_tail:
            self._rewrite(lambda held: held if self.n_tail >= n_tail else None)

    def _rewrite(self, change: Callable[[list[Document]], list[Document] | None]) -> None:
        """Replace the documents by what ``change`` makes of them; None: leave everything as it is."""
        with self._locked():
            documents = change(self._documents())
            if documents is None:
                return
            handle, temporary = tempfile.mkstemp(dir=self.folder, suffix=".tmp")
            try:
                with open(handle, "wb") as file:
                    _write_index(file.write, self._fitting(documents))
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(temporary, self._path("index", self._generation + 1))
            except BaseException:
                os.unlink(temporary)
                raise
            self.refresh()
            self._sweep()

    def _fitting(self, documents: list[Document]) -> list[Document]:
        """Without answers that came again, word for word, and without the oldest answers beyond the limit."""
        room = self.limit - sum(len(d.tokens) for d in documents if d.kind == "document")
        kept: list[Document] = []
        known: set[bytes] = set()
        for document in reversed(documents):
            if document.kind == "answer":
                content = document.tokens.tobytes()
                if content in known or len(document.tokens) > room:
                    continue
                known.add(content)
                room -= len(document.tokens)
            kept.append(document)
        return kept[::-1]

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Be the only writer, with an up-to-date view."""
        from filelock import FileLock, Timeout  # brings asyncio, which reading does not need

        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with FileLock(self.folder / "lock", timeout=_LOCK_SECONDS, mode=0o600):
                self.refresh()
                self._sweep()
                yield
        except Timeout as error:
            raise EdgedecError(f"Another process is writing to {self.folder}.", "Try again when it is done.") from error

    def _sweep(self) -> None:
        """Delete what no longer counts: older files, and work that was cut short."""
        old = [name for number, name in self._files() if number < self._generation]
        for path in (*map(self.folder.joinpath, old), *self.folder.glob("*.tmp")):
            with contextlib.suppress(OSError):  # Windows keeps a file that a reader has mapped; the next writer tries
                path.unlink()


def stores(folder: Path) -> list[Store]:
    """All stores, one per vocabulary, in a folder of such."""
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    found = [Store(folder / name) for name in names if (folder / name).is_dir()]
    return [store for store in found if store.documents()]


def _label(document: Document) -> dict[str, str | int]:
    return {name: getattr(document, name) for name in ("id", "kind", "name", "owner", "model", "time")}


def _record(document: Document) -> bytes:
    label = json.dumps(_label(document)).encode()
    body = label + document.tokens.astype("<u4").tobytes()
    return _RECORD.pack(_RECORD_MAGIC, len(label), len(document.tokens), zlib.crc32(body)) + body


def _read_records(path: Path, start: int) -> tuple[list[Document], int]:
    """The documents from byte ``start`` on, and where the last whole one ends."""
    with path.open("rb") as file:
        file.seek(start)
        data = file.read()
    found: list[Document] = []
    at = 0
    while at + _RECORD.size <= len(data):
        magic, n_label, n_tokens, checksum = _RECORD.unpack_from(data, at)
        begin = at + _RECORD.size
        end = begin + n_label + 4 * n_tokens
        if magic != _RECORD_MAGIC or end > len(data) or zlib.crc32(data[begin:end]) != checksum:
            break
        tokens = np.frombuffer(data, "<u4", n_tokens, begin + n_label).astype(np.uint32)
        found.append(Document(tokens=tokens, **json.loads(data[begin : begin + n_label])))
        at = end
    return found, start + at


def _write_index(write: Callable[[bytes], object], documents: Sequence[Document]) -> None:
    """An index: the text, its sorted positions, the labels, and a footer that says how much there is of each."""
    text = reversed_text([d.tokens for d in documents])
    positions = sorted_positions(text)
    labels = json.dumps([{**_label(d), "n_tokens": len(d.tokens)} for d in documents]).encode()
    body = text.astype(">u4").tobytes()
    sizes = (len(text), len(positions), len(labels))
    checksum = 0
    for part in (body, positions.tobytes(), labels):
        checksum = zlib.crc32(part, checksum)
        write(part)
    write(_FOOTER.pack(_FOOTER_MAGIC, _LAYOUT, _BYTE_ORDER, *sizes, checksum))


class _Index:
    """An index file, mapped into memory and checked: a wrong token would fail the request that it is proposed in."""

    def __init__(self, path: Path) -> None:
        damaged = EdgedecError(f"{path} is damaged.", f"Delete {path.parent}: it only holds material for guesses.")
        with path.open("rb") as file:
            try:
                whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                footer = _FOOTER.unpack(whole[-_FOOTER.size :])
            except (ValueError, struct.error) as error:  # empty, or shorter than a footer
                raise damaged from error
        magic, layout, byte_order, n_text, n_positions, n_labels, checksum = footer
        if magic != _FOOTER_MAGIC:
            raise damaged
        if (layout, byte_order) != (_LAYOUT, _BYTE_ORDER):
            raise EdgedecError(
                f"{path} was written by another version of edgedec, or on another kind of machine.",
                f"Use that one, or delete {path.parent}: it only holds material for guesses.",
            )
        self._text_end = 4 * n_text
        self._labels = slice(4 * (n_text + n_positions), 4 * (n_text + n_positions) + n_labels)
        body = memoryview(whole)[: -_FOOTER.size]
        if len(body) != self._labels.stop or zlib.crc32(body) != checksum:
            raise damaged
        self._map = whole
        self.contexts = Contexts(whole, body[self._text_end : self._labels.start].cast("I"))

    def documents(self) -> list[Document]:
        """Oldest first."""
        text = np.frombuffer(self._map[: self._text_end], ">u4")[::-1].astype(np.uint32)
        found = []
        at = DEPTH + 1
        for label in json.loads(self._map[self._labels]):
            n_tokens = label.pop("n_tokens")
            found.append(Document(tokens=text[at : at + n_tokens], **label))
            at += n_tokens + 1
        return found
