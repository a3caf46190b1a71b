from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edgedec.bench.device import Device
from edgedec.bench.modes import Local, parse_modes
from edgedec.bench.pretend import PretendContext, Text
from edgedec.bench.record import Measured, Settings
from edgedec.bench.replay import replay
from edgedec.bench.summary import summarise
from edgedec.errors import ClosedError
from edgedec.llama.base import MemoryKind, MemoryTraits, Rows
from edgedec.llama.fake import FakeModel
from edgedec.llm import LLM
from tests.bench.lab import FLAT, STEEP, case, loaded

IDS = tuple(b"one two one two one two one")
SETTINGS = Settings(max_tokens=30)  # so that no draft is wider than T(n) is measured
KNEE = Device("knee", "cheap up to four rows", "made up", {1: 10.0, 4: 11.0, 5: 60.0, 64: 800.0})


def record(llm: LLM, modes: str, n: int = 3) -> list[Measured]:
    """Cases as a run measures them, but without its warm-up."""
    arms = [Local(llm, mode) for mode in parse_modes(modes)]
    cases = [Measured(case(i, ids=(*IDS, 97 + i))) for i in range(n)]
    for one in cases:
        for arm in arms:
            one.answers[arm.name] = arm.answer(one.case, SETTINGS)
    return cases


def replayed(llm: LLM, cases: Sequence[Measured], modes: str, *devices: Device) -> list[list[Measured]]:
    return replay(llm, cases, parse_modes(modes), devices, SETTINGS, n_rows_max=33, clock=lambda: 0.0)


def steps(cases: Sequence[Measured], name: str) -> list[list[tuple[int, int, float]]]:
    return [[(s.n_rows, s.n_tokens, round(s.ms, 6)) for s in one.answers[name].steps] for one in cases]


@pytest.mark.parametrize("device", [FLAT, KNEE], ids=lambda device: device.name)
@pytest.mark.parametrize("mode", ["auto", "suffix+recycle"])
def test_on_its_own_curve_a_run_is_repeated_step_by_step(
    monkeypatch: pytest.MonkeyPatch, device: Device, mode: str
) -> None:
    with loaded(monkeypatch, device) as llm:
        found = record(llm, mode)
        here = Device("here", "", "", llm.client.call(lambda setup: dict(setup.cost_ms)))
        (again,) = replayed(llm, found, mode, here)
    assert any(n_rows > 1 for one in steps(found, mode) for n_rows, _, _ in one)
    for name in ("plain", mode):
        assert steps(again, name) == steps(found, name)
        assert [one.answers[name].token_ids for one in again] == [one.answers[name].token_ids for one in found]
        assert summarise(again, name).speedup == pytest.approx(summarise(found, name).speedup)


def test_widths_are_chosen_for_the_other_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded where guessing never pays, replayed where it does, and the other way round."""
    with loaded(monkeypatch, STEEP) as llm:
        found = record(llm, "suffix")
        flat, knee, steep = replayed(llm, found, "suffix", FLAT, KNEE, STEEP)
    assert summarise(found, "suffix").tokens_per_step == pytest.approx(1.0, abs=0.05)
    assert summarise(flat, "suffix").speedup > 1.4
    assert 1.1 < summarise(knee, "suffix").speedup < 4.0
    assert summarise(steep, "suffix").speedup > 0.97
    widths = {n_rows for one in steps(knee, "suffix") for n_rows, _, _ in one}
    assert 4 in widths
    assert max(widths) <= 4
    assert summarise(flat, "plain").tokens_per_second == pytest.approx(100.0)


def test_no_step_is_wider_than_the_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = Device("narrow", "", "", {1: 10.0, 3: 10.0})
    with loaded(monkeypatch) as llm:
        (found,) = replayed(llm, record(llm, "suffix"), "suffix", narrow)
    assert max(n_rows for one in steps(found, "suffix") for n_rows, _, _ in one) == 3


def test_answers_that_ended_by_themselves_end_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with loaded(monkeypatch, script=b"one two. one two. The end") as llm:
        found = record(llm, "suffix", n=1)
        (again,) = replayed(llm, found, "suffix", FLAT)
    for one in (found[0], again[0]):
        for name in ("plain", "suffix"):
            assert one.answers[name].finish_reason == "eog"
            assert one.answers[name].text == "one two. one two. The end"
    assert steps(again, "plain") == steps(found, "plain")


def test_the_model_decodes_again_only_if_a_drafter_looks_at_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    with loaded(monkeypatch) as llm:
        assert isinstance(llm.model, FakeModel)
        found = record(llm, "suffix,recycle", n=1)
        replayed(llm, found, "suffix", FLAT)
        assert len(llm.model.contexts) == 1
        replayed(llm, found, "suffix,recycle", FLAT)
        assert len(llm.model.contexts) == 2
        with pytest.raises(ClosedError):
            llm.model.contexts[1].decode(rows([1], 0))


def pretend(clock: float = 0.0) -> PretendContext:
    return PretendContext(
        KNEE,
        n_ctx=64,
        n_vocab=10,
        n_rows_max=8,
        n_seq_max=4,
        traits=MemoryTraits(MemoryKind.FULL, -1),
        clock=lambda: clock,
    )


def rows(tokens: Sequence[int], first: int, *ids: int, outputs: bool = True) -> Rows:
    n = len(tokens)
    return Rows(tuple(tokens), range(first, first + n), (ids or (0,),) * n, (outputs,) * n)


def test_decoding_takes_what_the_curve_says_and_reading_nothing() -> None:
    context = pretend(clock=5.0)
    context.decode(rows([1, 2, 3], 0, outputs=False))
    assert context.now() == 5.0
    context.decode(rows([4], 3))
    assert context.now() == pytest.approx(5.010)
    context.decode(rows([5, 6, 7, 8], 4))
    assert context.now() == pytest.approx(5.021)


def test_rows_lead_to_what_was_said() -> None:
    likely = np.array([[7, 2], [3, 4]], np.int32)
    text = Text((1, 2, 3), (7, 9), likely, np.array([[4.0, 3.5], [2.0, 1.0]], np.float32))
    context = pretend()
    context.play(text)
    context.decode(rows([3, 7], 2))
    first = context.logits(0).copy()
    second = context.logits(1).copy()
    assert (int(first.argmax()), int(second.argmax())) == (7, 9)
    assert first[2] == 3.5
    assert (second[3], second[4]) == (2.0, 1.0)
    assert np.isfinite(first).all()
    assert first[5] < 3.5


def test_the_memory_keeps_books_by_sequence() -> None:
    context = pretend()
    context.decode(rows([1, 2, 3], 0))
    context.decode(rows([4, 5], 3, 0, 1))
    assert (context.seq_pos_min(0), context.seq_pos_max(0)) == (0, 4)
    assert (context.seq_pos_min(1), context.seq_pos_max(1)) == (3, 4)
    context.seq_cp(0, 2, 1, -1)
    assert (context.seq_pos_min(2), context.seq_pos_max(2)) == (1, 4)
    assert context.seq_rm(0, 3, -1)
    assert (context.seq_pos_max(0), context.seq_pos_max(1)) == (2, 4)
    assert context.seq_rm(-1, 4, -1)
    assert context.seq_pos_max(2) == 3
    context.seq_keep(0)
    assert [context.seq_pos_max(s) for s in (0, 1, 2)] == [2, -1, -1]
    context.clear()
    assert context.seq_pos_max(0) == -1
