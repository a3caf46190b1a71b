"""The Python API on the fake: what people type, and what they get."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import edgedec
from edgedec.config import EngineConfig
from edgedec.errors import (
    ClosedError,
    ModelNotFoundError,
    PromptTooLongError,
    TemplateError,
    UnknownNameError,
    UsageError,
)
from edgedec.llama.fake import ASSISTANT, BOS, END, USER
from edgedec.llm import LLM
from edgedec.types import Message
from tests.lab import SCRIPT, Loaded, said_to


@pytest.fixture
def loaded() -> Iterator[Loaded]:
    found = Loaded()
    yield found
    found.close()


@pytest.fixture
def llm(loaded: Loaded) -> LLM:
    """Answers differently to different prompts."""
    return loaded.llm(end_rate=0.02)


@pytest.fixture
def scripted(loaded: Loaded) -> LLM:
    return loaded.scripted()


# Answers


def test_generate(scripted: LLM) -> None:
    result = scripted.generate("Count!")
    assert result.text == SCRIPT.decode()
    assert (result.token_ids, result.finish_reason) == (list(SCRIPT), "eog")
    assert result.usage.prompt_tokens == len("Count!") + 3 * len("\n") + 4, "and four control tokens"
    assert result.timing.load_s == scripted.load_s == 1.5
    assert result.speedup == result.timing.speedup == 1


def test_stream(scripted: LLM) -> None:
    stream = scripted.stream("Count!", max_tokens=7)
    events = list(stream)
    assert "".join(event.text for event in events) == "one two"
    assert events[-1].result is stream.result()
    assert stream.result().timing.load_s == 1.5


def test_what_is_known_about_the_model(llm: LLM) -> None:
    assert (llm.name, str(llm.path), llm.n_ctx, llm.note) == ("fake", "fake.gguf", 512, "")
    assert llm.metadata["general.architecture"] == "fake"
    assert llm.model is llm.client.model


def prompt_ids(llm: LLM, prompt: Any, **options: Any) -> tuple[int, ...]:
    generation = llm.stream(prompt, max_tokens=1, **options)._generation
    generation.result()
    return generation.request.prompt


def test_prompts(llm: LLM) -> None:
    """Text and the same text as a message are one; ids and raw text go without the template."""
    hello = prompt_ids(llm, "Hello!")
    assert hello == (BOS, USER, *b"\nHello!", END, *b"\n", ASSISTANT, *b"\n")
    assert prompt_ids(llm, [{"role": "user", "content": "Hello!"}]) == hello
    assert prompt_ids(llm, [Message("user", "Hello!")]) == hello
    with_system = prompt_ids(llm, "Hello!", system="Brief.")
    assert prompt_ids(llm, [{"role": "system", "content": "Brief."}, Message("user", "Hello!")]) == with_system
    assert prompt_ids(llm, "Hello!", system="") != hello
    assert prompt_ids(llm, [97, 98]) == (97, 98)
    assert prompt_ids(llm, (97, END)) == (97, END)
    assert prompt_ids(llm, "Hi<|end|>", raw=True) == (BOS, *b"Hi", END)
    assert prompt_ids(llm, "Hi<|end|>").count(END) == 1


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "prompt is empty"),
        ("Hi", {"raw": True, "system": "x"}, "needs the chat template"),
        ([97], {"raw": True}, "go with a text prompt"),
        ([97], {"system": "x"}, "go with a text prompt"),
        ([{"role": "user", "content": "x"}], {"system": "x"}, "go with a text prompt"),
        ([{"role": "user"}], {}, "is not a message"),
        ([97, "x"], {}, "is not a message"),
        ([True], {}, "is not a message"),
        ([97, 10**6], {}, "token id outside"),
        ("Hi", {"max_tokens": 0}, "max_tokens is 0"),
        ("Hi", {"stop": ""}, "stop string is empty"),
        ("Hi", {"temperature": -1}, "temperature is -1"),
        ("Hi", {"logit_bias": {10**6: 1}}, "logit_bias names token"),
        ("Hi", {"speculate": "auto,off"}, "cannot be combined"),
    ],
)
def test_impossible_calls(llm: LLM, prompt: Any, options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        llm.generate(prompt, **options)
    assert caught.value.exit_code == 2
    assert llm.generate("Hi", max_tokens=2).text


@pytest.mark.parametrize(
    ("name", "near"), [("temprature", "temperature"), ("max_token", "max_tokens"), ("stops", "stop"), ("topk", "top_k")]
)
def test_unknown_options(llm: LLM, name: str, near: str) -> None:
    for call in (llm.generate, llm.stream, llm.chat().send, llm.chat().stream):
        with pytest.raises(UnknownNameError) as caught:
            call("Hi", **{name: 1})  # type: ignore[arg-type]
        assert caught.value.hint.startswith(f"Did you mean {near!r}?")


def test_unknown_drafters(llm: LLM) -> None:
    with pytest.raises(UnknownNameError, match="'sufix'") as caught:
        llm.generate("Hi", speculate="sufix")
    assert "'suffix'" in caught.value.hint


def test_a_prompt_that_is_too_long(llm: LLM) -> None:
    with pytest.raises(PromptTooLongError):
        llm.generate("x" * 600)
    with pytest.raises(TypeError, match="prompt"):
        llm.generate()  # type: ignore[call-arg]


def test_stop_strings(scripted: LLM) -> None:
    assert scripted.generate("Go", stop="three").text == "one two "
    assert scripted.generate("Go", stop=["never", ". T"]).text == "one two three"
    assert scripted.generate("Go", stop=()).finish_reason == "eog"


def test_seeds(llm: LLM) -> None:
    """A result tells its seed, and the seed gives the result again."""
    results = [llm.generate("Hello!", max_tokens=12) for _ in range(4)]
    assert len({result.seed for result in results}) == 4
    assert len({result.text for result in results}) > 1
    for result in results:
        again = llm.generate("Hello!", max_tokens=12, seed=result.seed)
        assert (again.token_ids, again.seed) == (result.token_ids, result.seed)
    assert llm.generate("Hello!", max_tokens=2, seed=None).seed != llm.generate("Hello!", max_tokens=2, seed=None).seed


def test_options_reach_the_sampler(llm: LLM) -> None:
    greedy = llm.generate("Hello!", max_tokens=12, temperature=0)
    first = greedy.token_ids[0]
    forbidden = llm.generate("Hello!", max_tokens=12, temperature=0, logit_bias={first: float("-inf")})
    assert first not in forbidden.token_ids
    wished = llm.generate("Hello!", max_tokens=3, temperature=0, logit_bias={120: 100.0})
    assert wished.text == "xxx"
    options = {
        "temperature": 0,
        "dry_multiplier": 100.0,
        "dry_allowed_length": 1,
        "logit_bias": {120: 100.0, 121: 60.0},
    }
    free = llm.generate("Hello!", max_tokens=9, **options).text  # type: ignore[arg-type]
    broken = llm.generate("Hello!", max_tokens=9, dry_sequence_breakers=["x", "y"], **options).text  # type: ignore[arg-type]
    assert broken == "x" * 9 != free


@pytest.mark.parametrize("choice", [True, "auto", "suffix", ["suffix"]])
def test_guessing_does_not_change_the_answer(loaded: Loaded, choice: Any) -> None:
    guessing, plain = loaded.llm(EngineConfig(n_ctx=512)), loaded.llm()
    for seed in range(3):
        options: dict[str, Any] = {"max_tokens": 60, "seed": seed}
        result = guessing.generate("Again and again and again", speculate=choice, **options)
        assert result.token_ids == plain.generate("Again and again and again", **options).token_ids
        assert result.speculation.mode == ("suffix" if choice in ("suffix", ["suffix"]) else "auto")
    for off in (False, "off"):
        declined = guessing.generate("Again and again", max_tokens=30, speculate=off).speculation
        assert (declined.mode, declined.drafted) == ("off", 0)


def test_an_error_of_the_template(loaded: Loaded) -> None:
    refusing = loaded.llm(chat_template="{{ raise_exception('No!') }}")
    with pytest.raises(TemplateError, match="No!"):
        refusing.generate("Hi")
    assert refusing.generate("Hi", raw=True, max_tokens=3).text
    broken = loaded.llm(chat_template="{% if %}")
    for _ in range(2):
        with pytest.raises(TemplateError, match="not valid"):
            broken.generate("Hi")
    assert broken.generate([97], max_tokens=3).text


def test_a_model_without_a_template(loaded: Loaded) -> None:
    """The next question that such a model makes up is not part of its answer."""
    bare = loaded.llm(chat_template=None, script=b" Yes.\n\nUser: And")
    result = bare.generate("Really?")
    assert (result.text, result.finish_reason) == (" Yes.\n", "stop")
    assert bare.generate("Really?", stop="es").text == " Y"
    chat = bare.chat()
    chat.send("Really?")
    chat.send("Really?")
    text = b"".join(map(bare.model.piece, said_to(bare))).decode()
    assert text.startswith("User: Really?\n\nAssistant: Yes.\n\nUser: Really?\n\nAssistant: Yes.\n")


def test_closing(loaded: Loaded) -> None:
    with loaded.llm() as llm:
        assert llm.generate("Hi", max_tokens=2).text
    llm.close()
    for call in (lambda: llm.generate("Hi"), lambda: llm.generate([97]), lambda: llm.chat().send("Hi")):
        with pytest.raises(ClosedError):
            call()


def test_load_errors(home: object) -> None:
    """Before anything is loaded."""
    with pytest.raises(ModelNotFoundError):
        edgedec.load("./no/such/file.gguf")
    for options, error in (({"n_ctx": 1}, UsageError), ({"speculate": "auto,off"}, UsageError)):
        with pytest.raises(error):
            edgedec.load("./no/such/file.gguf", **options)  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers(llm: LLM) -> None:
    temperature = np.float64(0.0)
    assert llm.generate("Hi", max_tokens=3, temperature=temperature).usage.completion_tokens == 3


# Leaving early


class Endless:
    """Answers go on until the context is full, and each decode after the ``n``-th waits to be cancelled: so a
    request that is not cancelled keeps the next one waiting for an hour."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, n_rows: int, n_past: int) -> float:
        self.n -= 1
        return 3600.0 if self.n < 0 else 0.0


def endless(loaded: Loaded, n: int) -> tuple[LLM, Endless]:
    delay = Endless(n)
    return loaded.llm(delay=delay, sleep=True), delay


def test_leaving_the_loop_cancels(loaded: Loaded) -> None:
    llm, delay = endless(loaded, 3)
    stream = llm.stream("Tell me a story")
    for event in stream:
        if event.token_ids:
            break
    result = stream.result()
    assert result.finish_reason == "cancelled"
    assert 1 <= len(result.token_ids) <= 3
    delay.n = 100
    assert llm.generate("Hi", max_tokens=3).finish_reason == "length"


def test_an_exception_in_the_loop_cancels(loaded: Loaded) -> None:
    llm, delay = endless(loaded, 3)
    stream = llm.stream("Tell me a story")

    def read() -> None:
        for event in stream:
            print(event.no_such_field)  # type: ignore[attr-defined]

    with pytest.raises(AttributeError):
        read()
    assert stream.result().finish_reason == "cancelled"
    delay.n = 100
    assert llm.generate("Hi", max_tokens=3).finish_reason == "length"


def test_an_interrupted_wait_cancels(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ctrl-C does it in `generate`."""
    llm, delay = endless(loaded, 3)
    stream = llm.stream("Tell me a story")
    mailbox = stream._generation._mailbox

    class Interrupted:
        def get(self) -> object:
            raise KeyboardInterrupt

    monkeypatch.setattr(stream._generation, "_mailbox", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        stream.result()
    monkeypatch.setattr(stream._generation, "_mailbox", mailbox)
    assert stream.result().finish_reason == "cancelled"
    delay.n = 100
    assert llm.generate("Hi", max_tokens=3).finish_reason == "length"


def test_cancel(loaded: Loaded) -> None:
    llm, _ = endless(loaded, 3)
    stream = llm.stream("Tell me a story")
    events = iter(stream)
    shown = "".join(next(events).text for _ in range(2))
    threading.Thread(target=stream.cancel).start()
    rest = list(events)
    result = rest[-1].result
    assert result is not None
    assert result.finish_reason == "cancelled"
    assert result.text == shown + "".join(event.text for event in rest)
    stream.cancel()
    assert stream.result() is result


def test_reading_to_the_end_is_no_cancel(scripted: LLM) -> None:
    stream = scripted.stream("Count!")
    for event in stream:
        if event.result is not None:
            break
    assert stream.result().finish_reason == "eog"
