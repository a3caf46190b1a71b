"""An engine on the fake: drafters with known faults, a policy that always guesses, and a look into the memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from edgedec.drafters.base import Drafter, Walked, Want
from edgedec.drafters.suffix import SuffixDrafter
from edgedec.engine.engine import Engine
from edgedec.engine.kv import common_prefix
from edgedec.errors import EdgedecError
from edgedec.llama.base import ContextParams, MemoryKind, Rows
from edgedec.llama.fake import BOS, END, FakeContext, FakeModel
from edgedec.llama.fake.cells import NOTHING, Sight, States
from edgedec.types import TARGET, Candidates, Draft, Request, Result, SamplingParams, StepEvent

MEMORIES: dict[str, tuple[MemoryKind, dict[str, int]]] = {
    "full": (MemoryKind.FULL, {}),
    "window": (MemoryKind.WINDOW, {}),
    "hybrid": (MemoryKind.HYBRID, {}),
    "hybrid with snapshots": (MemoryKind.HYBRID, {"n_rs_seq": 5}),
    "recurrent": (MemoryKind.RECURRENT, {}),
    "recurrent with snapshots": (MemoryKind.RECURRENT, {"n_rs_seq": 5}),
}

GREEDY = SamplingParams(temperature=0)
EVERYTHING = SamplingParams(
    temperature=0.8,
    min_p=0.02,
    repeat_penalty=1.1,
    presence_penalty=0.1,
    frequency_penalty=0.2,
    penalty_last_n=24,
    dry_multiplier=0.5,
    dry_allowed_length=1,
    logit_bias=((ord("e"), 0.5),),
    seed=7,
)


def new_model(memory: str = "full", **settings: Any) -> FakeModel:
    kind, sizes = MEMORIES[memory]
    return FakeModel(kind, **{"order": 1, "end_rate": 0.01, **sizes, **settings})


def new_context(model: FakeModel, **params: Any) -> FakeContext:
    """A window of 16 in 40 cells: what has left it is soon overwritten."""
    return model.new_context(
        ContextParams(**{"n_ctx": 256, "n_batch": 64, "n_ubatch": 24, "n_outputs_max": 24, **params})
    )


def prompt_of(n: int, seed: int = 0) -> tuple[int, ...]:
    """``n`` tokens of text that repeats itself."""
    rng = np.random.default_rng(seed)
    return tuple(int(t) for t in rng.choice(np.frombuffer(b"abcab ", np.uint8), n))


class Always:
    """`Policy` without a judgement: the longest proposal is the draft."""

    plain_ms = 1.0
    speedup = 1.0

    def __init__(self, n_max: int = 16) -> None:
        self.n_max = n_max
        self.n_begun = 0
        self.learnt: list[tuple[Draft, tuple[int, ...]]] = []

    def begin(self) -> None:
        self.n_begun += 1

    def choose(self, proposals: Sequence[Candidates], n_max: int) -> Draft:
        longest = max(proposals, key=len)
        n = min(len(longest), n_max)
        return Draft(
            tuple(longest.tokens[:n]), tuple(longest.parents[:n]), (longest.source,) * n, tuple(longest.scores[:n])
        )

    def learn(
        self, proposals: Sequence[Candidates], draft: Draft, emitted: Sequence[int], step_ms: float, draft_ms: float
    ) -> None:
        assert 0 <= draft_ms <= step_ms
        self.learnt.append((draft, tuple(emitted)))


Guess = Callable[[Sequence[int], int], Sequence[int]]
"""(what was said so far, tokens wanted) -> what comes next."""


class Guesser(Drafter):
    """A chain from a function; knows the text as a real drafter does."""

    name = "guesser"

    def __init__(self, guess: Guess) -> None:
        super().__init__()
        self._guess = guess
        self.texts: dict[int, list[int]] = {}
        self.n_asked = 0

    def begin(self, seq_id: int, prompt: Sequence[int]) -> None:
        assert seq_id not in self.texts
        self.texts[seq_id] = list(prompt)

    def draft(self, wants: Sequence[Want]) -> list[Candidates]:
        self.n_asked += 1
        return [self._chain(self._guess(self.texts[want.seq_id], min(want.n_max, want.depth_max))) for want in wants]

    def _chain(self, tokens: Sequence[int]) -> Candidates:
        n = len(tokens)
        return Candidates(self.name, list(tokens), list(range(-1, n - 1)), [0.9] * n, [()] * n)

    def accept(self, seq_id: int, tokens: Sequence[int], used: bool) -> None:
        self.texts[seq_id].extend(tokens)

    def end(self, seq_id: int) -> None:
        self.texts.pop(seq_id, None)


class Faulty(Guesser):
    """Raises in one of its verbs, from the ``n``-th call on."""

    name = "faulty"
    needs = frozenset({"logits"})

    def __init__(self, verb: str, n: int = 1) -> None:
        super().__init__(lambda said, n_max: said[-2:][:n_max])
        self._verb, self._n = verb, n

    def _fail(self, verb: str) -> None:
        if verb == self._verb:
            self._n -= 1
            if self._n <= 0:
                raise RuntimeError(f"{verb} is broken")

    def begin(self, seq_id: int, prompt: Sequence[int]) -> None:
        self._fail("begin")
        super().begin(seq_id, prompt)

    def draft(self, wants: Sequence[Want]) -> list[Candidates]:
        self._fail("draft")
        return super().draft(wants)

    def process(self, seq_id: int, walked: Walked) -> None:
        self._fail("process")

    def accept(self, seq_id: int, tokens: Sequence[int], used: bool) -> None:
        self._fail("accept")
        super().accept(seq_id, tokens, used)

    def end(self, seq_id: int) -> None:
        self._fail("end")
        super().end(seq_id)


def oracle(text: Sequence[int], error_every: int = 0) -> Guesser:
    """Knows the whole text, prompt included; with errors, each ``error_every``-th of its tokens is another one."""

    def guess(said: Sequence[int], n: int) -> list[int]:
        start = len(said)
        return [
            t ^ 1 if error_every and (start + i) % error_every == 0 else t
            for i, t in enumerate(text[start : start + n])
        ]

    return Guesser(guess)


def at_random(seed: int = 0, tokens: Sequence[int] = range(97, 112)) -> Guesser:
    rng = np.random.default_rng(seed)
    return Guesser(lambda said, n: [int(t) for t in rng.choice(tokens, rng.integers(0, n, endpoint=True))])


def drafters_for(name: str, text: Sequence[int]) -> list[Drafter]:
    """``text``: prompt and plain answer, with its end token."""
    nasty = (END, BOS, ord("e"), ord(" "), ord("\n"), 262, 265)
    made: dict[str, Callable[[], list[Drafter]]] = {
        "suffix": lambda: [SuffixDrafter()],
        "random": lambda: [at_random()],
        "oracle": lambda: [oracle(text)],
        "oracle with errors": lambda: [oracle(text, 5)],
        "oracle and suffix": lambda: [oracle(text, 7), SuffixDrafter()],
        "ends": lambda: [Guesser(lambda said, n: (*text[len(said) : len(said) + len(said) % 3], END, END)[:n])],
        "nasty": lambda: [at_random(1, nasty)],
        "root again": lambda: [Guesser(lambda said, n: [said[-1]] * n)],
        "silent": lambda: [Guesser(lambda said, n: [])],
    }
    made |= {f"faulty {verb}": lambda verb=verb: [Faulty(verb, 3)] for verb in ("draft", "process", "accept")}
    made |= {f"faulty {verb}": lambda verb=verb: [Faulty(verb), oracle(text)] for verb in ("begin", "end")}
    return made[name]()


DRAFTERS = (
    "suffix", "random", "oracle", "oracle with errors", "oracle and suffix", "ends", "nasty", "root again", "silent",
    "faulty begin", "faulty draft", "faulty process", "faulty accept", "faulty end",
)  # fmt: skip


class Chain:
    """The running state after each token of a text, computed anew only where the text has changed."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._states = [NOTHING]

    def after(self, tokens: Sequence[int], n_tail: int) -> Sight:
        n = common_prefix(self._tokens, tokens)
        states = States(1, 0)
        if n:
            states.restore(0, n - 1, self._states[n])
        new = tokens[n:]
        rows = Rows(new, range(n, len(tokens)), ((0,),) * len(new), (False,) * len(new))
        self._states = [*self._states[: n + 1], *states.place(rows, n_tail)]
        self._tokens = list(tokens)
        return self._states[-1]


def check_memory(engine: Engine, context: FakeContext, chain: Chain) -> None:
    """The memory holds the tokens that the engine believes in, and nothing else: no rejected guess, no stale state."""
    tokens, memory = engine._kv.tokens, context._memory
    for cells in memory.caches:
        own = cells.seq[0]
        order = cells.pos[own].argsort()
        held = cells.pos[own][order].tolist()
        first = held[0] if held and cells.n_window else 0
        assert first <= max(0, len(tokens) + 1 - cells.n_window)
        assert held == list(range(first, len(tokens)))
        assert cells.token[own][order].tolist() == tokens[first:]
        assert np.count_nonzero(cells.pos >= 0) == len(held)
    if memory.states:
        assert memory.states.pos(0) == len(tokens) - 1
        assert memory.states.current(0) == chain.after(tokens, memory.n_tail)


@dataclass
class Played:
    """All that a request brought."""

    events: list[StepEvent] = field(default_factory=list)
    error: EdgedecError | None = None

    @property
    def result(self) -> Result:
        assert self.error is None
        result = self.events[-1].result
        assert result is not None
        return result

    def check(self, stop: Sequence[str] = (), n_most: int | None = None) -> None:
        """Events add up to the result, and nothing is guessed that cannot be among the ``n_most`` tokens of it."""
        result = self.result
        assert all(event.result is None and event.finish_reason is None for event in self.events[:-1])
        assert self.events[-1].finish_reason == result.finish_reason
        assert "".join(event.text for event in self.events) == result.text
        assert [t for event in self.events for t in event.token_ids] == result.token_ids
        assert sum(n for n, _ in result.spans) == result.usage.completion_tokens == len(result.token_ids)
        assert sum(n for event in self.events for n, _ in event.spans) == len(result.token_ids)
        assert not any(s in result.text for s in stop)
        n_said = 0
        for event in self.events:
            assert n_most is None or n_said + event.n_drafted < n_most
            n_said += len(event.token_ids)
        guessed = sum(n for n, source in result.spans if source != TARGET)
        stats = result.speculation
        assert guessed == stats.accepted == sum(event.n_accepted for event in self.events)
        assert stats.drafted == sum(event.n_drafted for event in self.events)
        assert stats.drafted == sum(counts.drafted for counts in stats.drafters.values())
        assert stats.accepted == sum(counts.accepted for counts in stats.drafters.values())


def play(engine: Engine, context: FakeContext, request: Request, seq_id: int = 0) -> Played:
    """Run one request to its end and look into the memory after each step."""
    engine.submit(seq_id, request)
    return finish(engine, context, seq_id)


def finish(engine: Engine, context: FakeContext, seq_id: int = 0) -> Played:
    """Run until the engine is idle; what request ``seq_id`` brought."""
    played, chain = Played(), Chain()
    while not engine.is_idle:
        for of, item in engine.step():
            if of == seq_id:
                assert played.error is None
                if isinstance(item, EdgedecError):
                    played.error = item
                else:
                    played.events.append(item)
        check_memory(engine, context, chain)
    return played


@cache
def plain(memory: str, request: Request, n_ctx: int = 256, **settings: Any) -> Result:
    """The answer without any guess. Shared: not to be changed."""
    model = new_model(memory, **settings)
    context = new_context(model, n_ctx=n_ctx)
    return play(Engine(model, context), context, request).result


def full_text(request: Request, answer: Result) -> list[int]:
    """Prompt, answer and end token: what an oracle may know."""
    return [*request.prompt, *answer.token_ids, *([END] if answer.finish_reason == "eog" else [])]


def assert_same(guessed: Result, answer: Result) -> None:
    assert guessed.token_ids == answer.token_ids
    assert guessed.text == answer.text
    assert guessed.finish_reason == answer.finish_reason
    assert guessed.usage == answer.usage


REQUEST = Request(prompt_of(30), GREEDY, max_tokens=30)


def with_oracle(memory: str, request: Request = REQUEST, error_every: int = 6) -> tuple[Engine, FakeContext]:
    """An engine with guesses that are partly right for ``request``."""
    model = new_model(memory)
    context = new_context(model)
    text = full_text(request, plain(memory, request))
    return Engine(model, context, [oracle(text, error_every)], Always()), context  # type: ignore[arg-type]


def works(engine: Engine, context: FakeContext, memory: str, seq_id: int = 99) -> None:
    """The engine answers another request as it should."""
    request = Request(prompt_of(25, 8), EVERYTHING, max_tokens=12)
    answer, result = plain(memory, request), play(engine, context, request, seq_id).result
    assert (result.token_ids, result.text, result.finish_reason) == (
        answer.token_ids,
        answer.text,
        answer.finish_reason,
    )
