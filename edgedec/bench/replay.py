"""Another machine's cost curve, and what the steps of a recorded run would have taken under it.

The recorded run knows for each step how many rows it decoded and how many tokens it brought. Under the curve of another
machine the same steps take another time, so its speed-up can be computed without the machine. Two things it cannot say:
there, edgedec would have chosen other widths, because it chooses by cost; so a machine on which rows are cheaper
than here
can do better than its replay, and one on which they are dearer would have guessed less. And the time between two
decodes
is taken as it was here.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from edgedec.bench.record import PLAIN, Measured, Step
from edgedec.errors import UnknownNameError, UsageError

_LAYOUT = 'Write a JSON object: {"name": "…", "description": "…", "source": "…", "cost_ms": {"1": 10.0, "2": 12.5}}.'


@dataclass(frozen=True, slots=True)
class Device:
    """T(n) of a machine and model: ``cost_ms``, rows → milliseconds of one decode, in ascending order, from 1 on."""

    name: str
    description: str
    source: str
    cost_ms: Mapping[int, float]

    def ms(self, n_rows: int) -> float:
        """Between two known widths a straight line; beyond the last one in proportion to the rows."""
        if n_rows in self.cost_ms:
            return self.cost_ms[n_rows]
        widths = list(self.cost_ms)
        i = bisect_left(widths, n_rows)
        if i == len(widths):
            return self.cost_ms[widths[-1]] * n_rows / widths[-1]
        a, b = widths[i - 1], widths[i]
        return self.cost_ms[a] + (self.cost_ms[b] - self.cost_ms[a]) * (n_rows - a) / (b - a)

    def limit(self, n_max: int) -> tuple[float, int]:
        """The speed-up of an oracle whose guesses are all right, at most ``n_max`` rows a step, and the rows it
        takes: the
        largest n · T(1) / T(n)."""
        best = max(range(1, n_max + 1), key=lambda n: (n / self.ms(n), -n))
        return best * self.cost_ms[1] / self.ms(best), best


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a run would have been. ``beyond``: share of steps wider than the curve was known."""

    plain_tokens_per_second: float
    tokens_per_second: float
    speedup: float
    beyond: float


def replay(device: Device, measured: Iterable[Measured], name: str) -> Replayed:
    """The steps of plain decoding and of the mode ``name``, under the curve of ``device``."""
    cases = list(measured)
    steps = [step for one in cases for step in one.answers[name].steps]
    plain = _rate(device, [step for one in cases for step in one.answers[PLAIN].steps])
    rate = _rate(device, steps)
    widest = max(device.cost_ms)
    return Replayed(
        plain_tokens_per_second=plain,
        tokens_per_second=rate,
        speedup=rate / plain if plain else 0.0,
        beyond=sum(step.n_rows > widest for step in steps) / len(steps) if steps else 0.0,
    )


def _rate(device: Device, steps: Sequence[Step]) -> float:
    ms = sum(device.ms(step.n_rows) + step.ms - step.decode_ms for step in steps)
    return 1e3 * sum(step.n_tokens for step in steps) / ms if ms else 0.0


def shipped() -> list[str]:
    """Names of the curves that come with the package."""
    folder = resources.files("edgedec.bench").joinpath("devices")
    return sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))


def load(name: str) -> Device:
    """A curve by the name of a shipped one, or from a JSON file. Raises UsageError, UnknownNameError."""
    if name in shipped():
        return _parse(resources.files("edgedec.bench").joinpath("devices", f"{name}.json").read_text("utf-8"), name)
    if not name.endswith(".json"):
        raise UnknownNameError("device", name, shipped())
    try:
        return _parse(Path(name).read_text(encoding="utf-8"), name)
    except OSError as error:
        raise UsageError(f"The device {name} cannot be read: {error.strerror}.", "Check the path.") from error


def _parse(text: str, where: str) -> Device:
    try:
        entry = json.loads(text)
        cost = {int(n): float(ms) for n, ms in entry["cost_ms"].items()}
        device = Device(str(entry["name"]), str(entry["description"]), str(entry["source"]), dict(sorted(cost.items())))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{where} is not a device.", _LAYOUT) from error
    if 1 not in cost or any(n < 1 or not 0 < ms < float("inf") for n, ms in cost.items()):
        raise UsageError(f"{where} has impossible costs.", "Give positive milliseconds, and those of 1 row.")
    return device
