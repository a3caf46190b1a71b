"""Measurements kept on disk, so that the next load of the same model does not repeat them.

One small JSON file per key; the key names everything that the numbers depend on. A file that is missing, damaged or
older than this layout simply means a new measurement.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import tempfile
from pathlib import Path

from edgedec.paths import state_dir

log = logging.getLogger("edgedec.speculation")

_LAYOUT = 1


def profile_key(fingerprint: str, context_settings: str) -> str:
    """``fingerprint`` names model file and build; ``context_settings`` all that else changes the speed of a step."""
    return f"{fingerprint}|{context_settings}"


def _file(key: str) -> Path:
    return state_dir() / "profiles" / f"{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}.json"


def load(key: str) -> dict[int, float] | None:
    """The stored T(n), rows → milliseconds, or None."""
    try:
        stored = json.loads(_file(key).read_text(encoding="utf-8"))
        if stored["layout"] != _LAYOUT or stored["key"] != key:
            return None
        cost = {int(n): float(ms) for n, ms in stored["cost_ms"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    return cost if 1 in cost and all(n > 0 and 0 < ms < math.inf for n, ms in cost.items()) else None


def store(key: str, cost_ms: dict[int, float]) -> None:
    """Write T(n); a full disk or a read-only home is no reason to fail."""
    path = _file(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"layout": _LAYOUT, "key": key, "cost_ms": cost_ms}, file)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        log.info("the cost profile could not be stored: %s", error)
