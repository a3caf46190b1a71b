"""The shared contract, on every kind of memory: the fake, llama.cpp with tiny models, and the default model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgedec.llama.base import MemoryKind
from edgedec.llama.fake import FakeModel
from edgedec.llama.model import LlamaModel
from tests.llama.contract import CHECKS, Backend
from tests.tiny_gguf import write_text_model

FAKES = {
    "fake full": lambda: FakeModel(MemoryKind.FULL),
    "fake window": lambda: FakeModel(MemoryKind.WINDOW),
    "fake hybrid": lambda: FakeModel(MemoryKind.HYBRID),
    "fake hybrid with snapshots": lambda: FakeModel(MemoryKind.HYBRID, n_rs_seq=4),
    "fake recurrent": lambda: FakeModel(MemoryKind.RECURRENT),
    "fake recurrent with snapshots": lambda: FakeModel(MemoryKind.RECURRENT, n_rs_seq=4),
}
REAL = ("llama", "gemma3", "lfm2", "mamba")  # full, window, hybrid, recurrent


@pytest.fixture(scope="module", params=[*FAKES, *REAL, pytest.param("smollm2", marks=pytest.mark.gguf)])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    if request.param in FAKES:
        yield Backend(FAKES[request.param]())
        return
    if request.param == "smollm2":
        path: Path = request.getfixturevalue("smollm2")
        tolerance = 2.0  # 4-bit weights in 30 layers: where a cell lies moves logits by 0.6, a wrong context by 4
    else:
        path = write_text_model(tmp_path_factory.mktemp("models") / f"{request.param}.gguf", request.param)
        tolerance = 0.05  # f32 weights, f16 cells; a wrong context moves logits by much more
    model = LlamaModel(path)
    yield Backend(model, tolerance)
    model.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_contract(check: Callable[[Backend], None], backend: Backend) -> None:
    check(backend)
