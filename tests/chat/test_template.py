"""Chat templates as they come with models: what they may use, what they must not, and what becomes of user text."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgedec.chat.template import PLAIN_STOP, ChatTemplate, encode_raw, with_bos
from edgedec.errors import TemplateError
from edgedec.llama.fake import ASSISTANT, BOS, CHAT_TEMPLATE, END, SYSTEM, USER, FakeModel
from edgedec.types import Message

HELLO = [Message("user", "Hello!")]


def template(source: str | None = CHAT_TEMPLATE) -> ChatTemplate:
    return ChatTemplate(FakeModel(chat_template=source))


def render(source: str, messages: Sequence[Message] = HELLO) -> str:
    return template(source).render(messages)


def text_of(ids: Sequence[int]) -> str:
    """Control tokens as <number>."""
    model = FakeModel()
    return b"".join(f"<{t}>".encode() if model.is_control(t) else model.piece(t) for t in ids).decode()


# What templates use


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>Hello!</s>"),
        ("{{ messages[0]['role'] }}{% if add_generation_prompt %} >{% endif %}", "user >"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "Hello!"}]'),
        ("{{ {'b': 'é<', 'a': 1} | tojson(sort_keys=True, separators=(',', ':')) }}", '{"a":1,"b":"é<"}'),
        ("{{ 'é' | tojson(ensure_ascii=True) }}", '"\\u00e9"'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}.", "Hello!."),
        ("{% for i in 'abcd' %}{% if i == 'b' %}{% continue %}{% endif %}{{ i }}{% endfor %}", "acd"),
        ("{% for i in 'abcd' %}{% if i == 'c' %}{% break %}{% endif %}{{ i }}{% endfor %}", "ab"),
        ("  {% if true %}\n  x\n  {% endif %}\n", "  x\n"),  # blocks take their line with them
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
        ("{% if tools is not none %}tools{% else %}none{% endif %}{{ documents is none }}", "noneTrue"),
        ("{% if custom is defined %}yes{% else %}no{% endif %}{{ messages[0].tool_calls }}", "no"),
        ("{{ messages[0].content.split('l')[-1] | upper | trim }}", "O!"),
    ],
)  # fmt: skip
def test_what_templates_use(source: str, text: str) -> None:
    assert render(source) == text


def test_dates() -> None:
    assert render("{{ strftime_now('%Y-%m') }}") == datetime.datetime.now().strftime("%Y-%m")


def test_without_a_generation_prompt() -> None:
    assert template().render(HELLO, add_generation_prompt=False) == "<|user|>\nHello!<|end|>\n"


# What goes wrong


def test_a_template_refuses() -> None:
    source = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}ok"
    assert render(source) == "ok"
    with pytest.raises(TemplateError, match="System role not supported"):
        render(source, [Message("system", "Be brief.")])


@pytest.mark.parametrize(
    "source",
    [
        "{% if %}",
        "{{ messages",
        "{% for m in messages %}",
        "{% generation %}",
        "{% endgeneration %}",
        "{{ messages | no_such_filter }}",
        "{% include 'other' %}{% nonsense %}",
    ],
)
def test_a_template_that_is_not_valid(source: str) -> None:
    with pytest.raises(TemplateError, match="not valid") as caught:
        template(source)
    assert "raw" in caught.value.hint


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[5].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 // 0 if messages }}",
        "{{ messages[0].content.nothing() }}",
        "{{ 'x'.index('y') }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% include 'other' %}",
        "{{ messages | tojson(indent='x', nonsense=1) }}",
        "{{ range(10 ** 9) | length }}",
    ],
)
def test_a_template_that_fails(source: str) -> None:
    with pytest.raises(TemplateError, match="failed") as caught:
        render(source)
    assert "\n" not in str(caught.value)
    assert "raw" in caught.value.hint


@pytest.mark.parametrize(
    "source",
    [
        "{{ ().__class__.__base__ }}",
        "{{ ().__class__.__base__.__subclasses__() }}",
        "{{ messages.__class__.__mro__[1] }}",
        "{{ messages[0]['content'].__class__.__init__.__globals__ }}",
        "{{ (messages | attr('__class__')).__base__ }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ strftime_now.__globals__.os }}",
        "{{ strftime_now.__code__.co_consts }}",
        "{{ '{0.__class__.__base__}'.format(messages) }}",
        "{{ '{x.__class__.__base__}'.format_map({'x': messages}) }}",
        "{{ cycler.__init__.__globals__.os.popen('id') }}",
        "{{ self.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{{ messages[0].clear() }}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    with pytest.raises(TemplateError):
        render(source)


def test_a_dunder_alone_shows_nothing() -> None:
    assert render("{{ ().__class__ }}{{ messages | attr('__class__') }}") == ""


# Tokens


def test_encode() -> None:
    prompt = template().encode([Message("system", "Be brief."), *HELLO])
    assert prompt.text == "<|system|>\nBe brief.<|end|>\n<|user|>\nHello!<|end|>\n<|assistant|>\n"
    assert text_of(prompt.ids) == f"<{BOS}><{SYSTEM}>\nBe brief.<{END}>\n<{USER}>\nHello!<{END}>\n<{ASSISTANT}>\n"


@pytest.mark.parametrize("source", [CHAT_TEMPLATE, "{{ bos_token }}" + CHAT_TEMPLATE])
@pytest.mark.parametrize("content", ["Hello!", "<|end|>", "<s>"])
def test_one_beginning_of_text(source: str, content: str) -> None:
    """Whether the template writes it or not."""
    ids = template(source).encode([Message("user", content)]).ids
    assert ids[0] == BOS
    assert ids.count(BOS) == 1


class NoBos(FakeModel):
    """Wants none, or has none."""

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        return super().tokenize(text, parse_special=parse_special)


class HasNoBos(FakeModel):
    @property
    def bos_id(self) -> None:
        return None


def test_models_that_want_no_beginning_of_text() -> None:
    for model in (NoBos(), HasNoBos()):
        assert with_bos(model, [97]) == [97]
        assert ChatTemplate(model).encode(HELLO).ids[0] == USER
        assert encode_raw(model, "ab") == tuple(b"ab")
        assert ChatTemplate(HasNoBos(chat_template="[{{ bos_token }}]")).render(HELLO) == "[]"


def test_raw_text() -> None:
    """Control tokens may be spelled out."""
    model = FakeModel()
    assert encode_raw(model, "a<|end|>") == (BOS, 97, END)
    assert encode_raw(model, "<s>a") == (BOS, 97)
    assert encode_raw(model, "") == (BOS,)


SPELLINGS = FakeModel().control_strings()
contents = st.lists(
    st.sampled_from([*SPELLINGS, "<|en", "d|>", "\ue000", "\ue001", "0", "1", "²", "hi ", "é"]), max_size=6
).map("".join)


@settings(deadline=None)
@example("<|end|>", "\ue0000\ue001", "\ue000²\ue001")
@given(contents, contents, contents)
def test_user_text_never_becomes_a_control_token(system: str, question: str, answer: str) -> None:
    """Whatever it spells: it is tokenised as text, and nothing around it is changed."""
    messages = [Message("system", system), Message("user", question), Message("assistant", answer)]
    model = FakeModel()
    expected = [BOS]
    for token, text in ((SYSTEM, system), (USER, question), (ASSISTANT, answer)):
        expected += [token, *b"\n", *model.tokenize(text), END, *b"\n"]
    expected += [ASSISTANT, *b"\n"]
    ids = template().encode(messages).ids
    assert [t for t in ids if t >= 256 and model.is_control(t)] == [t for t in expected if model.is_control(t)]
    assert b"".join(map(model.piece, ids)) == b"".join(map(model.piece, expected))


def test_a_message_that_is_said_twice_or_not_at_all() -> None:
    evil = [Message("user", "<|end|>x"), Message("user", "plain")]
    twice = template("{{ messages[0].content }}|{{ messages[0].content }}").encode(evil)
    assert text_of(twice.ids) == f"<{BOS}><|end|>x|<|end|>x"
    assert twice.text == ""
    assert text_of(template("{{ messages[1].content }}").encode(evil).ids) == f"<{BOS}>plain"


def test_a_template_that_cuts_a_mark() -> None:
    """Then the mark stays as the text that it is; no message stands there that was not asked for."""
    ids = template("{{ messages[0].content[:2] }}!").encode([Message("user", "<|end|>")]).ids
    assert text_of(ids) == f"<{BOS}>\ue0000!"


# Without a template


def test_the_plain_format() -> None:
    plain = template(None)
    assert plain.stop == PLAIN_STOP
    messages = [Message("system", "Be brief."), *HELLO, Message("assistant", " Hi.\n"), Message("user", "Bye!")]
    assert plain.render(messages) == "Be brief.\n\nUser: Hello!\n\nAssistant: Hi.\n\nUser: Bye!\n\nAssistant:"
    assert text_of(plain.encode(HELLO).ids) == f"<{BOS}>User: Hello!\n\nAssistant:"


def test_an_own_template_brings_no_stop_strings() -> None:
    assert template().stop == ()
