"""``edgedec doctor``: what is here, and what is wrong, in plain words."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from edgedec import __version__, catalogue, machine, paths
from edgedec.cli import print_json
from edgedec.cli.options import verbose_option
from edgedec.errors import EdgedecError

_GIB = 1 << 30


@dataclass(slots=True)
class Report:
    """Facts by topic, and problems as (what, what to do)."""

    facts: dict[str, Any] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@verbose_option
def doctor(as_json: bool) -> None:
    """Show build, processor, devices, memory and model folder; say what is wrong and what to do.

    Exit code 1 if something keeps edgedec from working or makes it much slower than it could be.
    """
    report = examine()
    if as_json:
        problems = [{"what": what, "do": do} for what, do in report.problems]
        print_json({**report.facts, "problems": problems})
    else:
        click.echo("\n".join(_lines(report)))
    if report.problems:
        sys.exit(1)


def examine() -> Report:
    """Look at everything; never raises for what it finds."""
    report = Report()
    report.facts["edgedec"] = {"version": __version__, "python": platform.python_version()}
    _machine(report)
    _library(report)
    _models(report)
    return report


def _machine(report: Report) -> None:
    memory = machine.memory()
    report.facts["machine"] = {
        "system": machine.system_name(),
        "cpu": machine.cpu_name(),
        "physical_cores": machine.n_physical_cores(),
        "logical_cores": machine.n_logical_cores(),
        "memory_total": memory.total,
        "memory_available": memory.available,
        "memory_limit": memory.limit,
    }
    if 0 < memory.available < _GIB // 2:
        report.problems.append(
            (
                f"Only {memory.available / _GIB:.1f} GiB of memory are free.",
                "Close other programs, or expect the system to swap.",
            )
        )


def _library(report: Report) -> None:
    try:
        from edgedec.llama import lib
    except EdgedecError as error:
        report.facts["llama"] = None
        report.problems.append((str(error), f"Reinstall it: {_rebuild()}"))
        return
    devices = lib.devices()
    flags = lib.system_info()
    report.facts["llama"] = {
        **lib.versions(),
        "features": flags,
        "devices": [asdict(device) for device in devices],
        "gpu_offload": lib.supports_gpu_offload(),
    }
    _check_build(report, flags, has_gpu_build=lib.supports_gpu_offload(), kinds={device.kind for device in devices})


def _check_build(report: Report, flags: str, *, has_gpu_build: bool, kinds: set[str]) -> None:
    """Compare what llama.cpp was built for with what this machine could do."""
    enabled = {part.partition("=")[0].split(":")[-1].strip() for part in flags.split("|")}
    cpu = _cpu_flags()
    for theirs, ours in (("avx2", "AVX2"), ("avx512f", "AVX512"), ("fma", "FMA")):
        if theirs in cpu and ours not in enabled:
            report.problems.append(
                (
                    f"This processor has {ours}, but llama.cpp was built without it.",
                    f"Rebuild here: {_rebuild()}",
                )
            )
    has_nvidia = bool(shutil.which("nvidia-smi")) and Path("/dev/nvidia0").exists()
    if has_nvidia and not has_gpu_build:
        report.problems.append(
            (
                "There is an NVIDIA GPU, but llama.cpp was built for the CPU only.",
                f'Rebuild: CMAKE_ARGS="-DGGML_CUDA=on" {_rebuild()}',
            )
        )
    elif has_gpu_build and not kinds & {"gpu", "igpu"}:
        report.problems.append(
            (
                "llama.cpp was built for a GPU, but finds none.",
                "Check the driver; until then models run on the CPU.",
            )
        )


def _rebuild() -> str:
    """The command that compiles llama.cpp again: the same version, and nothing else."""
    wanted = "llama-cpp-python"
    with contextlib.suppress(metadata.PackageNotFoundError):  # run from a folder that was not installed
        wanted = next(r for r in metadata.requires("edgedec") or () if r.startswith(wanted))
    return f"pip install --force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python {wanted}"


def _cpu_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    for line in text.splitlines():
        if line.startswith("flags"):
            return set(line.partition(":")[2].split())
    return set()


def _models(report: Report) -> None:
    folder = paths.models_dir()
    card = catalogue.card(catalogue.DEFAULT)
    existing = next(p for p in (folder, *folder.parents) if os.path.exists(p))
    found = catalogue.present(card)
    report.facts["models"] = {
        "folder": str(folder),
        "files": _model_files(folder),
        "default": {"name": card.name, "path": str(found) if found else None},
        "disk_free": shutil.disk_usage(existing).free,
    }
    if not (os.path.isdir(existing) and os.access(existing, os.W_OK | os.X_OK)):
        report.problems.append(
            (f"The model folder {folder} cannot be written.", "Set EDGEDEC_HOME to a folder of yours.")
        )


def _model_files(folder: Path) -> list[dict[str, Any]]:
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda e: e.name):
            if entry.name.endswith(".gguf") and entry.is_file():  # not a link to what is gone
                found.append({"name": entry.name, "bytes": entry.stat().st_size})
    return found


def _lines(report: Report) -> list[str]:
    facts = report.facts
    m, models, llama = facts["machine"], facts["models"], facts["llama"]
    limit = f", limited to {m['memory_limit'] / _GIB:.1f} GiB" if m["memory_limit"] else ""
    lines = [
        f"edgedec    {facts['edgedec']['version']} on Python {facts['edgedec']['python']}",
        f"system     {m['system']}",
        f"processor  {m['cpu']}, {m['physical_cores']} physical of {m['logical_cores']} logical cores usable",
        f"memory     {m['memory_available'] / _GIB:.1f} of {m['memory_total'] / _GIB:.1f} GiB free{limit}",
    ]
    if llama:
        lines.append(f"llama.cpp  {llama['llama_cpp']} through llama-cpp-python {llama['llama_cpp_python']}")
        lines.append(f"built for  {llama['features']}")
        for device in llama["devices"]:
            size = f", {device['memory_total'] / _GIB:.1f} GiB" if device["memory_total"] else ""
            lines.append(f"device     {device['name']} ({device['kind']}): {device['description']}{size}")
    default = models["default"]
    lines.append(
        f"models     {models['folder']} ({len(models['files'])} files, {models['disk_free'] / _GIB:.0f} GiB free)"
    )
    lines.append(f"default    {default['name']}: {default['path'] or 'not here yet; the first run brings it'}")
    lines.append("")
    if not report.problems:
        lines.append("Nothing is wrong.")
    for what, do in report.problems:
        lines += [f"! {what}", f"  {do}"]
    return lines
