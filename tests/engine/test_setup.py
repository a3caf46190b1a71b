"""From a model and a configuration to an engine."""

from __future__ import annotations

from typing import Any

import pytest

from edgedec import drafters
from edgedec.config import EngineConfig
from edgedec.engine import setup
from edgedec.engine.setup import drafter_names, initial_n_ctx, set_up, why_not
from edgedec.errors import ModelError, UnknownNameError, UsageError
from edgedec.llama.base import MemoryKind, MemoryTraits
from edgedec.llama.fake import FakeClock, FakeModel


def test_drafter_names() -> None:
    assert drafter_names(("off",)) == []
    assert drafter_names(("auto",)) == list(drafters.AUTO)
    assert drafter_names(("suffix",)) == ["suffix"]
    with pytest.raises(UnknownNameError, match="'sufix'"):
        drafter_names(("suffix", "sufix"))


@pytest.mark.parametrize(
    ("n_ctx_train", "wanted", "n_ctx"),
    [(8192, None, 4096), (2048, None, 2048), (0, None, 4096), (2048, 2048, 2048), (2048, 8, 8), (0, 99999, 99999)],
)
def test_initial_n_ctx(n_ctx_train: int, wanted: int | None, n_ctx: int) -> None:
    """A model that does not tell its limit has none."""
    assert initial_n_ctx(FakeModel(n_ctx_train=n_ctx_train), EngineConfig(n_ctx=wanted)) == n_ctx


def test_more_context_than_the_model_knows() -> None:
    with pytest.raises(UsageError, match="n_ctx is 2049, but the model was trained for 2048") as caught:
        initial_n_ctx(FakeModel(n_ctx_train=2048), EngineConfig(n_ctx=2049))
    assert "2048" in caught.value.hint


def test_why_not() -> None:
    assert why_not(MemoryTraits(MemoryKind.FULL, -1)) == ""
    assert why_not(MemoryTraits(MemoryKind.HYBRID, 3)) == ""
    assert "hybrid" in why_not(MemoryTraits(MemoryKind.HYBRID, 0))


@pytest.mark.parametrize("kind", [MemoryKind.RECURRENT, MemoryKind.HYBRID])
def test_nothing_is_measured_where_nothing_can_be_guessed(kind: MemoryKind) -> None:
    model = FakeModel(kind)
    found = set_up(model, EngineConfig(), 256)
    assert str(kind) in found.note
    assert found.cost_ms == {}
    assert model.contexts[0].n_decode_calls == 0
    off = set_up(model, EngineConfig(speculate=("off",)), 256)
    assert off.note == "", "nobody asked for guesses"


def test_costs_are_measured_once_per_model_and_settings() -> None:
    """The second load finds them on disk; other settings are measured anew."""
    clock = FakeClock()
    model = FakeModel(clock=clock, delay=lambda n_rows, n_past: 0.01 + 0.001 * n_rows)

    def load(**settings: Any) -> tuple[dict[int, float], int]:
        found = set_up(model, EngineConfig(**settings), 256, clock=clock.now)
        assert model.contexts[-1].seq_pos_max(0) == -1, "the memory is left empty"
        return dict(found.cost_ms), model.contexts[-1].n_decode_calls

    cost, n_calls = load()
    assert cost[1] == pytest.approx(11)
    assert cost[16] == pytest.approx(26)
    assert n_calls > 0
    assert load() == (cost, 0)
    for settings in ({"n_threads": 3}, {"type_k": "q8_0"}, {"n_ubatch": 64}, {"flash_attn": "off"}):
        assert load(**settings)[1] > 0
        assert load(**settings)[1] == 0
    other = FakeModel(seed=1)
    set_up(other, EngineConfig(), 256)
    assert other.contexts[0].n_decode_calls > 0


def test_a_draft_fits_into_one_piece() -> None:
    for n_ubatch in (1, 8, 512):
        context = set_up(FakeModel(), EngineConfig(n_ubatch=n_ubatch), 256).context
        assert context.n_outputs_max == min(n_ubatch, setup.N_DRAFT_MAX + 1)


def test_what_fails_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(*_: object, **__: object) -> dict[int, float]:
        raise ModelError("broken")

    monkeypatch.setattr(setup, "measure", measure)
    model = FakeModel()
    with pytest.raises(ModelError):
        set_up(model, EngineConfig(), 256)
    assert model.contexts[0]._closed
