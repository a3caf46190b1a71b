"""The seam between callers and the engine: submit a request, iterate its step events, cancel it.

All native computing of a process happens on one thread, whatever number of models is loaded. llama.cpp's CPU backend
keeps a team of OpenMP workers per calling thread; with a second team there are more workers than cores, every barrier
becomes a system call, and a small model runs at about half its speed. Callers' threads put
jobs into that thread's inbox and read events from a mailbox per request; the engine never waits for a reader.

A context that was not given a size grows, between requests, to what a request needs.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import TypeVar

from edgedec.config import EngineConfig
from edgedec.engine.setup import Setup, context_params, drafter_names, initial_n_ctx, set_up
from edgedec.errors import ClosedError, EdgedecError, EngineCrashedError, UsageError
from edgedec.llama.base import Model, ProgressCallback
from edgedec.types import Request, Result, StepEvent

log = logging.getLogger("edgedec.client")

T = TypeVar("T")

_ANSWER_ROOM = 1024  # tokens that an answer of unknown length is given when the context grows
_CTX_STEP = 1024


class EngineThread:
    """Runs jobs one after the other. Made once per process by `engine_thread`."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="edgedec-engine", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self._jobs.get()()

    def call(self, job: Callable[[], T]) -> Future[T]:
        """Run ``job`` after those before it; its result or exception arrives in the future. Raises UsageError in a
        forked child, where the thread does not exist."""
        if not self.is_here:
            raise UsageError(
                "This process was forked after a model had been used, and the engine does not survive a fork.",
                'Load models in the child only, or start workers with multiprocessing\'s "spawn" method.',
            )
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)

        self._jobs.put(run)
        return future

    @property
    def is_here(self) -> bool:
        """Whether the thread exists in this process: it does not in a forked child."""
        return os.getpid() == self._pid

    @property
    def is_current(self) -> bool:
        """Whether the caller is a job."""
        return threading.current_thread() is self._thread


_first_call = threading.Lock()


def engine_thread() -> EngineThread:
    """The one thread of this process that computes."""
    with _first_call:
        return _engine_thread()


@cache
def _engine_thread() -> EngineThread:
    return EngineThread()


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
    """What a client has on the engine thread. Holds no reference to it, so that a forgotten client can end."""

    def __init__(self, model: Model, config: EngineConfig) -> None:
        self._model = model
        self._config = config
        self._thread = engine_thread()
        self._freed: Future[None] | None = None  # set when closing begins
        self._active: Generation | None = None
        self._crash: EngineCrashedError | None = None
        made = self._thread.call(lambda: set_up(model, config, initial_n_ctx(model, config)))
        try:
            self.setup: Setup = made.result()
        except BaseException:
            # After Ctrl-C the job still runs and uses the model: what it makes is closed behind it, on its own thread.
            discarded = self._thread.call(lambda: self._discard(made))
            if made.done():
                discarded.result()
            raise
        _workers.add(self)

    def _discard(self, made: Future[Setup]) -> None:
        if made.exception() is None:
            self.setup = made.result()
            self._free()
        else:
            self._model.close()

    def submit(self, generation: Generation) -> None:
        self.check()
        self._thread.call(lambda: self._serve(generation))

    def check(self) -> None:
        if self._freed is not None:
            raise ClosedError("The model has been closed.", "Load it again.")
        if self._crash is not None:
            raise self._crash

    def call(self, job: Callable[[Setup], T]) -> T:
        self.check()
        return self._thread.call(lambda: job(self.setup)).result()

    def cancel(self, seq_id: int) -> None:
        self.setup.engine.cancel(seq_id)

    def stop(self) -> Future[None] | None:
        """Cancel what runs, then free context and model; does not wait for it. None in a forked child, which has
        nothing to free."""
        if self._freed is None and self._thread.is_here:
            self._freed = self._thread.call(self._free)
            active = self._active
            if active is not None:
                active.cancel()
        return self._freed

    def _free(self) -> None:
        self.setup.engine.close()
        self.setup.context.close()
        self._model.close()

    def _serve(self, generation: Generation) -> None:
        self._active = generation
        try:
            self.check()
            self._make_room(generation.request)
            engine = self.setup.engine
            engine.submit(generation.seq_id, generation.request)
            if generation.is_cancelled or self._freed is not None:
                engine.cancel(generation.seq_id)
            while not engine.is_idle:
                for _, item in engine.step():
                    generation.put(item)
        except EdgedecError as error:
            generation.put(error)
        except BaseException as error:
            log.exception("the engine failed unexpectedly")
            generation.put(self._crashed(error))
        finally:
            self._active = None

    def _crashed(self, error: BaseException) -> EngineCrashedError:
        self._crash = EngineCrashedError(f"The engine stopped unexpectedly: {error!r}.", "Load the model again.")
        self._crash.__cause__ = error
        return self._crash

    def _make_room(self, request: Request) -> None:
        limit = self._model.n_ctx_train
        self.grow(len(request.prompt) + (request.max_tokens or min(_ANSWER_ROOM, max(1, limit - len(request.prompt)))))

    def grow(self, needed: int) -> None:
        """Replace the context by a larger one if it was sized automatically and holds less than ``needed`` tokens. For
        the engine thread, between requests."""
        limit, n_ctx = self._model.n_ctx_train, self.setup.context.n_ctx
        if self._config.n_ctx is not None or needed <= n_ctx or n_ctx >= limit:
            return
        wanted = min(limit, -(-needed // _CTX_STEP) * _CTX_STEP)
        log.info("the context grows from %d to %d tokens", n_ctx, wanted)
        self.setup.context.close()
        try:
            self._move_to(wanted)
        except EdgedecError:
            try:
                self._move_to(n_ctx)
            except EdgedecError as error:
                raise self._crashed(error) from error
            raise

    def _move_to(self, n_ctx: int) -> None:
        self.setup.context = self._model.new_context(context_params(self._config, n_ctx))
        self.setup.engine.move_to(self.setup.context)


_workers: weakref.WeakSet[_Worker] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """Native code must be at rest when the interpreter goes. All are told first: they share a thread."""
    for freed in [worker.stop() for worker in list(_workers)]:
        if freed is not None:
            freed.result()
    if _engine_thread.cache_info().currsize and engine_thread().is_here:
        engine_thread().call(lambda: None).result()  # an interrupted load may still be at work


class Client:
    """A loaded model and its engine.

    Args:
        model: taken over: `close` closes it.
        config: how to run it.
    """

    def __init__(self, model: Model, config: EngineConfig) -> None:
        self._worker = _Worker(model, config)
        self.model = model
        self.config = config
        self._ids = itertools.count()
        # The collector may run in any thread: nothing is waited for, and at exit `_stop_all` sees to it.
        weakref.finalize(self, self._worker.stop).atexit = False

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

    def call(self, job: Callable[[Setup], T]) -> T:
        """Run ``job`` on the engine thread, between requests, and return what it returns.

        Whatever decodes must run there; see the module's text.
        """
        return self._worker.call(job)

    def reserve(self, n_tokens: int) -> None:
        """Make room for requests of so many tokens, if the context was sized automatically. It grows by itself when a
        request needs it; this is for those who want to know beforehand what fits."""
        self._worker.call(lambda _: self._worker.grow(n_tokens))

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
        freed = self._worker.stop()
        if freed is not None and not engine_thread().is_current:
            freed.result()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
