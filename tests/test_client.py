"""The seam: submitting, reading, cancelling, closing, from several threads and from processes that end or fork."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from edgedec.client import Client, engine_thread
from edgedec.config import EngineConfig
from edgedec.engine.setup import Setup
from edgedec.errors import (
    DecodeError,
    EngineCrashedError,
    PromptTooLongError,
    UnknownNameError,
    UsageError,
)
from edgedec.llama.base import MemoryKind, Rows
from edgedec.llama.fake import FakeContext, FakeModel
from edgedec.types import Request
from tests.lab import Gate, Loaded, answer, context_of, request


@pytest.fixture
def loaded() -> Iterator[Loaded]:
    found = Loaded()
    yield found
    found.close()


# Reading


def test_events_and_result(loaded: Loaded) -> None:
    client = loaded.client()
    generation = client.submit(request(b"say something" * 14))
    events = list(generation)
    assert [event.phase for event in events] == ["prefill"] + ["decode"] * 20
    assert [event.n_past for event in events[1:]] == list(range(13 * 14, 13 * 14 + 20))
    assert [event.finish_reason for event in events] == [None] * 20 + ["length"]
    result = events[-1].result
    assert result is not None
    assert result.text == "".join(event.text for event in events)
    assert generation.result() is result
    assert list(generation) == [], "everything has been read"


def test_result_after_a_part_was_read(loaded: Loaded) -> None:
    client = loaded.client()
    whole = answer(client)
    generation = client.submit(request())
    first = [event.token_ids for event, _ in zip(generation, range(3), strict=False)]
    assert [t for ids in first for t in ids] == whole[:3]
    assert generation.result().token_ids == whole
    assert not generation.is_cancelled


def test_requests_run_in_the_order_of_submission(loaded: Loaded) -> None:
    """The reader of the last one does not wait for readers of the others: nobody has to read."""
    client = loaded.client()
    generations = [client.submit(request(bytes([97 + i]), max_tokens=5)) for i in range(8)]
    last = generations[-1].result()
    for i, generation in enumerate(generations):
        assert generation.result().token_ids == answer(client, request(bytes([97 + i]), max_tokens=5))
    assert generations[-1].result() is last


def test_many_threads_at_once(loaded: Loaded) -> None:
    client, other = loaded.client(), loaded.client(seed=5)
    expected = {
        (c, i): answer(c, request(bytes([97 + i, 98]), max_tokens=12)) for c in (client, other) for i in range(10)
    }
    found: dict[tuple[Client, int], list[int]] = {}
    barrier = threading.Barrier(20)

    def ask(c: Client, i: int) -> None:
        barrier.wait(60)
        found[c, i] = answer(c, request(bytes([97 + i, 98]), max_tokens=12))

    threads = [threading.Thread(target=ask, args=key) for key in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == expected


def test_everything_is_computed_on_one_thread(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded_on = set()
    right = FakeContext.decode

    def decode(self: FakeContext, rows: Rows) -> None:
        decoded_on.add(threading.current_thread())
        right(self, rows)

    monkeypatch.setattr(FakeContext, "decode", decode)
    clients = [loaded.client(), loaded.client(config=EngineConfig(n_ctx=256))]
    threads = [threading.Thread(target=answer, args=(client,)) for client in clients for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {thread.name for thread in decoded_on} == {"edgedec-engine"}
    assert len(decoded_on) == 1


def test_the_first_callers_share_the_thread() -> None:
    barrier = threading.Barrier(8)
    found = []

    def ask() -> None:
        barrier.wait(60)
        found.append(engine_thread())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(set(found)) == 1


def test_jobs(loaded: Loaded) -> None:
    """A job runs between requests, and its error is the caller's."""
    gate = Gate(3)
    client = loaded.client(delay=gate)
    generation = client.submit(request())
    assert gate.reached.wait(60)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(client.call(lambda setup: setup.engine.is_idle)))
    thread.start()
    gate.open.set()
    thread.join(60)
    assert seen == [True]
    assert len(generation.result().token_ids) == 20

    def fail(setup: Setup) -> None:
        raise KeyError("job")

    with pytest.raises(KeyError, match="job"):
        client.call(fail)
    assert client.call(lambda setup: setup.context) is context_of(client)


# Cancelling


@pytest.mark.parametrize("n", [0, 1, 5])
def test_cancel_from_another_thread(loaded: Loaded, n: int) -> None:
    """In the prompt and in the answer; the other requests are not touched."""
    gate = Gate(n)
    client = loaded.client(delay=gate)
    generation, after = client.submit(request(max_tokens=None)), client.submit(request(b"next"))
    assert gate.reached.wait(60)
    generation.cancel()
    gate.open.set()
    result = generation.result()
    assert generation.is_cancelled
    assert result.finish_reason == "cancelled"
    assert len(result.token_ids) == n
    assert len(after.result().token_ids) == 20
    generation.cancel()
    assert len(answer(client)) == 20


def test_cancel_before_its_turn(loaded: Loaded) -> None:
    gate = Gate(2)
    client = loaded.client(delay=gate)
    first, second, third = (client.submit(request()) for _ in range(3))
    assert gate.reached.wait(60)
    second.cancel()
    gate.open.set()
    assert [g.result().finish_reason for g in (first, second, third)] == ["length", "cancelled", "length"]
    assert second.result().text == ""


# Failing


def test_a_failed_request_is_no_end(loaded: Loaded) -> None:
    client = loaded.client()
    expected = answer(client)
    context_of(client).fail_decode(DecodeError("out of luck"))
    generation = client.submit(request())
    for _ in range(2):
        with pytest.raises(DecodeError, match="out of luck"):
            generation.result()
    with pytest.raises(PromptTooLongError):
        client.submit(Request((97,) * 512)).result()
    with pytest.raises(UsageError, match="outside"):
        client.submit(Request((-5,))).result()
    assert answer(client) == expected


def test_a_crash_ends_one_client_only(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    client, other = loaded.client(), loaded.client()
    expected = answer(other)
    gate = Gate()
    client.model.delay = gate  # type: ignore[attr-defined]
    running, waiting = client.submit(request()), client.submit(request())
    assert gate.reached.wait(60)

    def decode(rows: Rows) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(context_of(client), "decode", decode)
    gate.open.set()
    for generation in (running, waiting):
        with pytest.raises(EngineCrashedError, match="ZeroDivisionError") as caught:
            generation.result()
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert caught.value.hint
    for call in (lambda: client.submit(request()), lambda: client.call(lambda setup: None)):
        with pytest.raises(EngineCrashedError):
            call()
    assert answer(other) == expected
    client.close()
    assert answer(other) == expected


def test_what_cannot_be_set_up_is_closed(loaded: Loaded) -> None:
    for config, error in (
        (EngineConfig(n_ctx=8192), UsageError),
        (EngineConfig(speculate=("sufix",)), UnknownNameError),
    ):
        model = FakeModel()
        with pytest.raises(error):
            Client(model, config)
        assert model.closed
        assert all(context._closed for context in model.contexts)


def test_why_there_is_no_guessing(loaded: Loaded) -> None:
    assert loaded.client(config=EngineConfig(n_ctx=256)).note == ""
    client = loaded.client(FakeModel(MemoryKind.RECURRENT), EngineConfig(n_ctx=256))
    assert client.note == "the recurrent memory of this model cannot take guesses back"
    result = client.submit(request()).result()
    assert (result.speculation.note, result.speculation.mode, result.speculation.drafted) == (client.note, "auto", 0)


@pytest.mark.parametrize("sizes", [(8, 512, 512), (16, 1, 1), (64, 16, 16), (256, 40, 3)])
@pytest.mark.parametrize("kind", [MemoryKind.FULL, MemoryKind.WINDOW])
def test_small_contexts_and_batches(loaded: Loaded, sizes: tuple[int, int, int], kind: MemoryKind) -> None:
    """Measuring and guessing fit into whatever there is."""
    n_ctx, n_batch, n_ubatch = sizes
    client = loaded.client(FakeModel(kind), EngineConfig(n_ctx=n_ctx, n_batch=n_batch, n_ubatch=n_ubatch))
    plain = loaded.client(FakeModel(kind), EngineConfig(n_ctx=n_ctx, speculate=("off",)))
    of = request(b"ab" * (n_ctx // 4), max_tokens=None)
    assert answer(client, of) == answer(plain, of)
    assert client.submit(of).result().finish_reason == "length"
