"""Conversations of the Python API: what is kept, and what the next turn has to evaluate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from edgedec.errors import DecodeError, PromptTooLongError, UsageError
from edgedec.llama.fake import ASSISTANT, BOS, END, USER
from edgedec.llm import LLM, spelled
from edgedec.types import Message, Result
from tests.lab import SCRIPT, Loaded, context_of, said_to


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


def test_a_conversation(scripted: LLM) -> None:
    chat = scripted.chat(system="You count.")
    assert chat.messages == [Message("system", "You count.")]
    first = chat.send("Go")
    second = chat.send("Again")
    text = SCRIPT.decode()
    assert [(m.role, m.content) for m in chat.messages] == [
        ("system", "You count."),
        ("user", "Go"),
        ("assistant", text),
        ("user", "Again"),
        ("assistant", text),
    ]
    assert first.usage.cached_tokens == 0
    assert second.usage.cached_tokens == first.usage.prompt_tokens + len(first.token_ids)
    new = scripted.model.tokenize("<|end|>\n<|user|>\nAgain<|end|>\n<|assistant|>\n", parse_special=True)
    assert second.usage.prompt_tokens - second.usage.cached_tokens == len(new)


@pytest.mark.parametrize("options", [{"max_tokens": 9}, {"stop": "ree"}, {"stop": "two", "max_tokens": 30}])
def test_an_answer_that_was_cut_is_continued_as_it_reads(scripted: LLM, options: Any) -> None:
    """The next turn evaluates what a fresh model would be told, and not the stop string that was cut off."""
    chat = scripted.chat()
    first = chat.send("Go", **options)
    second = chat.send("Again")
    whole = scripted.template.encode([*chat.messages[:-1]])
    assert said_to(scripted)[: len(whole.ids)] == list(whole.ids)
    assert second.usage.cached_tokens >= first.usage.prompt_tokens + len(first.text) - 1


def test_answers_keep_their_tokens(loaded: Loaded) -> None:
    """A model may write what its tokenizer would never write; the next turn is about what it wrote."""
    script = "the café née".encode()  # byte by byte, although "the " and " é" are tokens
    llm = loaded.llm(script=script)
    chat = llm.chat()
    first = chat.send("Go")
    assert first.text == script.decode()
    second = chat.send("Again")
    assert second.usage.cached_tokens == first.usage.prompt_tokens + len(script)
    assert second.usage.prompt_tokens > len(llm.template.encode(chat.messages[:-1]).ids)


def test_broken_characters_in_an_answer(loaded: Loaded) -> None:
    chat = loaded.llm(script=b"ab\xff\xfecd\xc3").chat()
    first = chat.send("Go")
    assert first.text == "ab\ufffd\ufffdcd\ufffd"
    second = chat.send("Again")
    assert second.text == first.text
    assert second.usage.cached_tokens >= first.usage.prompt_tokens + 2


def test_streaming_a_turn(scripted: LLM) -> None:
    chat = scripted.chat()
    events = list(chat.stream("Go"))
    assert "".join(event.text for event in events) == SCRIPT.decode()
    assert events[-1].result is not None
    assert [m.content for m in chat.messages] == ["Go", SCRIPT.decode()]


def test_edit(scripted: LLM) -> None:
    chat = scripted.chat(system="x")
    for text in ("first", "second", "third"):
        chat.send(text)
    result = chat.edit(1, "other", max_tokens=3)
    assert [m.content for m in chat.messages][1::2] == ["first", "other"]
    assert chat.messages[-1] == Message("assistant", "one")
    assert result.usage.cached_tokens > 0
    chat.edit(-1, "last")
    assert [m.content for m in chat.messages][1::2] == ["first", "last"]
    chat.edit(0, "new")
    assert [m.content for m in chat.messages] == ["x", "new", SCRIPT.decode()]
    for turn in (1, -2, 5):
        with pytest.raises(UsageError, match=f"no user turn {turn}") as caught:
            chat.edit(turn, "nowhere")
        assert "has 1" in caught.value.hint
    assert len(chat.messages) == 3


def test_regenerate(llm: LLM) -> None:
    chat = llm.chat()
    with pytest.raises(UsageError, match="nothing to answer again"):
        chat.regenerate()
    first = chat.send("Hello!", max_tokens=12, seed=1)
    assert chat.regenerate(max_tokens=12, seed=1).token_ids == first.token_ids
    other = chat.regenerate(max_tokens=12, seed=2)
    assert other.token_ids != first.token_ids
    assert [m.content for m in chat.messages] == ["Hello!", other.text]
    assert other.usage.cached_tokens == other.usage.prompt_tokens - 1


def test_a_turn_that_fails_leaves_the_chat_as_it_was(scripted: LLM) -> None:
    chat = scripted.chat()
    chat.send("Go")
    before = list(chat.messages)
    calls: list[Callable[[], Result]] = [
        lambda: chat.send("Again"),
        lambda: chat.edit(0, "Other"),
        lambda: chat.regenerate(),
    ]
    for call in calls:
        context_of(scripted).fail_decode(DecodeError("out of luck"))
        with pytest.raises(DecodeError):
            call()
        assert chat.messages == before
    with pytest.raises(PromptTooLongError):
        chat.send("x" * 600)
    with pytest.raises(PromptTooLongError):
        chat.edit(0, "x" * 600)
    for name, value in (("system", "x"), ("raw", True)):
        with pytest.raises(UsageError, match="does not go with a chat turn"):
            chat.send("Hi", **{name: value})  # type: ignore[arg-type]
    assert chat.messages == before
    assert chat.send("Again").text == SCRIPT.decode()


def test_leaving_a_turn_early_keeps_what_was_read(scripted: LLM) -> None:
    chat = scripted.chat()
    shown = ""
    for event in chat.stream("Go"):
        shown += event.text
        if shown.endswith("two"):
            break
    assert [m.content for m in chat.messages] == ["Go", "one two"]
    result = chat.send("Again")
    assert result.text == SCRIPT.decode()
    whole = scripted.template.encode(chat.messages[:-1])
    assert said_to(scripted)[: len(whole.ids)] == list(whole.ids)


def test_a_turn_that_nobody_read_is_not_kept(scripted: LLM) -> None:
    chat = scripted.chat()
    chat.stream("Go")
    assert chat.messages == []
    assert chat.send("Go").text == SCRIPT.decode()


def test_control_tokens_in_a_conversation(scripted: LLM) -> None:
    """Spelled out by the user, they stay text in every turn."""
    chat = scripted.chat()
    chat.send("What is <|end|>?")
    chat.send("And <|assistant|>?")
    model = scripted.model
    expected = [BOS]
    for question in ("What is <|end|>?", "And <|assistant|>?"):
        expected += [USER, *b"\n", *model.tokenize(question), END, *b"\n"]
        expected += [ASSISTANT, *b"\n", *model.tokenize(SCRIPT.decode()), END, *b"\n"]
    ids = list(said_to(scripted))
    assert [t for t in ids if model.is_control(t)] == [t for t in expected[:-2] if model.is_control(t)]
    assert b"".join(model.piece(t) for t in ids) == b"".join(model.piece(t) for t in expected[:-2])


@pytest.mark.parametrize(
    ("text", "pieces", "n_pieces", "n_characters"),
    [
        ("abc", [b"a", b"bc"], 2, 3),
        ("ab", [b"a", b"bc"], 1, 1),
        ("aé", [b"a", b"\xc3", b"\xa9"], 3, 2),
        ("a\ufffd", [b"a", b"\xc3"], 1, 1),
        ("éx", [b"\xc3", b"\xa9x"], 2, 2),
        ("é", [b"\xc3", b"x"], 0, 0),
        ("ab", [b"a", b"", b"b", b"x"], 3, 2),
        ("", [b"x"], 0, 0),
        ("", [], 0, 0),
    ],
)
def test_spelled(text: str, pieces: list[bytes], n_pieces: int, n_characters: int) -> None:
    assert spelled(text, pieces) == (n_pieces, n_characters)
