"""The shared contract, run on every kind of memory: the fake one, and llama.cpp's with tiny models."""

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


@pytest.fixture(scope="module", params=[*FAKES, *REAL])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    if request.param in FAKES:
        yield Backend(FAKES[request.param]())
        return
    path: Path = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
    model = LlamaModel(write_text_model(path, request.param))
    yield Backend(model, tolerance=0.05)  # f32 weights, f16 cells; a wrong context moves logits by much more
    model.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_contract(check: Callable[[Backend], None], backend: Backend) -> None:
    check(backend)
