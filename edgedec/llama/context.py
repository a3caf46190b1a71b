"""A llama.cpp context: the KV memory of one model, and the one blocking call, `decode`."""

from __future__ import annotations

import ctypes
import hashlib
from contextlib import ExitStack
from typing import Any

import numpy as np

from edgedec.config import FLASH_ATTN, KV_TYPES
from edgedec.errors import AbortedError, ClosedError, DecodeError, ModelError, NoSlotError, UsageError
from edgedec.llama import lib
from edgedec.llama.base import ContextParams, Logits, MemoryKind, MemoryTraits, Rows
from edgedec.llama.lib import capi
from edgedec.machine import n_physical_cores

_GGML_BF16 = 30  # the binding does not name it
_KV_IDS = {name: getattr(capi, f"GGML_TYPE_{name.upper()}", _GGML_BF16) for name in KV_TYPES}
_FLASH_IDS = dict(
    zip(
        FLASH_ATTN,
        (
            capi.LLAMA_FLASH_ATTN_TYPE_AUTO,
            capi.LLAMA_FLASH_ATTN_TYPE_ENABLED,
            capi.LLAMA_FLASH_ATTN_TYPE_DISABLED,
        ),
        strict=True,
    )
)
_FLOAT_TYPES = ("f32", "f16", "bf16")
_STATE_MAGIC = b"EDGEDEC1"


def _choice(kind: str, value: str, table: dict[str, int]) -> int:
    if value not in table:
        raise UsageError(f"{kind} is {value!r}.", f"Use one of {', '.join(table)}.")
    return table[value]


class _BatchBuffers:
    """A llama_batch over numpy arrays, so that any number of rows is filled by a few array assignments."""

    def __init__(self, n_batch: int, n_seq_max: int) -> None:
        self.token = np.zeros(n_batch, np.int32)
        self.pos = np.zeros(n_batch, np.int32)
        self.n_seq_id = np.zeros(n_batch, np.int32)
        self.seq_id = np.zeros((n_batch, n_seq_max), np.int32)
        self.output = np.zeros(n_batch, np.int8)
        row_bytes = self.seq_id.strides[0]
        self._seq_ptr = np.arange(n_batch, dtype=np.uintp) * row_bytes + self.seq_id.ctypes.data
        self.batch = capi.llama_batch()
        for field in ("token", "pos", "n_seq_id"):
            array = getattr(self, field)
            setattr(self.batch, field, ctypes.cast(array.ctypes.data, ctypes.POINTER(ctypes.c_int32)))
        pointers = ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))
        self.batch.seq_id = ctypes.cast(self._seq_ptr.ctypes.data, pointers)
        self.batch.logits = ctypes.cast(self.output.ctypes.data, ctypes.POINTER(ctypes.c_int8))
        self.batch.embd = None

    def fill(self, rows: Rows) -> None:
        n = len(rows)
        self.token[:n] = rows.tokens
        self.pos[:n] = rows.positions
        self.output[:n] = rows.outputs
        kinds = set(rows.seq_ids)
        if len(kinds) == 1:
            (ids,) = kinds
            self.n_seq_id[:n] = len(ids)
            self.seq_id[:n, : len(ids)] = ids
        else:
            for i, ids in enumerate(rows.seq_ids):
                self.n_seq_id[i] = len(ids)
                self.seq_id[i, : len(ids)] = ids
        self.batch.n_tokens = n


class LlamaContext:
    """`edgedec.llama.base.Context` on llama.cpp. Made by `LlamaModel.new_context`.

    Whatever would make native code assert (and end the process) is refused here with a Python error.
    """

    def __init__(self, model: Any, n_vocab: int, params: ContextParams, *, fingerprint: str) -> None:
        self._n_vocab = n_vocab
        self._stack = ExitStack()
        self._flag = (ctypes.c_char * 2)()  # abort flag: the native predicate reads it
        self._predicate = lib.abort_predicate()
        if params.n_ctx < 1 or params.n_batch < 1 or params.n_ubatch < 1 or not 1 <= params.n_seq_max <= 256:
            raise UsageError("n_ctx, n_batch, n_ubatch and n_seq_max must be positive (n_seq_max ≤ 256).")
        n_batch = min(params.n_batch, params.n_ctx)
        n_outputs_max = min(params.n_outputs_max, n_batch)
        if params.n_seq_max > n_outputs_max:
            raise UsageError(f"n_seq_max is {params.n_seq_max}, but a batch has only {n_outputs_max} outputs.")
        n_ubatch = min(params.n_ubatch, n_batch)
        threads = params.n_threads or n_physical_cores()
        c = capi.llama_context_default_params()
        c.n_ctx, c.n_batch, c.n_ubatch, c.n_seq_max = params.n_ctx, n_batch, n_ubatch, params.n_seq_max
        c.n_outputs_max = n_outputs_max
        c.n_threads, c.n_threads_batch = threads, params.n_threads_batch or threads
        c.type_k, c.type_v = _choice("type_k", params.type_k, _KV_IDS), _choice("type_v", params.type_v, _KV_IDS)
        c.flash_attn_type = _choice("flash_attn", params.flash_attn, _FLASH_IDS)
        if params.flash_attn == "off" and params.type_v not in _FLOAT_TYPES:
            raise UsageError(
                f"type_v {params.type_v} needs flash attention, but flash_attn is 'off'.",
                f"Leave out flash_attn, or use type_v {', '.join(_FLOAT_TYPES)}.",
            )
        c.swa_full, c.kv_unified = params.swa_full, True
        c.abort_callback = self._predicate
        c.abort_callback_data = ctypes.addressof(self._flag)
        with lib.complaints() as complaints:
            handle = capi.llama_init_from_model(model, c)
        if not handle:
            reason = complaints[-1] if complaints else "llama.cpp gave no reason"
            raise ModelError(
                f"No context of {params.n_ctx} tokens could be made ({reason}).",
                "If memory is short, use a smaller n_ctx or a smaller model.",
            )
        self._handle = handle
        self._stack.callback(self._free)
        try:
            # llama.cpp rounds the size up; the caller's number stays the limit.
            self._n_ctx = min(params.n_ctx, int(capi.llama_n_ctx(handle)))
            self._n_batch = int(capi.llama_n_batch(handle))
            self._n_seq_max = params.n_seq_max
            self._n_outputs_max = n_outputs_max
            self._n_threads = threads
            self._memory = capi.llama_get_memory(handle)
            if not self._memory:
                raise ModelError("The model has no memory to generate from.", "Give a model that generates text.")
            self._buffers = _BatchBuffers(self._n_batch, params.n_seq_max)
            self._row_type = ctypes.c_float * n_vocab
            self._outputs: tuple[bool, ...] = ()
            self._state_key = hashlib.blake2b(
                f"{fingerprint}|{params.type_k}|{params.type_v}|{params.swa_full}".encode(), digest_size=16
            ).digest()
            self._traits = self._probe(model, params)
        except BaseException:
            self.close()
            raise

    def _free(self) -> None:
        handle, self._handle = self._handle, None
        if handle:
            capi.llama_free(handle)

    def _probe(self, model: Any, params: ContextParams) -> MemoryTraits:
        """Find out what this memory can undo by undoing: two tokens in, one out. Also warms the weights up."""
        for position in (0, 1):
            self.decode(Rows((0,), (position,), ((0,),), (True,)))
        removed = self.seq_rm(0, 1, -1) and self.seq_pos_max(0) == 0
        self.clear()
        self._outputs = ()
        n_swa = int(capi.llama_model_n_swa(model))
        if capi.llama_model_is_recurrent(model):
            kind = MemoryKind.RECURRENT
        elif capi.llama_model_is_hybrid(model):
            kind = MemoryKind.HYBRID
        elif n_swa > 0 and not params.swa_full:
            kind = MemoryKind.WINDOW
        else:
            kind = MemoryKind.FULL
        return MemoryTraits(
            kind=kind,
            n_rollback=-1 if removed else 0,
            n_window=n_swa if kind is MemoryKind.WINDOW else 0,
            can_branch=kind is MemoryKind.FULL and removed and params.n_seq_max > 1,
        )

    @property
    def _live(self) -> Any:
        if self._handle is None:
            raise ClosedError("The context has been closed.", "Load the model again.")
        return self._handle

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

    def decode(self, rows: Rows) -> None:
        handle = self._live
        self._outputs = ()
        self._check(rows)
        self._buffers.fill(rows)
        lib.forget_complaints()
        code = capi.llama_decode(handle, self._buffers.batch)
        capi.llama_synchronize(handle)
        if code == 0:
            self._outputs = tuple(rows.outputs)
            return
        if code == 1:
            raise NoSlotError(f"The KV memory has no room for {len(rows)} tokens.", "Use a larger n_ctx.", code=1)
        if code == 2:
            raise AbortedError("Decoding was stopped.", code=2)
        reason = lib.last_complaint("no reason given")
        raise DecodeError(f"llama_decode failed with code {code} ({reason}).", "Run with -v for details.", code=code)

    def _check(self, rows: Rows) -> None:
        n = len(rows)
        if not n == len(rows.positions) == len(rows.seq_ids) == len(rows.outputs):
            raise DecodeError("A batch has lists of different lengths.", code=-1)
        if not 1 <= n <= self._n_batch:
            raise DecodeError(f"A batch has {n} rows; 1 to {self._n_batch} are possible.", code=-1)
        if min(rows.tokens) < 0 or max(rows.tokens) >= self._n_vocab:
            raise DecodeError(f"A batch has a token id outside 0…{self._n_vocab - 1}.", code=-1)
        if min(rows.positions) < 0 or max(rows.positions) >= 2**31 - 1:
            raise DecodeError("A batch has a negative or a far too large position.", code=-1)
        if sum(rows.outputs) > self._n_outputs_max:
            raise DecodeError(f"A batch asks for more than {self._n_outputs_max} rows of logits.", code=-1)
        for ids in set(rows.seq_ids):
            if not ids or min(ids) < 0 or max(ids) >= self._n_seq_max or len(ids) > self._n_seq_max:
                raise DecodeError(f"A batch has sequence ids {ids}; 0…{self._n_seq_max - 1} exist.", code=-1)

    def logits(self, row: int) -> Logits:
        outputs = self._outputs
        if not (0 <= row < len(outputs) and outputs[row]):
            raise IndexError(f"row {row} of the last decode has no logits")
        address = lib.get_logits_ith(self._live, row)
        if not address:
            raise DecodeError(f"llama.cpp gave no logits for row {row}.")
        row_view: Any = self._row_type.from_address(address)
        view: Logits = np.frombuffer(row_view, np.float32)
        return view

    def _seq(self, seq_id: int, *, any_allowed: bool = False) -> int:
        if not (0 <= seq_id < self._n_seq_max or (any_allowed and seq_id == -1)):
            raise DecodeError(f"Sequence id {seq_id} does not exist (0…{self._n_seq_max - 1}).", code=-1)
        return seq_id

    def seq_rm(self, seq_id: int, p0: int, p1: int) -> bool:
        assert self._live
        return bool(capi.llama_memory_seq_rm(self._memory, self._seq(seq_id, any_allowed=True), p0, p1))

    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None:
        assert self._live
        capi.llama_memory_seq_cp(self._memory, self._seq(src), self._seq(dst), p0, p1)

    def seq_keep(self, seq_id: int) -> None:
        assert self._live
        capi.llama_memory_seq_keep(self._memory, self._seq(seq_id))

    def seq_pos_min(self, seq_id: int) -> int:
        assert self._live
        return int(capi.llama_memory_seq_pos_min(self._memory, self._seq(seq_id)))

    def seq_pos_max(self, seq_id: int) -> int:
        assert self._live
        return int(capi.llama_memory_seq_pos_max(self._memory, self._seq(seq_id)))

    def clear(self) -> None:
        assert self._live
        capi.llama_memory_clear(self._memory, False)

    def state_save(self, seq_id: int) -> bytes:
        size = int(capi.llama_state_seq_get_size(self._live, self._seq(seq_id)))
        buffer = (ctypes.c_uint8 * size)()
        written = int(capi.llama_state_seq_get_data(self._live, buffer, size, seq_id))
        if written == 0 or written > size:
            raise DecodeError("The state of the sequence could not be saved.")
        payload = bytes(memoryview(buffer)[:written])
        return _STATE_MAGIC + self._state_key + hashlib.blake2b(payload, digest_size=16).digest() + payload

    def state_load(self, seq_id: int, data: bytes) -> None:
        payload = data[40:]
        if data[:8] != _STATE_MAGIC or hashlib.blake2b(payload, digest_size=16).digest() != data[24:40]:
            raise DecodeError("The saved state is damaged.", "Evaluate the text again.")
        if data[8:24] != self._state_key:
            raise DecodeError("The saved state belongs to another model, build or KV type.", "Evaluate the text again.")
        buffer = (ctypes.c_uint8 * len(payload)).from_buffer_copy(payload)
        # llama.cpp does not remove what is there if the state is that of an empty sequence.
        if not self.seq_rm(self._seq(seq_id), -1, -1):
            raise DecodeError("The sequence could not be emptied for the saved state.", "Evaluate the text again.")
        if not capi.llama_state_seq_set_data(self._live, buffer, len(payload), seq_id):
            if not self.seq_rm(seq_id, -1, -1):
                self.clear()  # rather nothing than a part of a state
            raise DecodeError("The saved state does not fit into the context.", "Use a larger n_ctx.")

    def abort(self) -> None:
        self._flag[0] = b"\x01"

    def clear_abort(self) -> None:
        self._flag[0] = b"\x00"

    def close(self) -> None:
        self._stack.close()
