"""Ways in which a model file can be broken."""

from __future__ import annotations

import struct
from pathlib import Path

from gguf import GGUFReader

_HEADER = struct.Struct("<4sIQQ")  # magic, version, n_tensors, n_kv


def same_word_twice(data: bytes) -> bytes:
    """On this llama.cpp ends the process: an assertion about its vocabulary fails."""
    assert data.count("▁two".encode()) == 1
    return data.replace("▁two".encode(), "▁one".encode())


def broken(path: Path) -> dict[str, bytes]:
    """What is wrong → content. All of them are made from the text model ``path``, and all must be refused politely."""
    data = path.read_bytes()
    magic, version, n_tensors, n_kv = _HEADER.unpack_from(data)
    body = data[_HEADER.size :]
    weights = int(GGUFReader(path).data_offset)

    def with_header(version: int = version, n_tensors: int = n_tensors, n_kv: int = n_kv) -> bytes:
        return _HEADER.pack(magic, version, n_tensors, n_kv) + body

    return {
        "empty": b"",
        "a few letters": b"GGU",
        "text": b"This is not a model.\n" * 100,
        "zeros": bytes(4096),
        "an old format": b"ggjt" + data[4:],
        "magic only": data[:4],
        "cut in the header": data[:20],
        "header only": data[: _HEADER.size],
        "header and zeros": data[: _HEADER.size] + bytes(len(body)),
        "cut in a key": data[:40],
        "cut in the vocabulary": data[: weights // 3],
        "cut in the template": data[: data.index(b"{% for") + 10],
        "cut in the tensor list": data[: weights - 100],
        "cut before the weights": data[:weights],
        "cut in the weights": data[: (weights + len(data)) // 2],
        "last byte missing": data[:-1],
        "big-endian": magic + struct.pack(">I", version) + data[8:],
        "version 1": with_header(version=1),
        "version 99": with_header(version=99),
        "too many keys": with_header(n_kv=2**40),
        "negative number of keys": with_header(n_kv=2**64 - 1),
        "too few keys": with_header(n_kv=5),
        "no keys": with_header(n_kv=0),
        "too many tensors": with_header(n_tensors=2**40),
        "too few tensors": with_header(n_tensors=3),
        "endless key": data[: _HEADER.size] + struct.pack("<Q", 2**62) + body[8:],
        "unknown architecture": data.replace(struct.pack("<Q", 5) + b"llama", struct.pack("<Q", 5) + b"lmama", 1),
        "unknown vocabulary": data.replace(b"tokenizer.ggml.model", b"tokenizer.ggml.madel", 1),
        "a byte without a token": data.replace(b"<0x41>", b"<0xA41", 1),
    }
