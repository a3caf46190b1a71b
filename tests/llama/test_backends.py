"""The shared contract, run on every kind of fake memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from backend_contract import CHECKS, Backend

from edgedec.llama.base import MemoryKind
from edgedec.llama.fake import FakeModel

BACKENDS: dict[str, Callable[[], Backend]] = {
    "full": lambda: Backend("full", FakeModel(MemoryKind.FULL)),
    "window": lambda: Backend("window", FakeModel(MemoryKind.WINDOW)),
    "hybrid": lambda: Backend("hybrid", FakeModel(MemoryKind.HYBRID)),
    "hybrid with snapshots": lambda: Backend("hybrid with snapshots", FakeModel(MemoryKind.HYBRID, n_rs_seq=4)),
    "recurrent": lambda: Backend("recurrent", FakeModel(MemoryKind.RECURRENT)),
    "recurrent with snapshots": lambda: Backend(
        "recurrent with snapshots", FakeModel(MemoryKind.RECURRENT, n_rs_seq=4)
    ),
}


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    return BACKENDS[request.param]()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_contract(check: Callable[[Backend], None], backend: Backend) -> None:
    check(backend)
