"""The run: every case in every mode before the next case, so that heat and neighbours meet all modes alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from edgedec.bench.record import PLAIN, Arm, Case, Measured, Settings
from edgedec.bench.suite import Prompt
from edgedec.types import Message

_WARM_UP = "Say hello."
_WARM_UP_TOKENS = 16

Encode = Callable[[Sequence[Message]], tuple[int, ...]]
"""Messages to token ids, ready to be answered."""

Progress = Callable[[int, int, str], None]
"""(turns done, turns in all, what is being done)"""


@dataclass(slots=True)
class Run:
    """All that was measured, and which turns were not because they do not fit: (prompt id, turn)."""

    measured: list[Measured] = field(default_factory=list)
    skipped: list[tuple[str, int]] = field(default_factory=list)


def n_tokens_needed(prompts: Sequence[Prompt], encode: Encode, settings: Settings, turns: int) -> int:
    """What the longest conversation may take, answers included."""
    needed = 0
    for prompt in prompts:
        said = prompt.turns[:turns]
        messages = [m for text in said for m in (Message("user", text), Message("assistant", ""))]
        needed = max(needed, len(encode(messages[:-1])) + len(said) * settings.max_tokens)
    return needed


def run(
    prompts: Sequence[Prompt],
    arms: Sequence[Arm],
    encode: Encode,
    settings: Settings,
    *,
    turns: int = 1,
    n_ctx: int,
    progress: Progress = lambda done, total, doing: None,
) -> Run:
    """Let every arm answer every turn; one of them is called "plain". One short answer of each comes before and is not
    counted. Before the modes take their turns, each prompt is read into the memory, so that those of the loaded model
    all start from the same numbers.

    A second turn follows the plain answer to the first in all modes. A turn that may not fit into ``n_ctx`` is left
    out, with those after it. Raises what an arm raises.
    """
    total = sum(len(prompt.turns[:turns]) for prompt in prompts)
    plain = next(arm for arm in arms if arm.name == PLAIN)
    result = Run()
    _warm_up(arms, encode, settings, lambda name: progress(0, total, f"warming up {name}"))
    done = 0
    for prompt in prompts:
        messages: list[Message] = []
        for turn, text in enumerate(prompt.turns[:turns], 1):
            messages.append(Message("user", text))
            ids = encode(messages)
            if len(ids) + settings.max_tokens > n_ctx:
                rest = range(turn, len(prompt.turns[:turns]) + 1)
                result.skipped.extend((prompt.id, n) for n in rest)
                done += len(rest)
                break
            found = Measured(Case(done, prompt.id, prompt.category, turn, tuple(messages), ids))
            progress(done, total, f"{prompt.category}, reading the prompt")
            plain.answer(found.case, replace(settings, max_tokens=1))
            for arm in _in_turn(arms, len(result.measured)):
                progress(done, total, f"{prompt.category}, {arm.name}")
                found.answers[arm.name] = arm.answer(found.case, settings)
            result.measured.append(found)
            messages.append(Message("assistant", found.answers[PLAIN].text))
            done += 1
    return result


def _warm_up(arms: Sequence[Arm], encode: Encode, settings: Settings, tell: Callable[[str], None]) -> None:
    messages = (Message("user", _WARM_UP),)
    case = Case(0, "", "", 1, messages, encode(messages))
    short = replace(settings, max_tokens=min(_WARM_UP_TOKENS, settings.max_tokens))
    for arm in arms:
        tell(arm.name)
        arm.answer(case, short)


def _in_turn(arms: Sequence[Arm], n: int) -> Iterator[Arm]:
    """The order of the n-th case: everybody comes first equally often, and after each other arm."""
    k, is_reversed = n % len(arms), n // len(arms) % 2
    order = [*arms[k:], *arms[:k]]
    return reversed(order) if is_reversed else iter(order)
