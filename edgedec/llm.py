"""The Python API: `load` a model, `generate`, `stream`, `chat`."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from edgedec import catalogue
from edgedec.catalogue.progress import Progress, silent
from edgedec.chat.template import ChatTemplate, encode_raw
from edgedec.client import Client, Generation
from edgedec.config import AUTO, OFF, EngineConfig, may_learn, parse_speculate
from edgedec.engine.setup import drafter_names
from edgedec.errors import UnknownNameError, UsageError
from edgedec.types import Message, Request, Result, SamplingParams, StepEvent

if TYPE_CHECKING:
    from edgedec.llama.base import Model, ProgressCallback

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]] | Sequence[Message]
"""Text for the chat template, token ids, or messages (``{"role": …, "content": …}``)."""


class GenerateOptions(TypedDict, total=False):
    """Keywords of `LLM.generate`, `LLM.stream` and `Chat.send`; sampling as in `edgedec.types.SamplingParams`."""

    max_tokens: int | None
    stop: str | Sequence[str]
    system: str | None  # a system message in front of a text prompt
    raw: bool  # send the text without the chat template; control tokens may be spelled out
    speculate: bool | str | Sequence[str]  # False or "off": decoded plainly; names of drafters: guessed by these only
    prediction: str | Sequence[int]  # what the answer will be like (a file being edited): faster, never another answer
    seed: int | None  # None: a random one, reported in the result
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    penalty_last_n: int
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[str]
    logit_bias: Mapping[int, float]


_SAMPLING = {f.name for f in fields(SamplingParams)}


def sampling_params(options: GenerateOptions) -> SamplingParams:
    """The sampling part of the options. Raises UsageError for impossible values."""
    chosen: dict[str, Any] = {k: v for k, v in options.items() if k in _SAMPLING and v is not None}
    chosen.setdefault("seed", secrets.randbits(32))
    if "logit_bias" in chosen:
        bias = chosen["logit_bias"]
        if not isinstance(bias, Mapping) or not all(
            isinstance(t, int) and isinstance(b, int | float) for t, b in bias.items()
        ):
            raise UsageError(f"logit_bias is {bias!r:.60}.", "Give a mapping from token ids to numbers.")
        chosen["logit_bias"] = tuple((t, float(b)) for t, b in bias.items())
    if "dry_sequence_breakers" in chosen:
        chosen["dry_sequence_breakers"] = tuple(chosen["dry_sequence_breakers"])
    return SamplingParams(**chosen)


def _speculate(value: bool | str | Sequence[str]) -> bool | tuple[str, ...]:
    """How a request says it. True: all drafters that the model was loaded with. Raises UnknownNameError."""
    if isinstance(value, bool):
        return value
    names = parse_speculate(value)
    if names in ((AUTO,), (OFF,)):
        return names == (AUTO,)
    return tuple(drafter_names(names))


def check_options(options: Mapping[str, Any]) -> None:
    """Raises UnknownNameError for a keyword that does not exist, naming the nearest."""
    known = GenerateOptions.__annotations__
    for name in options:
        if name not in known:
            raise UnknownNameError("option", name, known)


class Stream:
    """An answer on its way: iterate it for `StepEvent`s (``event.text``), or take its `result`.

    Leaving the loop early, or interrupting `result`, cancels the answer: the next request need not wait for it.
    """

    def __init__(self, generation: Generation, load_s: float) -> None:
        self._generation = generation
        self._load_s = load_s

    def __iter__(self) -> Iterator[StepEvent]:
        try:
            for event in self._generation:
                if event.result is not None:
                    event.result.timing.load_s = self._load_s
                yield event
        except BaseException:
            self.cancel()
            raise

    def result(self) -> Result:
        """Wait for the end and return the whole answer."""
        for _ in self:
            pass
        return self._generation.result()

    def cancel(self) -> None:
        """Stop within one step; the result then has finish_reason "cancelled" and the text so far."""
        self._generation.cancel()


class LLM:
    """A loaded model. Use it as a context manager, or call `close`. Several threads may share it; requests queue."""

    def __init__(self, client: Client, load_s: float = 0.0) -> None:
        self._client = client
        self._load_s = load_s
        self._template: ChatTemplate | None = None

    @property
    def client(self) -> Client:
        """The engine's side: requests in token ids, and jobs on the engine thread."""
        return self._client

    @property
    def path(self) -> Path:
        return self._client.model.path

    @property
    def name(self) -> str:
        return self._client.model.name

    @property
    def metadata(self) -> Mapping[str, str]:
        """The GGUF's key-value pairs as text, without the vocabulary."""
        return self._client.model.metadata

    @property
    def model(self) -> Model:
        """The loaded file: vocabulary, tokenising, sizes."""
        return self._client.model

    @property
    def n_ctx(self) -> int:
        """Tokens that the context holds now."""
        return self._client.n_ctx

    @property
    def load_s(self) -> float:
        """Seconds that loading took, measuring included."""
        return self._load_s

    @property
    def note(self) -> str:
        """Why this model cannot be sped up; "" if it can."""
        return self._client.note

    @property
    def template(self) -> ChatTemplate:
        """The model's chat template. Raises TemplateError if it is not valid."""
        if self._template is None:
            self._template = ChatTemplate(self._client.model)
        return self._template

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Result:
        """Answer a prompt and wait for the end. See `GenerateOptions`.

        Raises UsageError, UnknownNameError, PromptTooLongError, TemplateError, DecodeError, ClosedError.
        """
        return self.stream(prompt, **options).result()

    def stream(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> Stream:
        """Answer a prompt step by step: ``for event in llm.stream(…): print(event.text, end="")``."""
        check_options(options)
        ids, stop = self._encode(prompt, options)
        return self.submit_ids(ids, options, stop)

    def submit_ids(self, ids: Sequence[int], options: GenerateOptions, stop: Sequence[str] = ()) -> Stream:
        """Answer token ids; ``stop`` are stop strings besides those of the options."""
        given = options.get("stop", ())
        if not isinstance(given, Iterable):
            raise UsageError(f"stop is {given!r}.", "Give a text, or a list of texts.")
        strings = (given,) if isinstance(given, str) else tuple(given)
        request = Request(
            prompt=tuple(ids),
            sampling=sampling_params(options),
            max_tokens=options.get("max_tokens"),
            stop=(*strings, *stop),
            speculate=_speculate(options.get("speculate", True)),
            prediction=self._prediction(options.get("prediction", ())),
        )
        return Stream(self._client.submit(request), self._load_s)

    def _prediction(self, value: str | Sequence[int]) -> tuple[int, ...]:
        if isinstance(value, str):
            return tuple(self._client.model.tokenize(value))
        if not all(isinstance(token, int) and not isinstance(token, bool) for token in value):
            raise UsageError(f"{value!r:.60} is not a prediction.", "Give text or token ids.")
        return tuple(value)

    def _encode(self, prompt: Prompt, options: GenerateOptions) -> tuple[Sequence[int], tuple[str, ...]]:
        """Token ids, and the stop strings that the chat format brings."""
        system = options.get("system")
        raw = options.get("raw", False)
        if system is not None and not isinstance(system, str):
            raise UsageError(f"system is {system!r:.60}.", "Give a text.")
        if not isinstance(prompt, Iterable) or isinstance(prompt, bytes | bytearray | Mapping):
            raise UsageError(f"{prompt!r:.60} is not a prompt.", "Give text, token ids or messages.")
        if isinstance(prompt, str):
            if raw:
                if system is not None:
                    raise UsageError("A system message needs the chat template.", "Leave out either system or raw.")
                return encode_raw(self._client.model, prompt), ()
            messages = [Message("system", system)] if system is not None else []
            return self._encode_chat([*messages, Message("user", prompt)])
        if raw or system is not None:
            raise UsageError("raw and system go with a text prompt.", "Put a system message into the messages.")
        items = list(prompt)
        if all(isinstance(item, int) and not isinstance(item, bool) for item in items):
            return [int(item) for item in items if isinstance(item, int)], ()
        return self._encode_chat([as_message(item) for item in items])

    def _encode_chat(self, messages: Sequence[Message]) -> tuple[Sequence[int], tuple[str, ...]]:
        return self.template.encode(messages).ids, self.template.stop

    def chat(self, system: str | None = None) -> Chat:
        """A conversation that remembers its turns."""
        return Chat(self, system)

    def close(self) -> None:
        """Free the model. A running answer ends as cancelled. A second call does nothing."""
        self._client.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def as_message(item: object) -> Message:
    """A `Message` from itself or from a mapping with "role" and "content". Raises UsageError."""
    if isinstance(item, Message):
        return item
    if isinstance(item, Mapping) and isinstance(item.get("role"), str) and isinstance(item.get("content"), str):
        return Message(item["role"], item["content"])
    raise UsageError(
        f"{item!r:.60} is not a message.", 'Give text, token ids, or messages like {"role": "user", "content": "Hi"}.'
    )


def spelled(text: str, pieces: Sequence[bytes]) -> tuple[int, int]:
    """How many of the ``pieces``, from the first on, spell a beginning of ``text``, and how many characters that is."""
    data, end = text.encode(), 0
    n_pieces = n_bytes = 0
    for i, piece in enumerate(pieces, 1):
        if not data.startswith(piece, end):
            break
        end += len(piece)
        if end == len(data) or data[end] & 0xC0 != 0x80:  # not inside a character
            n_pieces, n_bytes = i, end
    return n_pieces, len(data[:n_bytes].decode())


class Chat:
    """A conversation in memory. Turns evaluate only what is new: answers keep the token ids that the model wrote."""

    def __init__(self, llm: LLM, system: str | None = None) -> None:
        self._llm = llm
        self.messages: list[Message] = [Message("system", system)] if system is not None else []
        self._known_text = ""  # rendered conversation, as far into the last answer as tokens spell it …
        self._known_ids: tuple[int, ...] = ()  # … and the ids that are in the model's memory for it

    def send(self, text: str, **options: Unpack[GenerateOptions]) -> Result:
        """Say something and wait for the answer."""
        for event in self.stream(text, **options):
            if event.result is not None:
                return event.result
        raise AssertionError("a stream ends with a result")

    def stream(self, text: str, **options: Unpack[GenerateOptions]) -> Iterator[StepEvent]:
        """Say something and read the answer step by step. The turn is kept when the answer has ended. Leaving the loop
        early cancels the answer and keeps what was read; an answer that failed leaves the conversation as it was."""
        check_options(options)
        for name in ("system", "raw"):
            if name in options:
                raise UsageError(f"{name} does not go with a chat turn.", "Give the system message to llm.chat().")
        return self._turn([*self.messages, Message("user", text)], options)

    def _turn(self, messages: list[Message], options: GenerateOptions) -> Iterator[StepEvent]:
        ids, text = self._encode(messages)
        stream = self._llm.submit_ids(ids, options, self._llm.template.stop)
        shown: list[str] = []
        said: list[int] = []
        for event in stream:
            shown.append(event.text)
            said.extend(event.token_ids)
            if event.result is not None:
                self._keep(messages, ids, text, "".join(shown), said)
            try:
                yield event
            except GeneratorExit:
                if event.result is None:
                    self._keep(messages, ids, text, "".join(shown), said)
                raise

    def _keep(
        self, messages: Sequence[Message], ids: tuple[int, ...], text: str, answer: str, said: Sequence[int]
    ) -> None:
        """The conversation goes on with ``answer``. ``said``, its tokens, may reach further than it: a stop string
        and an unfinished character are no part of it."""
        self.messages = [*messages, Message("assistant", answer)]
        n_tokens, n_characters = spelled(answer, [self._llm.model.piece(token) for token in said])
        self._known_text = text + answer[:n_characters] if text else ""
        self._known_ids = (*ids, *said[:n_tokens])

    def _encode(self, messages: list[Message]) -> tuple[tuple[int, ...], str]:
        template = self._llm.template
        prompt = template.encode(messages)
        if self._known_text and prompt.text.startswith(self._known_text):
            return (*self._known_ids, *template.tokens(prompt.text[len(self._known_text) :])), prompt.text
        return prompt.ids, prompt.text

    def edit(self, turn: int, text: str, **options: Unpack[GenerateOptions]) -> Result:
        """Say something else in user turn ``turn`` (0: the first) and answer it; later turns are dropped."""
        users = [i for i, m in enumerate(self.messages) if m.role == "user"]
        if not -len(users) <= turn < len(users):
            raise UsageError(f"There is no user turn {turn}.", f"The conversation has {len(users)} of them.")
        before, self.messages = self.messages, self.messages[: users[turn]]
        try:
            return self.send(text, **options)
        except BaseException:
            self.messages = before
            raise

    def regenerate(self, **options: Unpack[GenerateOptions]) -> Result:
        """Answer the last user turn again. Without another ``prediction`` the old answer is expected."""
        users = [m.content for m in self.messages if m.role == "user"]
        if not users:
            raise UsageError("There is nothing to answer again.", "Send a message first.")
        if self.messages[-1].role == "assistant":
            options.setdefault("prediction", self.messages[-1].content)
        return self.edit(len(users) - 1, users[-1], **options)


def load(
    model: str | os.PathLike[str] | None = None,
    *,
    speculate: str | Sequence[str] = "auto",
    n_ctx: int | None = None,
    n_threads: int = 0,
    n_gpu_layers: int = -1,
    n_batch: int = 512,
    n_ubatch: int | None = None,
    type_k: str = "f16",
    type_v: str = "f16",
    flash_attn: str = "auto",
    learn: bool | None = None,
    progress: ProgressCallback | None = None,
    fetch_progress: Progress = silent,
) -> LLM:
    """Load a model: a path to a GGUF file, a catalogue name, ``hf:owner/repo[:file]``, or None for the default.

    Args:
        speculate: "auto", "off", or names of drafters.
        n_ctx: tokens of context; None: as many as needed, up to what the model was trained for.
        n_threads: 0: physical cores. n_gpu_layers: -1: all that the build can offload.
        type_k, type_v: types of the KV memory (f16, q8_0, q4_0, …); flash_attn: auto, on, off.
        learn: store answers on this machine, so that later ones may be guessed from them (docs/history.md). None: as
            the environment variable EDGEDEC_LEARN says, 0 or 1; without it, yes.
        progress: called with 0…1 while weights are read; fetch_progress: while a file is brought.

    Raises UsageError, ModelError, DownloadError.
    """
    config = EngineConfig(
        n_ctx=n_ctx,
        n_batch=n_batch,
        n_ubatch=min(512, n_batch) if n_ubatch is None and isinstance(n_batch, int) else n_ubatch or 512,
        n_threads=n_threads,
        n_gpu_layers=n_gpu_layers,
        type_k=type_k,
        type_v=type_v,
        flash_attn=flash_attn,
        speculate=parse_speculate(speculate),
        learn=may_learn(learn),
    )
    drafter_names(config.speculate)  # a misspelt name should not cost a download
    path = catalogue.find(model, progress=fetch_progress)
    found = time.perf_counter()
    client = Client.load(path, config, progress=progress)
    return LLM(client, load_s=time.perf_counter() - found)
