"""Every error that edgedec raises on purpose.

EdgedecError                      message: what is wrong; hint: what to do; exit_code for the command line
├── UsageError                    (2) decided from what the caller typed
│   ├── UnknownNameError          no such drafter, option or model; suggests the nearest name
│   └── ModelNotFoundError        the path does not lead to a file
├── ModelError                    (1) the file is there, but cannot be used
│   ├── ModelFormatError          empty, truncated, or not a GGUF file at all
│   └── ModelUnsupportedError     a GGUF file of a kind that does not generate text
├── DownloadError                 (1) a model file could not be brought or does not match its checksum
├── TemplateError                 (1) the model's chat template failed
├── RequestError                  (1) this request cannot be answered; the engine goes on
│   ├── PromptTooLongError        the prompt does not fit into the context
│   └── DecodeError               llama.cpp refused a batch, or a rollback could not be verified
│       ├── NoSlotError           no room in the KV memory; nothing was changed
│       └── AbortedError          stopped on request
├── ClosedError                   (1) the engine or model has been closed
└── EngineCrashedError            (1) the engine thread died of something unforeseen
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EdgedecError(Exception):
    """Base of all. ``str(error)`` is one line; ``error.hint`` is one line that says what to do ("" if nothing)."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(EdgedecError):
    """The call itself is wrong: an impossible number, a contradiction, a missing argument."""

    exit_code = 2


class UnknownNameError(UsageError):
    """A name that is not in a fixed set; the hint names the nearest one."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
        listed = ", ".join(names)
        hint = f"Did you mean {near[0]!r}? Known: {listed}." if near else f"Known: {listed}."
        super().__init__(f"Unknown {kind} {name!r}.", hint)
        self.name = name


class ModelNotFoundError(UsageError):
    """The model path does not lead to a readable file."""


class ModelError(EdgedecError):
    """A model file exists but cannot be used."""


class ModelFormatError(ModelError):
    """Empty, truncated or not GGUF."""


class ModelUnsupportedError(ModelError):
    """A valid GGUF that does not generate text token by token, or that this build cannot run."""


class DownloadError(EdgedecError):
    """A file could not be fetched, or is not the file that was asked for."""


class TemplateError(EdgedecError):
    """The chat template of the model raised, or is not valid Jinja."""


class RequestError(EdgedecError):
    """One request fails; the engine is ready for the next."""


class PromptTooLongError(RequestError):
    """``n_prompt`` tokens do not fit into ``n_ctx``."""

    def __init__(self, n_prompt: int, n_ctx: int, hint: str) -> None:
        super().__init__(
            f"The prompt has {n_prompt} tokens, but the context holds {n_ctx} "
            f"and at least one is needed for the answer.",
            hint,
        )
        self.n_prompt = n_prompt
        self.n_ctx = n_ctx


class DecodeError(RequestError):
    """``llama_decode`` failed with ``code``, or the memory is not in the state it should be in."""

    def __init__(self, message: str, hint: str = "", code: int = 0) -> None:
        super().__init__(message, hint)
        self.code = code


class ClosedError(EdgedecError):
    """Used after ``close()``."""


class EngineCrashedError(EdgedecError):
    """The engine thread ended on an unexpected exception (chained as ``__cause__``)."""


class NoSlotError(DecodeError):
    """The KV memory has no room for the batch; nothing was changed."""


class AbortedError(DecodeError):
    """A decode was stopped on request; the memory may hold some of its rows."""
