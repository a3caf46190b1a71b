"""The drafters by name. A new one is one file here and one line in `REGISTRY`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from edgedec.drafters.base import Drafter
from edgedec.errors import UnknownNameError, UsageError

REGISTRY: dict[str, str] = {
    "suffix": "edgedec.drafters.suffix:SuffixDrafter",
    "history": "edgedec.drafters.history:HistoryDrafter",
    "recycle": "edgedec.drafters.recycle:RecycleDrafter",
    "predicted": "edgedec.drafters.predicted:PredictedDrafter",
}
"""Name -> "module:Class". Imported when first asked for: some drafters bring heavy modules."""

AUTO = ("suffix", "history", "predicted")
"""What "auto" stands for: sources whose looking costs about a hundredth of a small model's step. The others cost more
than they bring while drafts are chains (scripts/copying.py), so they guess only when they are named."""


def names() -> list[str]:
    """All known names, in the order of the registry."""
    return list(REGISTRY)


def drafter_class(name: str) -> type[Drafter]:
    """The class behind a name. Raises UnknownNameError."""
    if name not in REGISTRY:
        raise UnknownNameError("drafter", name, REGISTRY)
    module, _, class_name = REGISTRY[name].partition(":")
    found: type[Drafter] = getattr(import_module(module), class_name)
    return found


def create(names: Sequence[str], options: Mapping[str, Any] | None = None) -> list[Drafter]:
    """New drafters, in the order of ``names``.

    ``options``: by name, an instance of that class's ``Options``; without one the defaults hold. Options of drafters
    that are not named here are left alone.

    Raises:
        UnknownNameError: a name is not in the registry.
        UsageError: a name is given twice (a name is what counters and calibration are kept under).
    """
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"The drafter {name!r} is named {names.count(name)} times.", "Name each drafter once.")
    return [drafter_class(name)(options.get(name) if options else None) for name in names]
