"""The seam between callers and the engine: submit a request, iterate its step events, cancel it.

One thread owns the context. Callers' threads put requests into its inbox and read events from a mailbox each; the
engine never waits for a reader. A context that was not given a size grows, between requests, to what a request
needs.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

from edgedec.config import EngineConfig
from edgedec.engine.setup import Setup, drafter_names, initial_n_ctx, set_up
from edgedec.errors import ClosedError, EdgedecError, EngineCrashedError
from edgedec.llama.base import Model, ProgressCallback
from edgedec.types import Request, Result, StepEvent

log = logging.getLogger("edgedec.client")

_ANSWER_ROOM = 1024  # tokens that an answer of unknown length is given when the context grows
_CTX_STEP = 1024


class Generation:
    """A running request. Iterate it for `StepEvent`s; the last one has ``finish_reason`` and ``result``."""

    def __init__(self, seq_id: int, request: Request, client: Client) -> None:
        self.seq_id = seq_id
        self.request = request
        self._client = client  # a client must not be collected while somebody reads its answer
        self._mailbox: queue.SimpleQueue[StepEvent | EdgedecError] = queue.SimpleQueue()
        self._result: Result | None = None
        self._error: EdgedecError | None = None
        self._cancelled = False

    def __iter__(self) -> Iterator[StepEvent]:
        while self._result is None:
            if self._error is not None:
                raise self._error
            item = self._mailbox.get()
            if isinstance(item, EdgedecError):
                self._error = item
                raise item
            self._result = item.result
            yield item

    def result(self) -> Result:
        """Wait for the end and return the whole answer. Raises what the request failed with."""
        for _ in self:
            pass
        assert self._result is not None
        return self._result

    def cancel(self) -> None:
        """Stop within one step. The events still end with a result, whose finish_reason is "cancelled"."""
        self._cancelled = True
        self._client.cancel(self.seq_id)

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled

    def put(self, item: StepEvent | EdgedecError) -> None:
        """For the engine thread."""
        self._mailbox.put(item)


class _Worker:
    """Everything that the engine thread owns. Holds no reference to `Client`, so that a forgotten client can end."""

    def __init__(self, model: Model, config: EngineConfig, setup: Setup) -> None:
        self._model = model
        self._config = config
        self._setup = setup
        self._inbox: queue.SimpleQueue[Generation | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._ended = threading.Event()
        self._active: Generation | None = None
        self._crash: EdgedecError | None = None
        self._thread = threading.Thread(target=self._run, name="edgedec-engine", daemon=True)
        self._thread.start()

    @property
    def setup(self) -> Setup:
        return self._setup

    def submit(self, generation: Generation) -> None:
        if self._crash is not None:
            raise self._crash
        if self._closing.is_set():
            raise ClosedError("The model has been closed.", "Load it again.")
        self._inbox.put(generation)
        if self._ended.is_set():  # the thread may have ended between the checks above and the put
            self._refuse_rest()

    def cancel(self, seq_id: int) -> None:
        self._setup.engine.cancel(seq_id)

    def stop(self) -> None:
        """End the thread, then free context and model. A second call does nothing."""
        if self._closing.is_set():
            return
        self._closing.set()
        active = self._active
        if active is not None:
            active.cancel()
        self._inbox.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._setup.context.close()
        self._model.close()

    def _run(self) -> None:
        try:
            while (generation := self._inbox.get()) is not None:
                self._active = generation
                self._serve(generation)
                self._active = None
        except BaseException as error:
            log.exception("the engine thread ended")
            self._crash = EngineCrashedError(f"The engine stopped unexpectedly: {error!r}.", "Load the model again.")
            self._crash.__cause__ = error
            if self._active is not None:
                self._active.put(self._crash)
        self._ended.set()
        self._refuse_rest()

    def _refuse_rest(self) -> None:
        error = self._crash or ClosedError("The model was closed before the request ran.", "Load it again.")
        while True:
            try:
                generation = self._inbox.get_nowait()
            except queue.Empty:
                return
            if generation is not None:
                generation.put(error)

    def _serve(self, generation: Generation) -> None:
        try:
            self._make_room(generation.request)
            engine = self._setup.engine
            engine.submit(generation.seq_id, generation.request)
        except EdgedecError as error:
            generation.put(error)
            return
        if generation.is_cancelled or self._closing.is_set():
            engine.cancel(generation.seq_id)
        while not engine.is_idle:
            for _, item in engine.step():
                generation.put(item)

    def _make_room(self, request: Request) -> None:
        """Replace the context by a larger one if it was sized automatically and this request needs more."""
        limit, n_ctx = self._model.n_ctx_train, self._setup.context.n_ctx
        needed = len(request.prompt) + (request.max_tokens or min(_ANSWER_ROOM, max(1, limit - len(request.prompt))))
        if self._config.n_ctx is not None or needed <= n_ctx or n_ctx >= limit:
            return
        wanted = min(limit, -(-needed // _CTX_STEP) * _CTX_STEP)
        log.info("the context grows from %d to %d tokens", n_ctx, wanted)
        self._setup.context.close()
        try:
            self._setup = set_up(self._model, self._config, wanted)
        except EdgedecError:
            self._setup = set_up(self._model, self._config, n_ctx)
            raise


class Client:
    """A loaded model and its engine thread.

    Args:
        model: taken over: `close` closes it.
        config: how to run it.
    """

    def __init__(self, model: Model, config: EngineConfig) -> None:
        try:
            setup = set_up(model, config, initial_n_ctx(model, config))
        except BaseException:
            model.close()
            raise
        self.model = model
        self.config = config
        self._ids = itertools.count()
        self._worker = _Worker(model, config, setup)
        self._finalizer = weakref.finalize(self, self._worker.stop)

    @classmethod
    def load(cls, path: Path, config: EngineConfig, *, progress: ProgressCallback | None = None) -> Client:
        """Load a GGUF file. Raises ModelError or UsageError (also for unknown drafters, before anything is loaded)."""
        from edgedec.llama.model import LlamaModel

        drafter_names(config.speculate)
        return cls(LlamaModel(path, n_gpu_layers=config.n_gpu_layers, progress=progress), config)

    def submit(self, request: Request) -> Generation:
        """Queue a request; requests run in the order of submission. Raises ClosedError."""
        generation = Generation(next(self._ids), request, self)
        self._worker.submit(generation)
        return generation

    def cancel(self, seq_id: int) -> None:
        """See `Generation.cancel`."""
        self._worker.cancel(seq_id)

    @property
    def n_ctx(self) -> int:
        """Tokens that the context holds now."""
        return self._worker.setup.context.n_ctx

    @property
    def note(self) -> str:
        """Why there is no speculation on this model; "" if there can be."""
        return self._worker.setup.note

    def close(self) -> None:
        """Stop the engine and free the model; running requests end as cancelled. A second call does nothing."""
        self._finalizer()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
