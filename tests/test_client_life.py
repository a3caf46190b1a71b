"""How a client ends and grows: closed, forgotten, in a process that ends or forks, or with a longer request."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Iterator

import pytest

from edgedec.client import Client, Generation, engine_thread
from edgedec.config import EngineConfig
from edgedec.errors import ClosedError, EngineCrashedError, ModelError, PromptTooLongError
from edgedec.llama.base import ContextParams
from edgedec.llama.fake import FakeContext, FakeModel
from tests.lab import PLAIN, Gate, Loaded, answer, context_of, long_request, request


@pytest.fixture
def loaded() -> Iterator[Loaded]:
    found = Loaded()
    yield found
    found.close()


# Closing


def test_close_while_running(loaded: Loaded) -> None:
    gate = Gate(4)
    client = loaded.client(delay=gate)
    running, waiting = client.submit(request()), client.submit(request())
    assert gate.reached.wait(60)
    client._worker.stop()  # what `close` waits for
    gate.open.set()
    client.close()
    result = running.result()
    assert (result.finish_reason, len(result.token_ids)) == ("cancelled", 4)
    with pytest.raises(ClosedError):
        waiting.result()
    assert client.model.closed  # type: ignore[attr-defined]


def test_close_twice_and_use_after_close() -> None:
    with Client(FakeModel(), PLAIN) as client:
        generation = client.submit(request())
        assert generation.result().finish_reason == "length"
    assert client.model.closed  # type: ignore[attr-defined]
    assert context_of(client)._closed
    client.close()
    for call in (lambda: client.submit(request()), lambda: client.call(lambda setup: None)):
        with pytest.raises(ClosedError, match="closed") as caught:
            call()
        assert caught.value.hint
    generation.cancel()
    assert generation.result().finish_reason == "length"


def test_close_from_a_job() -> None:
    client = Client(FakeModel(), PLAIN)
    client.call(lambda setup: client.close())
    with pytest.raises(ClosedError):
        client.submit(request())
    client.close()
    assert client.model.closed  # type: ignore[attr-defined]


def test_a_forgotten_client_is_freed() -> None:
    client = Client(FakeModel(), PLAIN)
    model, gone = client.model, weakref.ref(client)
    generation: Generation | None = client.submit(request())
    del client
    gc.collect()
    assert gone() is not None, "somebody may still read its answer"
    assert generation is not None
    assert len(generation.result().token_ids) == 20
    del generation
    engine_thread().call(gc.collect).result()
    gc.collect()
    assert gone() is None
    engine_thread().call(lambda: None).result()
    assert model.closed  # type: ignore[attr-defined]


def test_a_forgotten_client_does_not_hold_up_the_thread_that_collects_it(loaded: Loaded) -> None:
    """Another model is in the middle of an answer: the collector must not wait for its end."""
    gate = Gate(1)
    busy = loaded.client(delay=gate)
    forgotten = Client(FakeModel(), PLAIN)
    model = forgotten.model
    generation = busy.submit(request())
    assert gate.reached.wait(60)
    del forgotten
    gc.collect()
    assert not model.closed  # type: ignore[attr-defined]
    gate.open.set()
    generation.result()
    engine_thread().call(lambda: None).result()
    assert model.closed  # type: ignore[attr-defined]


# The context grows


GROWING = EngineConfig(speculate=("off",))


def test_the_context_grows_with_the_request(loaded: Loaded) -> None:
    client = loaded.client(FakeModel(n_ctx_train=6000), GROWING)
    assert client.n_ctx == 4096
    answer(client, long_request(4000, 96))
    assert client.n_ctx == 4096
    expected = answer(loaded.client(FakeModel(n_ctx_train=6000), EngineConfig(n_ctx=6000)), long_request(4100))
    assert answer(client, long_request(4100)) == expected
    assert client.n_ctx == 5120
    first, second = client.model.contexts  # type: ignore[attr-defined]
    assert first._closed
    assert not second._closed
    answer(client, long_request(4200, None))
    assert client.n_ctx == 6000, "an answer of unknown length gets 1024 tokens, as far as the model was trained"
    answer(client, long_request(10))
    assert client.n_ctx == 6000
    with pytest.raises(PromptTooLongError) as caught:
        answer(client, long_request(6000))
    assert "larger n_ctx" not in caught.value.hint


@pytest.mark.parametrize(("n_ctx_train", "config", "n_ctx"), [(8192, PLAIN, 512), (300, GROWING, 300)])
def test_the_context_does_not_grow(loaded: Loaded, n_ctx_train: int, config: EngineConfig, n_ctx: int) -> None:
    """It was given a size, or is as large as it can be."""
    client = loaded.client(FakeModel(n_ctx_train=n_ctx_train), config)
    assert client.n_ctx == n_ctx
    with pytest.raises(PromptTooLongError) as caught:
        answer(client, long_request(n_ctx))
    assert ("larger n_ctx (up to 8192)" in caught.value.hint) == (n_ctx_train > n_ctx)
    assert len(answer(client, long_request(n_ctx - 5, None))) == 5
    assert client.n_ctx == n_ctx


def test_what_was_learnt_survives_growth(loaded: Loaded) -> None:
    client = loaded.client(FakeModel(n_ctx_train=8192), EngineConfig(learn=False))
    answer(client, long_request(10))
    engine, context = client.call(lambda setup: (setup.engine, setup.context))
    policy = engine._policy
    assert policy is not None
    answer(client, long_request(5000))
    assert client.call(lambda setup: setup.engine) is engine
    assert client.call(lambda setup: setup.context) is not context
    assert engine._policy is policy


def test_room_can_be_reserved(loaded: Loaded) -> None:
    client = loaded.client(FakeModel(n_ctx_train=8192), GROWING)
    client.reserve(4000)
    assert client.n_ctx == 4096
    client.reserve(5000)
    assert client.n_ctx == 5120
    answer(client, long_request(5000))
    assert client.n_ctx == 5120
    fixed = loaded.client()
    fixed.reserve(5000)
    assert fixed.n_ctx == 512


class SmallMachine(FakeModel):
    """Contexts of more than ``n_most`` tokens cannot be made; when ``is_full``, none at all."""

    n_most = 4096
    is_full = False

    def new_context(self, params: ContextParams) -> FakeContext:
        if params.n_ctx > self.n_most:
            self.n_most = 0 if self.is_full else self.n_most
            raise ModelError("No memory.")
        return super().new_context(params)


def test_a_context_that_cannot_grow(loaded: Loaded) -> None:
    client = loaded.client(SmallMachine(n_ctx_train=8192), GROWING)
    expected = answer(client)
    for _ in range(2):
        with pytest.raises(ModelError, match="No memory"):
            answer(client, long_request(5000))
        assert client.n_ctx == 4096
        assert answer(client) == expected


def test_a_context_that_can_neither_grow_nor_come_back(loaded: Loaded) -> None:
    model = SmallMachine(n_ctx_train=8192)
    model.is_full = True
    client = loaded.client(model, GROWING)
    with pytest.raises(EngineCrashedError, match="No memory"):
        answer(client, long_request(5000))
    with pytest.raises(EngineCrashedError):
        client.submit(request())


# Processes that end or fork

PROLOGUE = """
    import os, sys, threading
    from edgedec.client import Client
    from edgedec.config import EngineConfig
    from edgedec.llama.fake import FakeModel
    from edgedec.types import Request
    OFF = EngineConfig(n_ctx=64, speculate=("off",))
    HOUR = dict(delay=lambda n_rows, n_past: 3600.0, sleep=True)
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    source = textwrap.dedent(PROLOGUE) + textwrap.dedent(script)
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "script",
    [
        "client = Client(FakeModel(), OFF)",
        "client = Client(FakeModel(**HOUR), OFF)\nkept = [client.submit(Request((97,))) for _ in range(3)]",
        # One forgotten before and one after the one that runs; and one that is collected while it runs.
        """
        first, busy, last, lost = (Client(FakeModel(**HOUR), OFF) for _ in range(4))
        busy.submit(Request((97,)))
        del lost
        """,
        "client = Client(FakeModel(**HOUR), OFF)\nclient.submit(Request((97,)))\nraise SystemExit(0)",
    ],
)
def test_the_interpreter_ends_whatever_runs(script: str) -> None:
    done = run(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_everything_is_freed_before_the_interpreter_goes() -> None:
    done = run("""
        class Model(FakeModel):
            def close(self):
                print("freed", flush=True)

        models = [Model(**HOUR) for _ in range(3)]
        clients = [Client(model, OFF) for model in models]
        kept = [client.submit(Request((97,))) for client in clients]
    """)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["freed"] * 3, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_a_forked_child() -> None:
    """It is told what is wrong, and ends as if nothing had been."""
    done = run("""
        import gc, warnings
        from edgedec.errors import UsageError
        warnings.simplefilter("ignore")
        client, lost = Client(FakeModel(), OFF), Client(FakeModel(), OFF)
        expected = client.submit(Request((97,), max_tokens=4)).result().token_ids
        pid = os.fork()
        if pid == 0:
            for call in (lambda: client.submit(Request((97,))), lambda: Client(FakeModel(), OFF)):
                try:
                    call()
                except UsageError as error:
                    print(error, error.hint)
            del lost
            gc.collect()
            client.close()
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert len(client.submit(Request((97,), max_tokens=4)).result().token_ids) == 4
        print("the parent goes on")
    """)
    assert (done.returncode, done.stderr) == (0, "")
    first, second, third = done.stdout.splitlines()
    assert first == second
    assert "forked" in first
    assert '"spawn"' in first
    assert third == "the parent goes on"
