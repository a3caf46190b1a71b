"""The cost curve of a machine, this one's or another's, and the best that guessing could do under it."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from edgedec.bench.record import PLAIN, Measured
from edgedec.errors import UnknownNameError, UsageError

_LAYOUT = 'Write a JSON object: {"name": "…", "description": "…", "source": "…", "cost_ms": {"1": 10.0, "2": 12.5}}.'


@dataclass(frozen=True, slots=True)
class Device:
    """T(n) of a machine and model: ``cost_ms``, rows → milliseconds of one decode, in ascending order, from 1 on."""

    name: str
    description: str
    source: str
    cost_ms: Mapping[int, float]

    @property
    def widest(self) -> int:
        """Rows up to which the curve is known."""
        return max(self.cost_ms)

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


def limit(device: Device, measured: Iterable[Measured], n_rows_max: int) -> float:
    """The speed-up over plain decoding of an oracle: every guess is right, each answer takes the steps of up to
    ``n_rows_max`` rows that are fastest in sum under the curve, as far as it is known, and looking for guesses costs
    nothing. 0: no steps."""
    lengths = [len(one.answers[PLAIN].steps) for one in measured]
    best = _fastest_ms(device, max(lengths, default=0), min(n_rows_max, device.widest))
    fastest = sum(best[n] for n in lengths)
    return device.ms(1) * sum(lengths) / fastest if fastest else 0.0


def _fastest_ms(device: Device, n_tokens: int, n_rows_max: int) -> list[float]:
    """For 0…n_tokens tokens, the least time in which full steps bring them."""
    times = [device.ms(n) for n in range(1, n_rows_max + 1)]
    best = [0.0]
    for n in range(1, n_tokens + 1):
        best.append(min(best[n - k] + ms for k, ms in enumerate(times[:n], 1)))
    return best


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
