"""A bench run as one picture. matplotlib is an extra, imported when a picture is wanted."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from edgedec.bench.device import limit
from edgedec.bench.record import PLAIN, Measured, Step
from edgedec.bench.report import ALL
from edgedec.bench.result import Bench
from edgedec.bench.summary import by_category, summarise
from edgedec.errors import EdgedecError, UsageError

SUFFIXES = (".png", ".svg")
_SEEN_OFTEN = 3  # steps of a width that are worth a point


def check(path: Path) -> None:
    """Whether a picture can be drawn there, before anything is measured. Raises UsageError, EdgedecError."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path} is not a picture that can be drawn.", f"End the name in {' or '.join(SUFFIXES)}.")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"The folder of {path} does not exist.", "Make it first.")
    _figure(1, 1)


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise EdgedecError(
            "Pictures need matplotlib, which is not installed.", "Install it: pip install 'edgedec[plot]'"
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def draw(bench: Bench, path: Path) -> None:
    """Speed-up by category, T(n), and acceptance by depth."""
    groups = [*by_category(bench.measured).items(), (ALL, bench.measured)]
    figure = _figure(max(9.0, 0.8 * len(groups) + 3.0), 8.0)
    upper, lower = figure.subfigures(2, 1)
    _speedups(upper.subplots(), bench, groups)
    left, right = lower.subplots(1, 2)
    _cost(left, bench)
    _acceptance(right, bench)
    figure.savefig(path, dpi=150)


def _speedups(axes: Any, bench: Bench, groups: list[tuple[str, list[Measured]]]) -> None:
    width = 0.8 / max(1, len(bench.guessing))
    for i, mode in enumerate(bench.guessing):
        places = [x - 0.4 + width * (i + 0.5) for x in range(len(groups))]
        summaries = [summarise(group, mode) for _, group in groups]
        axes.bar(places, [s.speedup for s in summaries], width, label=mode)
        for x, s in zip(places, summaries, strict=True):
            axes.plot([x, x], s.speedup_quartiles, color="black", linewidth=1)
    axes.axhline(1.0, color="gray", linewidth=0.8)
    if bench.here is not None:
        limits = [limit(bench.here, group, bench.n_rows_max) for _, group in groups]
        axes.plot(range(len(groups)), limits, linestyle="none", marker="_", markersize=20, color="gray", label="limit")
    axes.set_xticks(range(len(groups)), [name for name, _ in groups], rotation=30, ha="right")
    axes.set_ylabel("speed-up over plain")
    axes.set_title(f"{bench.model['name']}: ratio of sums; lines are the quartiles of pairs")
    axes.legend()


def _cost(axes: Any, bench: Bench) -> None:
    if bench.here is not None:
        axes.plot(*zip(*bench.here.cost_ms.items(), strict=True), marker="o", label="measured at load")
    seen = _seen_ms([step for one in bench.measured for name in bench.names for step in one.answers[name].steps])
    if seen:
        axes.plot(*zip(*seen.items(), strict=True), "x", label="steps of this run, median")
    axes.set_xlabel("rows n")
    axes.set_ylabel("milliseconds")
    axes.set_ylim(bottom=0)
    axes.set_title("T(n)")
    if bench.here is not None or seen:
        axes.legend()


def _seen_ms(steps: list[Step]) -> dict[int, float]:
    """Rows → median milliseconds inside llama_decode, for widths that were seen often enough."""

    times: dict[int, list[float]] = {}
    for step in steps:
        times.setdefault(step.n_rows, []).append(step.decode_ms)
    return {n: median(ms) for n, ms in sorted(times.items()) if len(ms) >= _SEEN_OFTEN}


def _acceptance(axes: Any, bench: Bench) -> None:
    has_any = False
    for mode in bench.names:
        shares = summarise(bench.measured, mode).acceptance_per_pos
        if mode != PLAIN and shares:
            axes.plot(range(1, len(shares) + 1), shares, marker=".", label=mode)
            has_any = True
    axes.set_xlabel("depth")
    axes.set_ylabel("accepted of drafted")
    axes.set_ylim(0, 1)
    axes.set_title("acceptance by depth")
    if has_any:
        axes.legend()
