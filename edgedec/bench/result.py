"""A finished run: what was measured, and on what. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from edgedec.bench.device import Device
from edgedec.bench.record import PLAIN, Measured, Settings


@dataclass(slots=True)
class Bench:
    """A finished run.

    ``names``: the modes, plain first. ``here``: T(n) of this machine as measured at load; None if there is no
    speculation, for the reason in ``note``. ``n_rows_max``: of a step. ``noise``: what forks are judged by; None if
    none had to be. ``replays``: devices, and the same cases on each of them. ``against``: the server that was also
    measured.
    """

    measured: list[Measured]
    skipped: list[tuple[str, int]]
    names: list[str]
    settings: Settings
    suite: str
    turns: int
    machine: dict[str, Any]
    model: dict[str, Any]
    n_threads: int
    n_rows_max: int
    here: Device | None = None
    note: str = ""
    noise: float | None = None
    replays: list[tuple[Device, list[Measured]]] = field(default_factory=list)
    against: dict[str, Any] | None = None

    @property
    def guessing(self) -> list[str]:
        """The modes besides plain."""
        return [name for name in self.names if name != PLAIN]
