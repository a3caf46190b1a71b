"""Settings of a loaded model, frozen. Names are llama.cpp's where llama.cpp has one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from edgedec.errors import UsageError

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
FLASH_ATTN = ("auto", "on", "off")
AUTO = "auto"
OFF = "off"


def parse_speculate(value: str | Sequence[str]) -> tuple[str, ...]:
    """``"auto"``, ``"off"``, or drafter names as a list or separated by commas. Whether a name exists is the registry's
    business."""
    names = value.split(",") if isinstance(value, str) else list(value or ())
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"speculate is {value!r}.", "Use auto, off, or names of drafters.")
    cleaned = tuple(dict.fromkeys(name.strip().lower() for name in names if name.strip()))
    if not cleaned:
        raise UsageError("No speculation mode was given.", "Use auto, off, or names of drafters separated by commas.")
    if len(cleaned) > 1 and (AUTO in cleaned or OFF in cleaned):
        raise UsageError(f"{AUTO!r} and {OFF!r} cannot be combined with other names.", "Give one of them alone.")
    return cleaned


def may_learn(wanted: bool | None) -> bool:
    """Whether answers may be stored. None: as the environment variable ``EDGEDEC_LEARN`` says, 0 or 1; else yes."""
    value = os.environ.get("EDGEDEC_LEARN", "").strip() or "1"
    if wanted is None and value not in ("0", "1"):
        raise UsageError(f"EDGEDEC_LEARN is {value!r}.", "Set it to 0 or 1.")
    return value == "1" if wanted is None else wanted


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How a model is loaded.

    ``n_ctx`` None: 4096 tokens or what the model was trained for, growing when a request needs more. ``n_threads`` 0:
    the physical cores. ``n_gpu_layers`` -1: as many as the build can offload. ``learn``: the `history` drafter stores
    answers for next time.
    """

    n_ctx: int | None = None
    n_batch: int = 512
    n_ubatch: int = 512
    n_threads: int = 0
    n_gpu_layers: int = -1
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn: str = "auto"
    speculate: tuple[str, ...] = (AUTO,)
    learn: bool = True

    def __post_init__(self) -> None:
        def need(ok: bool, name: str, rule: str) -> None:
            if not ok:
                raise UsageError(f"{name} is {getattr(self, name)!r}.", f"Use {rule}.")

        for name in ("n_ctx", "n_batch", "n_ubatch", "n_threads", "n_gpu_layers"):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            need(whole or (name == "n_ctx" and value is None), name, "a whole number")
        need(self.n_ctx is None or 8 <= self.n_ctx < 2**31, "n_ctx", "a whole number ≥ 8")
        need(1 <= self.n_batch <= 65536, "n_batch", "a whole number from 1 to 65536")
        need(1 <= self.n_ubatch <= self.n_batch, "n_ubatch", "a whole number from 1 to n_batch")
        need(0 <= self.n_threads <= 512, "n_threads", "0 (physical cores) or a number up to 512")
        need(self.type_k in KV_TYPES, "type_k", f"one of {', '.join(KV_TYPES)}")
        need(self.type_v in KV_TYPES, "type_v", f"one of {', '.join(KV_TYPES)}")
        need(self.flash_attn in FLASH_ATTN, "flash_attn", f"one of {', '.join(FLASH_ATTN)}")
        need(-1 <= self.n_gpu_layers <= 10000, "n_gpu_layers", "-1 (all that fit the build) or a number of layers")

    @property
    def mode(self) -> str:
        """How speculation is named in results: "auto", "off" or the names."""
        return ",".join(self.speculate)
