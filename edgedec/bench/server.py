"""A running llama.cpp server as one more mode: its native endpoint, or an OpenAI one, streamed.

Natively the server gets the very tokens that our modes get, so its file must be the same model. An OpenAI endpoint gets
the messages and renders them itself. Times are the client's: from the arrival of the first token to that of the last.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit

from edgedec.bench.record import Answer, Case, Settings
from edgedec.errors import EdgedecError, UsageError
from edgedec.types import DrafterCounts, SamplingParams

NAME = "server"

_LOOK = "Look at the server's own log."
_CONNECT_S = 5.0
_ANSWER_S = 600.0  # between two tokens; a long prompt on a slow machine comes before the first one


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server that has answered. ``n_ctx``: what one conversation may take; None if it does not say."""

    url: str
    kind: Literal["native", "openai"]
    model: str
    build: str
    n_ctx: int | None


def find(url: str) -> Endpoint:
    """Ask a server what it is. An address that ends in /v1 is an OpenAI endpoint. Raises UsageError for an impossible
    address, EdgedecError if nobody answers there."""
    base = url.rstrip("/")
    _split(base)
    if not base.endswith("/v1"):
        props = _get(base, "/props")
        if props is not None:
            defaults = props.get("default_generation_settings") or {}
            n_ctx = defaults.get("n_ctx") if isinstance(defaults, dict) else None
            return Endpoint(base, "native", str(props.get("model_path", "")), str(props.get("build_info", "")), n_ctx)
        base += "/v1"
    models = _get(base, "/models")
    if models is None:
        raise EdgedecError(f"{url} is neither a llama.cpp server nor an OpenAI endpoint.", "Check the address.")
    listed = models.get("data") or [{}]
    return Endpoint(base, "openai", str(listed[0].get("id", "")), "", None)


class Server:
    """An `Endpoint` that answers cases. ``stop``: stop strings, as our modes have them."""

    name = NAME

    def __init__(
        self, endpoint: Endpoint, stop: Sequence[str] = (), clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._endpoint = endpoint
        self._stop = list(stop)
        self._clock = clock

    def answer(self, case: Case, settings: Settings) -> Answer:
        """Raises EdgedecError."""
        if self._endpoint.kind == "native":
            return self._native(case, settings)
        return self._openai(case, settings)

    def _native(self, case: Case, settings: Settings) -> Answer:
        sampling = SamplingParams()
        body = {
            "prompt": list(case.ids),
            "n_predict": settings.max_tokens,
            "temperature": settings.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "seed": settings.seed + case.index,
            "stop": self._stop,
            "stream": True,
            "return_tokens": True,
            "cache_prompt": True,
        }
        heard = _Heard()
        tokens: list[int] = []
        last: Mapping[str, Any] = {}
        for event in _post(self._endpoint.url, "/completion", body):
            if event.get("stop"):
                last = event
            elif event.get("tokens"):
                tokens += event["tokens"]
                heard.hear(event.get("content") or "", self._clock())
        if not last:
            raise EdgedecError(f"The server at {self._endpoint.url} broke off in the middle of an answer.", _LOOK)
        n_said = int(last.get("tokens_predicted", len(tokens)))
        is_eog = last.get("stop_type") == "eos"
        # Tokens that end inside a character are not sent, so the list may have holes.
        ids = tuple(tokens[: len(tokens) - is_eog]) if len(tokens) == n_said else None
        return heard.answer(n_said - is_eog, ids, "eog" if is_eog else "length", last.get("timings") or {})

    def _openai(self, case: Case, settings: Settings) -> Answer:
        body = {
            "model": self._endpoint.model,
            "messages": [{"role": m.role, "content": m.content} for m in case.messages],
            "max_tokens": settings.max_tokens,
            "temperature": settings.temperature,
            "seed": settings.seed + case.index,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        heard = _Heard()
        n_said: int | None = None
        reason = ""
        timings: Mapping[str, Any] = {}
        for event in _post(self._endpoint.url, "/chat/completions", body):
            for choice in event.get("choices") or ():
                if text := (choice.get("delta") or {}).get("content"):
                    heard.hear(text, self._clock())
                reason = choice.get("finish_reason") or reason
            n_said = (event.get("usage") or {}).get("completion_tokens", n_said)
            timings = event.get("timings") or timings
        if not reason:
            raise EdgedecError(f"The server at {self._endpoint.url} broke off in the middle of an answer.", _LOOK)
        is_eog = reason == "stop"
        n_tokens = heard.n if n_said is None else n_said - is_eog  # the count includes the token that ends the text
        return heard.answer(n_tokens, None, "eog" if is_eog else reason, timings)


class _Heard:
    """Pieces of an answer as they arrived."""

    def __init__(self) -> None:
        self.n = 0
        self._text: list[str] = []
        self._first = self._last = 0.0

    def hear(self, text: str, now: float) -> None:
        self.n += 1
        self._text.append(text)
        self._first = self._first or now
        self._last = now

    def answer(self, n_tokens: int, ids: tuple[int, ...] | None, reason: str, timings: Mapping[str, Any]) -> Answer:
        """``n_tokens`` of the whole answer, of which the first is not counted."""
        drafted, accepted = int(timings.get("draft_n", 0)), int(timings.get("draft_n_accepted", 0))
        return Answer(
            text="".join(self._text),
            token_ids=ids,
            finish_reason=reason,
            n_tokens=max(0, n_tokens - 1),
            seconds=self._last - self._first,
            drafters={NAME: DrafterCounts(drafted, accepted)} if drafted else {},
        )


def _split(url: str) -> SplitResult:
    parts = urlsplit(url)
    try:
        is_usable = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        is_usable = False
    if not is_usable:
        raise UsageError(f"{url!r} is not the address of a server.", "Give one like http://127.0.0.1:8080.")
    return parts


@contextmanager
def _asked(base: str, method: str, path: str, body: Any, timeout_s: float) -> Iterator[http.client.HTTPResponse]:
    """The response to one request. Raises EdgedecError when the connection fails, also while it is read."""
    parts = _split(base)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        payload = None if body is None else json.dumps(body)
        connection.request(method, parts.path + path, payload, {"Content-Type": "application/json"})
        yield connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        raise EdgedecError(
            f"The server at {base} does not answer: {error or type(error).__name__}.",
            "Start it and wait until it has loaded the model.",
        ) from error
    finally:
        connection.close()


def _get(base: str, path: str) -> dict[str, Any] | None:
    """An object, or None where the server has none there."""
    with _asked(base, "GET", path, None, _CONNECT_S) as response:
        data = response.read()
        if response.status == http.client.SERVICE_UNAVAILABLE:
            raise EdgedecError(f"The server at {base} is not ready.", "Wait until it has loaded the model.")
    try:
        found = json.loads(data) if response.status == http.client.OK else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _post(base: str, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of a streamed answer. Raises EdgedecError."""
    with _asked(base, "POST", path, body, _ANSWER_S) as response:
        if response.status != http.client.OK:
            raise _refusal(base, response.read())
        for line in response:
            key, _, value = line.decode("utf-8", "replace").partition(":")
            value = value.strip()
            if key == "error":
                raise _refusal(base, value.encode())
            if key != "data" or value == "[DONE]":
                continue
            try:
                event = json.loads(value)
            except ValueError:
                event = None
            if not isinstance(event, dict):
                raise EdgedecError(f"The server at {base} sent what is not JSON: {value!r:.60}.", _LOOK)
            if "error" in event:
                raise _refusal(base, value.encode())
            yield event


def _refusal(base: str, data: bytes) -> EdgedecError:
    text = data.decode("utf-8", "replace").strip()
    try:
        found = json.loads(text)
        found = found.get("error", found)
        text = str(found.get("message", found)) if isinstance(found, dict) else str(found)
    except (ValueError, AttributeError):
        pass
    return EdgedecError(
        f"The server at {base} refused: {' '.join(text.split())[:200] or 'no reason given'}.",
        _LOOK,
    )
