"""The modes of a bench: plain decoding, everything there is, or named drafters, all on one loaded model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgedec import drafters
from edgedec.bench.record import PLAIN, Answer, Case, Settings, Step
from edgedec.config import AUTO
from edgedec.errors import UnknownNameError, UsageError
from edgedec.llm import LLM
from edgedec.types import StepEvent


@dataclass(frozen=True, slots=True)
class Mode:
    """``speculate`` as in `edgedec.types.Request`."""

    name: str
    speculate: bool | tuple[str, ...]


def parse_modes(text: str) -> list[Mode]:
    """ "plain,auto,suffix+recycle" as modes, plain first: what others are measured against is always there.

    Raises UsageError, UnknownNameError.
    """
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    modes = [_mode(name) for name in dict.fromkeys(names) if name != PLAIN]
    if not modes:
        raise UsageError("There is no mode to compare with plain decoding.", "Use for example --modes plain,auto.")
    return [Mode(PLAIN, False), *modes]


def _mode(name: str) -> Mode:
    if name == AUTO:
        return Mode(AUTO, True)
    parts = tuple(part.strip() for part in name.split("+"))
    for part in parts:
        if part not in drafters.names():
            raise UnknownNameError("mode", part, [PLAIN, AUTO, *drafters.names()])
    if len(set(parts)) < len(parts):
        raise UsageError(f"The mode {name!r} names a drafter twice.", "Name each drafter once.")
    return Mode("+".join(parts), parts)


class Local:
    """A mode of the model that is loaded here. Each has drafters and learnt judgement of its own."""

    def __init__(self, llm: LLM, mode: Mode) -> None:
        self._llm = llm
        self._mode = mode

    @property
    def name(self) -> str:
        return self._mode.name

    def answer(self, case: Case, settings: Settings) -> Answer:
        """Raises RequestError."""
        stream = self._llm.submit_ids(
            case.ids,
            {
                "max_tokens": settings.max_tokens,
                "temperature": settings.temperature,
                "seed": settings.seed + case.index,
                "speculate": self._mode.speculate,
            },
            self._llm.template.stop,
        )
        return as_answer(list(stream))


def as_answer(events: Sequence[StepEvent]) -> Answer:
    """What an answer amounts to, from all of its events."""
    result = events[-1].result
    assert result is not None
    counted = [event for event in events if event.phase == "decode"][1:]
    return Answer(
        text=result.text,
        token_ids=tuple(result.token_ids),
        finish_reason=result.finish_reason,
        n_tokens=sum(len(event.token_ids) for event in counted),
        seconds=result.timing.decode_s,
        steps=tuple(
            Step(1 + event.n_drafted, len(event.token_ids), event.step_ms, event.decode_ms, event.draft_ms)
            for event in counted
        ),
        drafters=result.speculation.drafters,
    )
