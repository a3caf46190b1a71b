"""What this machine has: cores, memory, and the limits that a container puts on both."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes; ``limit`` is a container's limit, None if there is none or it is above ``total``."""

    total: int
    available: int
    limit: int | None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _sysctl(name: str) -> str:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=5, check=False)
        return done.stdout.strip()
    return ""


def cpu_name() -> str:
    """The processor's marketing name, or its architecture where the system does not tell."""
    if sys.platform == "darwin":
        return _sysctl("machdep.cpu.brand_string") or platform.machine()
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def n_logical_cores() -> int:
    """Logical cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cgroup_cores() -> float | None:
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        return int(quota) / int(period)
    quota, period = _read("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), _read("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
    if quota.isdigit() and period.isdigit() and int(quota) > 0:
        return int(quota) / int(period)
    return None


@cache
def n_physical_cores() -> int:
    """Cores worth a llama.cpp thread: physical ones (performance cores on Apple silicon), within affinity and quota.

    A second thread on the same core shares its vector units, so it makes a matrix product slower, not faster.
    """
    cores = 0
    if sys.platform == "darwin":
        text = _sysctl("hw.perflevel0.physicalcpu") or _sysctl("hw.physicalcpu")
        cores = int(text) if text.isdigit() else 0
    elif sys.platform.startswith("linux"):
        siblings = set()
        for cpu in os.sched_getaffinity(0):
            text = _read(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
            siblings.add(text or str(cpu))
        cores = len(siblings)
    else:
        cores = n_logical_cores() // 2
    cores = max(1, cores or n_logical_cores())
    quota = _cgroup_cores()
    return max(1, min(cores, int(quota + 0.5))) if quota else cores


def _meminfo() -> tuple[int, int]:
    fields = {}
    for line in _read("/proc/meminfo").splitlines():
        key, _, rest = line.partition(":")
        number = rest.split()
        if number and number[0].isdigit():
            fields[key] = int(number[0]) * 1024
    return fields.get("MemTotal", 0), fields.get("MemAvailable", fields.get("MemFree", 0))


def _cgroup_memory() -> tuple[int | None, int]:
    for limit_file, used_file in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        limit, used = _read(limit_file), _read(used_file)
        if limit.isdigit():
            return int(limit), int(used) if used.isdigit() else 0
    return None, 0


def memory() -> Memory:
    """Total and available bytes of main memory; zeros where the system does not tell."""
    if sys.platform == "darwin":
        text = _sysctl("hw.memsize")
        total = int(text) if text.isdigit() else 0
        pages = {}
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            out = subprocess.run(["vm_stat"], capture_output=True, text=True, timeout=5, check=False).stdout
            for line in out.splitlines():
                key, _, rest = line.partition(":")
                digits = rest.strip().rstrip(".")
                if digits.isdigit():
                    pages[key] = int(digits)
        size = os.sysconf("SC_PAGE_SIZE")
        free = sum(pages.get(k, 0) for k in ("Pages free", "Pages inactive", "Pages speculative")) * size
        return Memory(total, free or total // 2, None)
    if sys.platform == "win32":
        return _windows_memory()
    total, available = _meminfo()
    limit, used = _cgroup_memory()
    if limit is None or (total and limit >= total):
        return Memory(total, available, None)
    return Memory(total, min(available, max(0, limit - used)), limit)


def _windows_memory() -> Memory:
    import ctypes

    class Status(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ulong), ("load", ctypes.c_ulong)] + [
            (name, ctypes.c_ulonglong) for name in ("total", "avail", "tp", "ap", "tv", "av", "ax")
        ]

    status = Status()
    status.length = ctypes.sizeof(Status)
    if not ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):  # type: ignore[attr-defined,unused-ignore]
        return Memory(0, 0, None)
    return Memory(int(status.total), int(status.avail), None)


def system_name() -> str:
    """Operating system and architecture, e.g. "Linux 6.1 x86_64"."""
    return f"{platform.system()} {platform.release()} {platform.machine()}"
