"""A bench run as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edgedec.bench.device import Device, limit
from edgedec.bench.record import PLAIN, Measured
from edgedec.bench.result import Bench
from edgedec.bench.summary import Summary, by_category, summarise

ALL = "overall"
_DEPTHS = 12  # shown on the terminal

Groups = Mapping[str, Sequence[Measured]]


def lines(bench: Bench, *, per_category: bool) -> list[str]:
    """The report: speed-ups by category, the modes in detail, forks, replays."""
    groups = by_category(bench.measured)
    out = [_headline(bench, groups), ""]
    if bench.note:
        out += [f"Not guessing: {bench.note}.", ""]
    out += _speedups(bench, bench.here, bench.measured, "category")
    if bench.here is not None:
        out.append("limit: with guesses that are all right and cost nothing, under T(n) as measured at load")
    if per_category:
        for name, group in groups.items():
            out += ["", *_details(bench, group, name)]
    out += ["", *_details(bench, bench.measured, ALL)]
    out += _drafters(bench)
    out += _forks(bench)
    for device, cases in bench.replays:
        out += ["", f"replayed on {device.description}", f"({device.source})"]
        out += _speedups(bench, device, cases, device.name)
    if bench.skipped:
        listed = ", ".join(f"{prompt_id}/{turn}" for prompt_id, turn in bench.skipped)
        out += ["", f"left out, because they do not fit into the context (prompt/turn): {listed}"]
    return out


def _headline(bench: Bench, groups: Groups) -> str:
    settings = bench.settings
    how = "greedy" if settings.temperature == 0 else f"temperature {settings.temperature:g}, seed {settings.seed}"
    return (
        f"{bench.model['name']} · {bench.n_threads} threads · {how} · up to {settings.max_tokens} tokens · "
        f"{len(bench.measured)} answers in {len(groups)} categories · speed-ups over plain decoding"
    )


def _speedups(bench: Bench, device: Device | None, measured: Sequence[Measured], title: str) -> list[str]:
    """The ratios of sums; those of a mode that was not measured everywhere (a server, in a replay) are left out."""
    modes = [name for name in bench.guessing if all(name in one.answers for one in measured)]
    rows = [[title, "answers", "plain tok/s", *modes, *(["limit"] if device else [])]]
    for name, group in [*by_category(measured).items(), (ALL, measured)]:
        rows.append(
            [
                name,
                str(len(group)),
                f"{summarise(group, PLAIN).tokens_per_second:.1f}",
                *(f"{summarise(group, mode).speedup:.2f}×" for mode in modes),
                *([f"{limit(device, group, bench.n_rows_max):.2f}×"] if device else []),
            ]
        )
    return table(rows)


def _details(bench: Bench, group: Sequence[Measured], title: str) -> list[str]:
    header = [title, "tok/s", "sums", "median", "quartiles", "tok/step", "accepted", "drafting", "outside ms", "forks"]
    summaries = {name: summarise(group, name) for name in bench.names}
    out = table([header, *(_detail_row(name, summary) for name, summary in summaries.items())])
    depths = [
        [name, *(f"{share:.2f}" for share in summary.acceptance_per_pos[:_DEPTHS])]
        for name, summary in summaries.items()
        if summary.acceptance_per_pos
    ]
    if depths:
        widest = max(len(row) for row in depths)
        rows = [["accepted at depth", *(str(n) for n in range(1, widest))], *depths]
        out += table([row + [""] * (widest - len(row)) for row in rows])
    return out


def _detail_row(name: str, s: Summary) -> list[str]:
    low, high = s.speedup_quartiles
    is_plain = name == PLAIN
    return [
        name,
        f"{s.tokens_per_second:.1f}",
        "" if is_plain else f"{s.speedup:.2f}×",
        "" if is_plain else f"{s.speedup_median:.2f}×",
        "" if is_plain else f"{low:.2f}–{high:.2f}",
        "" if s.tokens_per_step is None else f"{s.tokens_per_step:.2f}",
        f"{s.acceptance_rate:.0%}" if s.drafted else "",
        "" if is_plain or s.drafting_share is None else f"{s.drafting_share:.1%}",
        "" if s.outside_ms is None else f"{s.outside_ms:.2f}",
        "" if is_plain else str(s.forks),
    ]


def _drafters(bench: Bench) -> list[str]:
    rows = []
    for mode in bench.guessing:
        for name, counts in summarise(bench.measured, mode).drafters.items():
            share = f"{counts.accepted / counts.drafted:.0%}" if counts.drafted else ""
            rows.append([mode, name, str(counts.drafted), str(counts.accepted), share, f"{counts.time_s * 1e3:.0f}"])
    return ["", *table([["mode", "drafter", "drafted", "accepted", "share", "ms"], *rows])] if rows else []


def _forks(bench: Bench) -> list[str]:
    rows = []
    for one in bench.measured:
        for name, fork in one.forks.items():
            where = "?" if fork.at is None else str(fork.at)
            gap = "?" if fork.gap is None else f"{fork.gap:.3f}"
            verdict = {True: "near-tie", False: "NOT A NEAR-TIE", None: "not known"}[fork.is_near_tie]
            rows.append([one.case.category, f"{one.case.prompt_id}/{one.case.turn}", name, where, gap, verdict])
    if not rows:
        return []
    out = ["", *table([["forks", "prompt/turn", "mode", "at token", "gap", ""], *rows])]
    if bench.noise is not None:
        out.append(f"noise of wide batches on these texts: {bench.noise:.3f} logits; a near-tie is within twice that")
    return out


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as they must be; the first one is left-aligned."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]
