"""What a bench run is made of: cases, the settings they share, and what each mode did with them. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from edgedec.bench.forks import Fork
from edgedec.types import DrafterCounts, Message

PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class Settings:
    """How every case is answered."""

    max_tokens: int = 200
    temperature: float = 0.0  # 0: greedy
    seed: int = 0  # of the first case; each next one adds 1


@dataclass(frozen=True, slots=True)
class Case:
    """One turn of one prompt. Every mode gets the same tokens: earlier answers in them are plain decoding's."""

    index: int
    prompt_id: str
    category: str
    turn: int  # 1: the first
    messages: tuple[Message, ...]
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One decode: ``n_rows`` rows (root and guesses) brought ``n_tokens`` tokens. Milliseconds: the whole step, the
    part inside ``llama_decode``, the part spent on looking for guesses."""

    n_rows: int
    n_tokens: int
    ms: float
    decode_ms: float
    draft_ms: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What one mode did with one case. Reading the prompt and the first step are not counted: ``n_tokens`` came after
    them, in ``seconds``.

    ``token_ids`` is None where the source does not tell; ``steps`` are the counted ones, empty where unknown.
    """

    text: str
    token_ids: tuple[int, ...] | None
    finish_reason: str
    n_tokens: int
    seconds: float
    steps: tuple[Step, ...] = ()
    drafters: Mapping[str, DrafterCounts] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Tokens per second; 0 if nothing was counted."""
        return self.n_tokens / self.seconds if self.n_tokens > 0 and self.seconds > 0 else 0.0


@dataclass(slots=True)
class Measured:
    """One case in all modes, by name, and where a mode's text parts from the plain one."""

    case: Case
    answers: dict[str, Answer] = field(default_factory=dict)
    forks: dict[str, Fork] = field(default_factory=dict)


class Arm(Protocol):
    """Something that answers cases under a name."""

    @property
    def name(self) -> str: ...

    def answer(self, case: Case, settings: Settings) -> Answer:
        """Raises EdgedecError."""
