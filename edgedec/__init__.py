"""Local GGUF models, faster on the machine you own.

    import edgedec

    with edgedec.load() as llm:
        print(llm.generate("Why is the sky blue?").text)

Names are resolved when first used: importing the package loads neither numpy nor llama.cpp.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgedec.errors import (
        ClosedError,
        DecodeError,
        DownloadError,
        EdgedecError,
        EngineCrashedError,
        ModelError,
        ModelFormatError,
        ModelNotFoundError,
        ModelUnsupportedError,
        PromptTooLongError,
        RequestError,
        TemplateError,
        UnknownNameError,
        UsageError,
    )
    from edgedec.llm import LLM, Chat, Stream, load
    from edgedec.types import Message, Request, Result, SamplingParams, StepEvent

__version__ = "0.1.0"

_HOMES = {
    "edgedec.errors": (
        "ClosedError",
        "DecodeError",
        "DownloadError",
        "EdgedecError",
        "EngineCrashedError",
        "ModelError",
        "ModelFormatError",
        "ModelNotFoundError",
        "ModelUnsupportedError",
        "PromptTooLongError",
        "RequestError",
        "TemplateError",
        "UnknownNameError",
        "UsageError",
    ),
    "edgedec.llm": ("LLM", "Chat", "Stream", "load"),
    "edgedec.types": ("Message", "Request", "Result", "SamplingParams", "StepEvent"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "LLM",
    "Chat",
    "ClosedError",
    "DecodeError",
    "DownloadError",
    "EdgedecError",
    "EngineCrashedError",
    "Message",
    "ModelError",
    "ModelFormatError",
    "ModelNotFoundError",
    "ModelUnsupportedError",
    "PromptTooLongError",
    "Request",
    "RequestError",
    "Result",
    "SamplingParams",
    "StepEvent",
    "Stream",
    "TemplateError",
    "UnknownNameError",
    "UsageError",
    "__version__",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module 'edgedec' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
