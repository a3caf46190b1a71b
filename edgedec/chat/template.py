"""From messages to token ids, through the model's own chat template.

A template is code that came with a file from the internet, so it runs in Jinja's sandbox. Text of a message that spells
a control token stays text: such a message is tokenised apart from the template around it.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgedec.errors import TemplateError
from edgedec.types import Message

if TYPE_CHECKING:
    from edgedec.llama.base import Model

PLAIN_FORMAT = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}\n\n"
    "{% elif m.role == 'user' %}User: {{ m.content }}\n\n"
    "{% else %}Assistant: {{ m.content | trim }}\n\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""For models without a template: "User: …", "Assistant: …", a blank line between turns, the system text on top."""

PLAIN_STOP = ("\nUser:",)

_OPEN, _CLOSE = "\ue000", "\ue001"  # private-use characters around the number of a message


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered conversation. ``text`` is "" when a message had to be tokenised apart from its surroundings."""

    ids: tuple[int, ...]
    text: str


class ChatTemplate:
    """Renders and tokenises conversations for one model. Raises TemplateError if the template is not valid."""

    def __init__(self, model: Model) -> None:
        self._model = model
        source = model.chat_template or None
        self.stop: tuple[str, ...] = () if source is not None else PLAIN_STOP
        self._special = {
            "bos_token": model.special_text(model.bos_id) if model.bos_id is not None else "",
            "eos_token": model.special_text(model.eos_id) if model.eos_id is not None else "",
        }
        self._template = _compile(source or PLAIN_FORMAT)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The conversation as text with control tokens spelled out. Raises TemplateError."""
        import jinja2

        try:
            text = self._template.render(
                messages=[{"role": m.role, "content": m.content} for m in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                **self._special,
            )
        except TemplateError:
            raise
        except (
            jinja2.TemplateError,
            TypeError,
            ValueError,
            AttributeError,
            LookupError,
            ArithmeticError,
            RecursionError,
        ) as error:
            raise TemplateError(
                f"The model's chat template failed: {error}.", "Use --raw (raw=True) to send the text without it."
            ) from error
        return str(text)

    def encode(self, messages: Sequence[Message]) -> Prompt:
        """Token ids of the conversation up to where the model answers."""
        special = (*self._model.control_strings(), _OPEN)
        apart = {str(i): m.content for i, m in enumerate(messages) if any(s in m.content for s in special)}
        if not apart:
            text = self.render(messages)
            return Prompt(tuple(self._with_bos(self.tokens(text))), text)
        marked = [Message(m.role, f"{_OPEN}{i}{_CLOSE}") if str(i) in apart else m for i, m in enumerate(messages)]
        ids: list[int] = []
        head, *rest = self.render(marked).split(_OPEN)
        ids += self.tokens(head)
        for part in rest:
            number, closed, tail = part.partition(_CLOSE)
            if closed and number in apart:
                ids += self._model.tokenize(apart[number])
                ids += self.tokens(tail)
            else:
                ids += self.tokens(_OPEN + part)
        return Prompt(tuple(self._with_bos(ids)), "")

    def tokens(self, text: str) -> list[int]:
        """Ids of template text, in which control tokens are spelled out."""
        return self._model.tokenize(text, parse_special=True) if text else []

    def _with_bos(self, ids: list[int]) -> list[int]:
        return with_bos(self._model, ids)


def with_bos(model: Model, ids: list[int]) -> list[int]:
    """``ids`` with exactly the beginning-of-text token that the model wants: never two."""
    bos = model.bos_id
    wants = bos is not None and model.tokenize("", add_special=True)[:1] == [bos]
    return [bos, *ids] if wants and bos is not None and ids[:1] != [bos] else ids


def encode_raw(model: Model, text: str) -> tuple[int, ...]:
    """Ids of a prompt that is sent as it is; control tokens may be spelled out."""
    return tuple(with_bos(model, model.tokenize(text, parse_special=True)))


def _compile(source: str) -> Any:
    import jinja2
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _generation_blocks()]
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    environment.filters["tojson"] = _to_json
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise TemplateError(
            f"The model's chat template is not valid: {error}.", "Use --raw (raw=True) to send the text without it."
        ) from error


def _raise_exception(message: str) -> None:
    raise TemplateError(
        f"The model's chat template refused the messages: {message.rstrip('.')}.",
        "Change the messages, or use --raw (raw=True) to send text without the template.",
    )


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _generation_blocks() -> Any:
    """``{% generation %}…{% endgeneration %}`` marks answers for training; here its content is simply kept."""
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 (Jinja's own interface)

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Generation
