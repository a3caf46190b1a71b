"""A GGUF file loaded by llama.cpp: vocabulary, metadata, template. Contexts are made from it."""

from __future__ import annotations

import ctypes
import hashlib
import os
import struct
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from edgedec.errors import (
    ClosedError,
    ModelError,
    ModelFormatError,
    ModelNotFoundError,
    ModelUnsupportedError,
    UsageError,
)
from edgedec.llama import lib
from edgedec.llama.base import ContextParams, ProgressCallback
from edgedec.llama.context import LlamaContext
from edgedec.llama.lib import capi

_HEADER = struct.Struct("<4sIQQ")  # magic, version, n_tensors, n_kv
_MAX_TEXT = 2**30  # bytes; llama.cpp counts them and their tokens in 32 bits
_BYTE_TOKENS = {b"<0x%02X>" % i: bytes([i]) for i in range(256)}
_BIG_ARRAYS = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.scores", "tokenizer.ggml.token_type")


def check_gguf(path: Path) -> None:
    """Refuse what is plainly not a GGUF file before native code sees it. Raises ModelFormatError, or
    ModelNotFoundError if it cannot be read."""
    try:
        size = path.stat().st_size
        if size == 0:
            raise ModelFormatError(f"{path} is empty.", "Fetch the model again; the download did not finish.")
        with path.open("rb") as file:
            head = file.read(_HEADER.size)
    except OSError as error:
        raise ModelNotFoundError(
            f"{path} cannot be read: {error.strerror}.", "Give the path of a .gguf file that you may read."
        ) from error
    if head[:4] != b"GGUF":
        raise ModelFormatError(f"{path} is not a GGUF file.", "Give a model file that ends in .gguf.")
    if len(head) < _HEADER.size:
        raise ModelFormatError(f"{path} is truncated ({size} bytes).", "Fetch the model again.")
    version = _HEADER.unpack(head)[1]
    if version not in (2, 3):
        what = "is big-endian" if version in (2 << 24, 3 << 24) else f"has GGUF version {version}"
        raise ModelFormatError(f"{path} {what}.", "Only little-endian GGUF of version 2 or 3 can be read; convert it.")


def fingerprint(path: Path) -> str:
    """A short name for the content of a model file: its size and a hash of both ends (metadata and some weights)."""
    size = path.stat().st_size
    digest = hashlib.blake2b(str(size).encode(), digest_size=12)
    with path.open("rb") as file:
        digest.update(file.read(1 << 20))
        file.seek(max(0, size - (1 << 18)))
        digest.update(file.read())
    return digest.hexdigest()


def _load_error(path: Path, complaints: list[str]) -> ModelError:
    text = " ".join(complaints).lower()
    reason = _reason(complaints)
    if "unknown model architecture" in text or "unknown pre-tokenizer" in text:
        return ModelUnsupportedError(f"{path.name}: {reason}.", "This build of llama.cpp is too old for the model.")
    if "mmproj" in text:
        return ModelUnsupportedError(f"{path.name} is the image part of a model.", "Give the model file beside it.")
    if "not within the file bounds" in text or "failed to read" in text or "corrupted or incomplete" in text:
        return ModelFormatError(f"{path} is truncated or damaged ({reason}).", "Fetch the model again.")
    if "alloc" in text or "out of memory" in text:
        return ModelError(f"{path.name} does not fit into memory ({reason}).", "Use a smaller quantisation.")
    return ModelFormatError(
        f"{path} could not be loaded ({reason}).", "Fetch the model again, or run with -v to see llama.cpp's log."
    )


def _reason(complaints: list[str]) -> str:
    """What llama.cpp says is wrong, on one line. Its summary is best, unless it only says that there is an error."""
    texts = [c.partition(": ")[2] or c for c in complaints] or ["llama.cpp gave no reason"]
    summary = next((t for t in texts if t.startswith("error loading model")), texts[-1])
    for prefix in ("error loading model: ", "error loading model vocabulary: "):
        summary = summary.removeprefix(prefix)
    reason = texts[0] if "failed to load model" in summary else summary
    printable = "".join(c if c.isprintable() else "?" for c in reason)  # names in a file may hold anything
    return f"{printable:.200}".rstrip(".")


class LlamaModel:
    """`edgedec.llama.base.Model` on llama.cpp.

    ``n_gpu_layers`` < 0: as many as the build can offload. ``progress`` is called with 0…1 while weights are read.
    ``vocab_only``: read no weights; such a model can do all but make a context.

    Raises ModelFormatError, ModelUnsupportedError, ModelError.
    """

    def __init__(
        self,
        path: Path,
        *,
        n_gpu_layers: int = -1,
        vocab_only: bool = False,
        progress: ProgressCallback | None = None,
    ) -> None:
        self._path = path
        check_gguf(path)
        self._handle: Any = None
        self._stack = ExitStack()
        self._stack.callback(self._free)
        try:
            self._load(n_gpu_layers, vocab_only, progress)
            self._read()
            self._refuse_unusable()
        except BaseException:
            self.close()
            raise

    def _load(self, n_gpu_layers: int, vocab_only: bool, progress: ProgressCallback | None) -> None:
        params = capi.llama_model_default_params()
        params.n_gpu_layers = n_gpu_layers
        params.vocab_only = vocab_only
        raised: list[BaseException] = []
        stopped = threading.Event()

        @capi.llama_progress_callback  # type: ignore[untyped-decorator]
        def on_progress(fraction: float, _: Any) -> bool:
            try:
                if progress is not None:
                    progress(fraction)
            except BaseException as error:
                raised.append(error)
                return False
            return not stopped.is_set()

        params.progress_callback = on_progress

        def load() -> None:
            self._handle = capi.llama_model_load_from_file(os.fsencode(self._path), params)

        with lib.complaints() as complaints:
            lib.undisturbed(load, stopped.set)
        if raised:
            raise raised[0]
        if not self._handle:
            raise _load_error(self._path, complaints)

    def _free(self) -> None:
        handle, self._handle = self._handle, None
        if handle:
            capi.llama_model_free(handle)

    def _read(self) -> None:
        vocab = capi.llama_model_get_vocab(self._handle)
        if not vocab:
            raise ModelUnsupportedError(f"{self._path.name} has no vocabulary.", "Give a model that generates text.")
        self._vocab = vocab
        self._n_vocab = int(capi.llama_vocab_n_tokens(vocab))
        self._pieces: list[bytes | None] = [None] * self._n_vocab
        self._metadata = self._read_metadata()
        self._eog_ids = frozenset(t for t in range(self._n_vocab) if capi.llama_vocab_is_eog(vocab, t))
        self._fingerprint = f"{fingerprint(self._path)}/{lib.build()}"
        self._control_strings: tuple[str, ...] | None = None
        self._vocabulary: str | None = None

    def _read_metadata(self) -> dict[str, str]:
        found = {}
        for i in range(capi.llama_model_meta_count(self._handle)):
            key = self._string(capi.llama_model_meta_key_by_index, i)
            if key not in _BIG_ARRAYS:
                found[key] = self._string(capi.llama_model_meta_val_str_by_index, i)
        return found

    def _string(self, function: Any, index: int) -> str:
        size = 512
        while True:
            buffer = ctypes.create_string_buffer(size)
            n = function(self._handle, index, buffer, size)
            if n < size:
                return buffer.value.decode("utf-8", "replace") if n >= 0 else ""
            size = n + 1

    def _refuse_unusable(self) -> None:
        name, arch = self._path.name, self.architecture
        hint = "Give a model that generates text token by token."
        pooling = self._metadata.get(f"{arch}.pooling_type", "0")
        causal = self._metadata.get(f"{arch}.attention.causal", "true")
        if capi.llama_vocab_type(self._vocab) == capi.LLAMA_VOCAB_TYPE_NONE or self._n_vocab == 0:
            raise ModelUnsupportedError(f"{name} has no vocabulary.", hint)
        if capi.llama_model_is_diffusion(self._handle):
            raise ModelUnsupportedError(f"{name} is a diffusion model ({arch}).", hint)
        if pooling not in ("0", "-1") or causal == "false" or not capi.llama_model_has_decoder(self._handle):
            raise ModelUnsupportedError(f"{name} is an embedding model ({arch}); it cannot write text.", hint)
        if capi.llama_model_has_encoder(self._handle):
            raise ModelUnsupportedError(f"{name} is an encoder-decoder model ({arch}).", hint)
        if missing := self._missing_bytes():
            raise ModelFormatError(
                f"The vocabulary of {name} has no token for {len(missing)} of the 256 bytes.",
                "The file is damaged, or not meant for text: fetch it again, or give another model.",
            )

    def _missing_bytes(self) -> set[bytes]:
        """Bytes that a SentencePiece vocabulary cannot spell: llama.cpp ends the process when a text has one."""
        if capi.llama_vocab_type(self._vocab) != capi.LLAMA_VOCAB_TYPE_SPM:
            return set()
        missing = {bytes([i]) for i in range(256)}
        for token in range(self._n_vocab):
            text = capi.llama_vocab_get_text(self._vocab, token) or b""
            missing.discard(_BYTE_TOKENS.get(text, text))
            if not missing:
                break
        return missing

    @property
    def _live(self) -> Any:
        if self._handle is None:
            raise ClosedError("The model has been closed.", "Load it again.")
        return self._handle

    @property
    def _live_vocab(self) -> Any:
        assert self._live
        return self._vocab

    @property
    def path(self) -> Path:
        return self._path

    @property
    def name(self) -> str:
        return self._path.stem

    @property
    def architecture(self) -> str:
        return self._metadata.get("general.architecture", "unknown")

    @property
    def n_params(self) -> int:
        return int(capi.llama_model_n_params(self._live))

    @property
    def n_bytes(self) -> int:
        return int(capi.llama_model_size(self._live))

    @property
    def n_ctx_train(self) -> int:
        return int(capi.llama_model_n_ctx_train(self._live))

    @property
    def n_vocab(self) -> int:
        return self._n_vocab

    @property
    def metadata(self) -> Mapping[str, str]:
        return self._metadata

    @property
    def chat_template(self) -> str | None:
        text = capi.llama_model_chat_template(self._live, None)
        return text.decode("utf-8", "replace") if text else None

    @property
    def bos_id(self) -> int | None:
        token = int(capi.llama_vocab_bos(self._live_vocab))
        return token if token >= 0 else None

    @property
    def eos_id(self) -> int | None:
        token = int(capi.llama_vocab_eos(self._live_vocab))
        return token if token >= 0 else None

    @property
    def eog_ids(self) -> frozenset[int]:
        return self._eog_ids

    @property
    def fingerprint(self) -> str:
        return self._fingerprint

    @property
    def vocabulary(self) -> str:
        if self._vocabulary is None:
            vocab, text = self._live_vocab, capi.llama_vocab_get_text
            texts = b"\0".join([text(vocab, token) or b"" for token in range(self._n_vocab)])
            digest = hashlib.blake2b(texts, digest_size=12)
            digest.update(b"%d" % capi.llama_vocab_type(vocab))  # how the texts spell bytes and spaces
            self._vocabulary = digest.hexdigest()
        return self._vocabulary

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        vocab = self._live_vocab
        data = text.encode("utf-8", "replace")
        if len(data) > _MAX_TEXT:
            raise UsageError(f"The text has {len(data):,} bytes; {_MAX_TEXT:,} are possible.", "Give less text.")
        size = len(data) + 8
        while True:
            buffer = (ctypes.c_int32 * size)()
            n = capi.llama_tokenize(vocab, data, len(data), buffer, size, add_special, parse_special)
            if n >= 0:
                return list(buffer[:n])
            size = -n

    def _known(self, token: int) -> int:
        if not 0 <= token < self._n_vocab:
            raise UsageError(f"Token id {token} is not in the vocabulary (0 to {self._n_vocab - 1}).")
        return token

    def _piece(self, token: int, special: bool) -> bytes:
        vocab, token = self._live_vocab, self._known(token)
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            n = lib.token_to_piece(vocab, token, buffer, size, 0, special)
            if n >= 0:
                return buffer.raw[:n]
            size = -n

    def piece(self, token: int) -> bytes:
        if 0 <= token < self._n_vocab:
            known = self._pieces[token]
            if known is not None:
                return known
        data = self._piece(token, special=False)
        self._pieces[token] = data
        return data

    def special_text(self, token: int) -> str:
        return self._piece(token, special=True).decode("utf-8", "replace")

    def is_control(self, token: int) -> bool:
        return bool(capi.llama_vocab_is_control(self._live_vocab, self._known(token)))

    def control_strings(self) -> tuple[str, ...]:
        if self._control_strings is None:
            vocab = self._live_vocab
            mask = capi.LLAMA_TOKEN_ATTR_CONTROL | capi.LLAMA_TOKEN_ATTR_UNKNOWN
            tokens = (t for t in range(self._n_vocab) if capi.llama_vocab_get_attr(vocab, t) & mask)
            texts = {(capi.llama_vocab_get_text(vocab, t) or b"").decode("utf-8", "replace") for t in tokens}
            self._control_strings = tuple(sorted(texts - {""}, key=lambda s: (-len(s), s)))
        return self._control_strings

    def new_context(self, params: ContextParams) -> LlamaContext:
        """Raises ModelError if llama.cpp cannot make one (usually: not enough memory)."""
        return LlamaContext(self._live, self._n_vocab, params, fingerprint=self._fingerprint)

    def close(self) -> None:
        self._stack.close()
