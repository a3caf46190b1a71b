"""``edgedec bench``: what guessing brings on this machine, measured against plain decoding."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from edgedec import machine
from edgedec.bench import device, plot, report, server, suite
from edgedec.bench.compare import find_forks
from edgedec.bench.device import Device
from edgedec.bench.export import as_object
from edgedec.bench.modes import Local, Mode, parse_modes
from edgedec.bench.record import Arm, Settings
from edgedec.bench.replay import replay
from edgedec.bench.result import Bench
from edgedec.bench.runner import n_tokens_needed, run
from edgedec.cli import explain_fatal_errors, print_json
from edgedec.cli.options import load_options, verbose_option
from edgedec.cli.progress import StatusLine
from edgedec.engine.setup import N_DRAFT_MAX
from edgedec.llm import LLM, load
from edgedec.types import SamplingParams

_HERE = "here"
_BUILT_IN = "built-in"


@dataclass(frozen=True, slots=True)
class _Plan:
    """What was asked for, checked before anything is loaded."""

    prompts: list[suite.Prompt]
    suite: str
    turns: int
    modes: list[Mode]
    settings: Settings
    devices: list[Device]
    endpoint: server.Endpoint | None


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@load_options
@click.option(
    "--modes", default="plain,auto", show_default=True, metavar="MODE,…", help="plain, auto, NAME or NAME+NAME."
)
@click.option(
    "--suite", "suite_file", metavar="FILE", help="Prompts as JSON lines, like Spec-Bench's.  [default: built-in]"
)
@click.option("--prompts", type=click.IntRange(1), help="Only the first so many of each category.")
@click.option("--turns", type=click.IntRange(1), default=1, show_default=True, help="Turns of each prompt, at most.")
@click.option("-n", "--max-tokens", type=click.IntRange(2), default=200, show_default=True, help="Of each answer.")
@click.option("--temperature", "--temp", type=float, default=0.0, show_default=True, help="0 is greedy.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the first answer.")
@click.option("--per-category", is_flag=True, help="Print the details of every category.")
@click.option("--against", metavar="URL", help="Measure a running llama.cpp server on the same prompts, too.")
@click.option(
    "--replay", "replays", multiple=True, metavar="DEVICE", help="Cost curve of another machine: name or JSON file."
)
@click.option("--plot", "picture", metavar="FILE", help="Draw the result: .png or .svg.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@verbose_option
def bench(
    model: str | None, per_category: bool, picture: str | None, as_json: bool, against: str | None, **flags: Any
) -> None:
    """Answer a suite of prompts plainly and with guesses, interleaved, and compare.

    docs/bench.md says what each number means.
    """
    if picture is not None:
        plot.check(Path(picture))
    plan = _plan(against, flags)
    line = StatusLine()
    try:
        with _load(model, flags, line) as llm:
            result = _measure(llm, plan, line)
    finally:
        line.clear()
    if picture is not None:
        plot.draw(result, Path(picture))
    if as_json:
        print_json(as_object(result))
    else:
        click.echo("\n".join(report.lines(result, per_category=per_category)))


def _plan(against: str | None, flags: dict[str, Any]) -> _Plan:
    """Raises UsageError before a model is fetched or loaded."""
    file = flags["suite_file"]
    prompts = suite.builtin() if file is None else suite.read(Path(file))
    if flags["prompts"] is not None:
        prompts = suite.first_of_each(prompts, flags["prompts"])
    settings = Settings(flags["max_tokens"], flags["temperature"], flags["seed"])
    SamplingParams(temperature=settings.temperature, seed=settings.seed)
    return _Plan(
        prompts=prompts,
        suite=_BUILT_IN if file is None else str(file),
        turns=flags["turns"],
        modes=parse_modes(flags["modes"]),
        settings=settings,
        devices=[device.load(name) for name in flags["replays"]],
        endpoint=None if against is None else server.find(against),
    )


def _load(model: str | None, flags: dict[str, Any], line: StatusLine) -> LLM:
    explain_fatal_errors()

    def on_fetch(message: str, done: int | None, total: int | None) -> None:
        line.update(message, done / total if done is not None and total else None)

    names = ("n_ctx", "n_threads", "n_gpu_layers", "type_k", "type_v", "flash_attn")
    return load(
        model,
        learn=False,  # one mode's answers would be the next one's guesses
        progress=lambda fraction: line.update("loading the model", fraction),
        fetch_progress=on_fetch,
        **{name: flags[name] for name in names},
    )


def _measure(llm: LLM, plan: _Plan, line: StatusLine) -> Bench:
    def encode(messages: Any) -> tuple[int, ...]:
        return tuple(llm.template.encode(messages).ids)

    llm.client.reserve(n_tokens_needed(plan.prompts, encode, plan.settings, plan.turns))
    arms: list[Arm] = [Local(llm, mode) for mode in plan.modes]
    same = [mode.name for mode in plan.modes[1:]]  # whose text should be the plain one
    n_ctx = llm.n_ctx
    if plan.endpoint is not None:
        arms.append(server.Server(plan.endpoint, llm.template.stop))
        n_ctx = min(n_ctx, plan.endpoint.n_ctx or n_ctx)
        if plan.settings.temperature == 0:  # sampled texts differ: the server has a noise of its own
            same.append(server.NAME)
    found = run(
        plan.prompts,
        arms,
        encode,
        plan.settings,
        turns=plan.turns,
        n_ctx=n_ctx,
        progress=lambda done, total, doing: line.update("measuring", done / total, doing),
    )
    noise = find_forks(
        llm, found.measured, same, plan.settings, lambda done, total: line.update("comparing the texts", done / total)
    )
    cost_ms = llm.client.call(lambda setup: dict(setup.cost_ms))
    here = Device(_HERE, "this machine", "measured when the model was loaded", dict(sorted(cost_ms.items())))
    # A replay on this machine shows how far a replay can be believed.
    devices = [here, *plan.devices] if cost_ms and plan.devices else []
    replayed = replay(
        llm,
        found.measured,
        plan.modes,
        devices,
        plan.settings,
        n_rows_max=N_DRAFT_MAX + 1,
        progress=lambda done, total: line.update("replaying", done / total),
    )
    return Bench(
        measured=found.measured,
        skipped=found.skipped,
        names=[arm.name for arm in arms],
        settings=plan.settings,
        suite=plan.suite,
        turns=plan.turns,
        machine=_machine(),
        model={
            "name": llm.name,
            "path": str(llm.path),
            "architecture": llm.model.architecture,
            "n_params": llm.model.n_params,
        },
        n_threads=llm.client.call(lambda setup: setup.context.n_threads),
        n_rows_max=N_DRAFT_MAX + 1,
        here=here if cost_ms else None,
        note=llm.note,
        noise=noise,
        replays=list(zip(devices, replayed, strict=True)),
        against=None if plan.endpoint is None else asdict(plan.endpoint),
    )


def _machine() -> dict[str, Any]:
    from edgedec.llama import lib

    return {
        "system": machine.system_name(),
        "cpu": machine.cpu_name(),
        "physical_cores": machine.n_physical_cores(),
        "memory_total": machine.memory().total,
        **lib.versions(),
    }
