"""Flags that several commands share, spelled once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def _all(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    def apply(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


def _set_verbosity(_: click.Context, __: click.Parameter, value: int) -> None:
    from edgedec.cli import set_verbosity

    set_verbosity(value)


verbose_option = click.option(
    "-v",
    "--verbose",
    count=True,
    expose_value=False,
    callback=_set_verbosity,
    is_eager=True,
    help="Show llama.cpp's log; twice: everything.",
)

load_options = _all(
    click.option("-m", "--model", metavar="MODEL", help="Path, name or hf:owner/repo[:file].  [default: smollm2-135m]"),
    click.option("--n-ctx", type=int, help="Tokens of context.  [default: as many as needed]"),
    click.option("--n-threads", type=int, default=0, help="CPU threads.  [default: physical cores]"),
    click.option("--n-gpu-layers", type=int, default=-1, help="Layers on the GPU.  [default: all]"),
    click.option("--type-k", default="f16", show_default=True, help="Type of the K half of the KV memory."),
    click.option("--type-v", default="f16", show_default=True, help="Type of the V half of the KV memory."),
    click.option("--flash-attn", default="auto", show_default=True, help="auto, on or off."),
)

model_options = _all(
    load_options,
    click.option(
        "--speculate", default="auto", show_default=True, metavar="MODE", help="auto, off, or drafters: NAME[,NAME…]."
    ),
)

learn_option = click.option(
    "--learn/--no-learn",
    default=None,
    help="Store the answer, so that later ones may be guessed from it.  [default: yes, unless EDGEDEC_LEARN is 0]",
)

sampling_options = _all(
    click.option("--seed", type=int, help="Fixes the text.  [default: random]"),
    click.option("--temperature", "--temp", type=float, help="0 is greedy.  [default: 0.8]"),
    click.option("--top-k", type=int, help="0 is off.  [default: 40]"),
    click.option("--top-p", type=float, help="1 is off.  [default: 0.95]"),
    click.option("--min-p", type=float, help="0 is off.  [default: 0.05]"),
    click.option("--repeat-penalty", type=float, help="1 is off.  [default: 1]"),
    click.option("--presence-penalty", type=float, help="0 is off.  [default: 0]"),
    click.option("--frequency-penalty", type=float, help="0 is off.  [default: 0]"),
    click.option("--penalty-last-n", type=int, help="Tokens the penalties look back.  [default: 64]"),
    click.option("--dry-multiplier", type=float, help="0 is off.  [default: 0]"),
    click.option("--dry-base", type=float, help="[default: 1.75]"),
    click.option("--dry-allowed-length", type=int, help="[default: 2]"),
)
