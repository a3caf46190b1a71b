"""The interface that the engine sees: `Model` and `Context`, implemented on llama.cpp and on numpy (`fake`).

Rows, positions and sequence ids are llama.cpp's. One sequence id is enough for a chain; a tree gives each leaf its own
id and tags a row with the ids of all leaves below it (DESIGN §3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]


class MemoryKind(StrEnum):
    """What the memory of a model keeps, and therefore what it can undo."""

    FULL = "full"  # attention over everything: any tail can be removed, sequences can branch
    WINDOW = "window"  # sliding window: a tail can be removed, cells before the window are gone
    HYBRID = "hybrid"  # attention and recurrent layers
    RECURRENT = "recurrent"  # only a running state


@dataclass(frozen=True, slots=True)
class MemoryTraits:
    """Asked of a loaded model, never guessed from its name.

    ``n_rollback``: how many tokens at the end of a sequence can be removed again; -1 means any number.
    ``n_window``: size of the sliding window in tokens, 0 if there is none.
    ``can_branch``: several sequences may share cells and diverge (tree batches).
    """

    kind: MemoryKind
    n_rollback: int
    n_window: int = 0
    can_branch: bool = False


@dataclass(frozen=True, slots=True)
class ContextParams:
    """Spelled as llama.cpp spells them. ``n_threads`` 0: physical cores. ``n_seq_max``: leaves that a tree may have."""

    n_ctx: int = 4096
    n_batch: int = 512
    n_ubatch: int = 512
    n_seq_max: int = 1
    n_threads: int = 0
    n_threads_batch: int = 0
    n_outputs_max: int = 64
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn: str = "auto"  # auto | on | off
    swa_full: bool = False


@dataclass(frozen=True, slots=True)
class Rows:
    """One batch: parallel sequences of equal length. ``seq_ids[i]`` lists the ids of row i, the one that decides what
    it sees first. ``outputs[i]`` asks for logits of row i."""

    tokens: Sequence[int]
    positions: Sequence[int]
    seq_ids: Sequence[tuple[int, ...]]
    outputs: Sequence[bool]

    def __len__(self) -> int:
        return len(self.tokens)


class Context(Protocol):
    """KV memory plus compute buffers of one model. Owned by one thread at a time, except `abort`."""

    @property
    def n_ctx(self) -> int: ...
    @property
    def n_batch(self) -> int: ...
    @property
    def n_seq_max(self) -> int: ...
    @property
    def n_outputs_max(self) -> int: ...
    @property
    def n_threads(self) -> int: ...
    @property
    def traits(self) -> MemoryTraits: ...

    def decode(self, rows: Rows) -> None:
        """Evaluate the rows and append them to their sequences.

        Raises:
            NoSlotError: no room in the KV memory; nothing was changed.
            AbortedError: `abort` was called; the memory may hold some of the rows.
            DecodeError: anything else (``code`` is llama.cpp's); the memory may hold some of the rows.
        """

    def logits(self, row: int) -> Logits:
        """Logits of row ``row`` of the last decode, shape [n_vocab]: a view, valid until the next decode.

        Raises IndexError if that row did not ask for output.
        """

    def seq_rm(self, seq_id: int, p0: int, p1: int) -> bool:
        """Remove positions [p0, p1) of a sequence (-1: open end; seq_id -1: any). False: the memory cannot; it is
        unchanged then."""

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        """Let sequence ``dst`` share the cells [p0, p1) of ``src``."""

    def seq_keep(self, seq_id: int) -> None:
        """Forget every other sequence."""

    def seq_pos_min(self, seq_id: int) -> int:
        """Smallest position that is really there (-1: empty). With a sliding window larger than 0 once it moved."""

    def seq_pos_max(self, seq_id: int) -> int:
        """Largest position (-1: empty)."""

    def clear(self) -> None:
        """Forget everything."""

    def state_save(self, seq_id: int) -> bytes:
        """The memory of one sequence as bytes."""

    def state_load(self, seq_id: int, data: bytes) -> None:
        """Restore what `state_save` gave. Raises DecodeError if it does not fit."""

    def abort(self) -> None:
        """From any thread: make a running or the next `decode` stop early with AbortedError."""

    def clear_abort(self) -> None:
        """Allow decoding again."""

    def close(self) -> None:
        """Free everything; a second call does nothing."""


class Model(Protocol):
    """A loaded GGUF file: vocabulary and metadata. Safe to read from several threads."""

    @property
    def path(self) -> Path: ...
    @property
    def name(self) -> str: ...
    @property
    def architecture(self) -> str: ...
    @property
    def n_params(self) -> int: ...
    @property
    def n_bytes(self) -> int: ...
    @property
    def n_ctx_train(self) -> int: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def metadata(self) -> Mapping[str, str]: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def bos_id(self) -> int | None: ...
    @property
    def eos_id(self) -> int | None: ...
    @property
    def eog_ids(self) -> frozenset[int]: ...
    @property
    def fingerprint(self) -> str:
        """Names this file and this build of the backend: the key under which measurements are stored."""

    @property
    def vocabulary(self) -> str:
        """Names the vocabulary: models with the same one mean the same text by the same token ids."""

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """Token ids. ``add_special``: with the model's own BOS/EOS. ``parse_special``: text such as ``<|im_end|>``
        becomes the control token; otherwise it is plain text."""

    def piece(self, token: int) -> bytes:
        """Raw bytes of a token in generated text; control tokens give b""."""

    def special_text(self, token: int) -> str:
        """Text of a token with control tokens spelled out."""

    def is_control(self, token: int) -> bool: ...

    def control_strings(self) -> tuple[str, ...]:
        """The spellings that ``parse_special`` would turn into control tokens, longest first."""

    def new_context(self, params: ContextParams) -> Context: ...

    def close(self) -> None: ...


ProgressCallback = Callable[[float], None]
