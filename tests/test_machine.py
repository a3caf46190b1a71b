"""What is read from the files of a Linux system, given as text."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

import pytest

from edgedec import machine
from edgedec.machine import Memory

GIB = 2**30

System = Callable[..., None]


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Iterator[System]:
    """Pretend to be a Linux machine with these files and logical cores."""

    def pretend(files: dict[str, str] | None = None, cpus: set[int] | None = None) -> None:
        known = files or {}
        monkeypatch.setattr(machine, "_read", lambda path: known.get(path, ""))
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cpus or {0}, raising=False)
        machine.n_physical_cores.cache_clear()

    yield pretend
    machine.n_physical_cores.cache_clear()


def siblings(*groups: str) -> dict[str, str]:
    """``"0,4"``: logical cores 0 and 4 are one physical core."""
    return {
        f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": group
        for group in groups
        for cpu in group.split(",")
    }


@pytest.mark.parametrize(
    ("groups", "cpus", "n"),
    [
        (["0,4", "1,5", "2,6", "3,7"], set(range(8)), 4),
        (["0", "1", "2", "3"], set(range(4)), 4),
        (["0,4", "1,5", "2,6", "3,7"], {0, 4}, 1),  # pinned to both threads of one core
        (["0,4", "1,5", "2,6", "3,7"], {0, 1, 5}, 2),
        ([], {0, 1, 2}, 3),  # a system that does not tell
    ],
)
def test_physical_cores(system: System, groups: list[str], cpus: set[int], n: int) -> None:
    system(siblings(*groups), cpus)
    assert machine.n_physical_cores() == n
    assert machine.n_logical_cores() == len(cpus)


V1 = "/sys/fs/cgroup/cpu/cpu.cfs_"


@pytest.mark.parametrize(
    ("files", "n"),
    [
        ({}, 8),
        ({"/sys/fs/cgroup/cpu.max": "max 100000"}, 8),
        ({"/sys/fs/cgroup/cpu.max": "200000 100000"}, 2),
        ({"/sys/fs/cgroup/cpu.max": "150000 100000"}, 2),
        ({"/sys/fs/cgroup/cpu.max": "20000 100000"}, 1),
        ({"/sys/fs/cgroup/cpu.max": "1600000 100000"}, 8),
        ({V1 + "quota_us": "300000", V1 + "period_us": "100000"}, 3),
        ({V1 + "quota_us": "-1", V1 + "period_us": "100000"}, 8),
        ({V1 + "quota_us": "0", V1 + "period_us": "100000"}, 8),
    ],
)
def test_a_container_limits_the_cores(system: System, files: dict[str, str], n: int) -> None:
    system({**siblings(*map(str, range(8))), **files}, set(range(8)))
    assert machine.n_physical_cores() == n


MEMINFO = "MemTotal:       16777216 kB\nMemFree:  1048576 kB\nMemAvailable:   8388608 kB\nHugePages_Total:  0\n"
V2_LIMIT, V2_USED = "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"
V1_LIMIT, V1_USED = (f"/sys/fs/cgroup/memory/memory.{name}_in_bytes" for name in ("limit", "usage"))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, Memory(16 * GIB, 8 * GIB, None)),
        ({V2_LIMIT: "max", V2_USED: str(GIB)}, Memory(16 * GIB, 8 * GIB, None)),
        ({V2_LIMIT: str(4 * GIB), V2_USED: str(GIB)}, Memory(16 * GIB, 3 * GIB, 4 * GIB)),
        ({V2_LIMIT: str(12 * GIB), V2_USED: str(GIB)}, Memory(16 * GIB, 8 * GIB, 12 * GIB)),
        ({V2_LIMIT: str(4 * GIB), V2_USED: str(5 * GIB)}, Memory(16 * GIB, 0, 4 * GIB)),
        ({V2_LIMIT: str(4 * GIB)}, Memory(16 * GIB, 4 * GIB, 4 * GIB)),
        ({V1_LIMIT: str(2 * GIB), V1_USED: str(GIB)}, Memory(16 * GIB, GIB, 2 * GIB)),
        ({V1_LIMIT: "9223372036854771712", V1_USED: str(GIB)}, Memory(16 * GIB, 8 * GIB, None)),
        ({V2_LIMIT: str(64 * GIB), V2_USED: str(GIB)}, Memory(16 * GIB, 8 * GIB, None)),
    ],
)
def test_memory(system: System, files: dict[str, str], expected: Memory) -> None:
    system({"/proc/meminfo": MEMINFO, **files})
    assert machine.memory() == expected


def test_old_kernels_do_not_tell_what_is_available(system: System) -> None:
    system({"/proc/meminfo": "MemTotal: 1024 kB\nMemFree: 256 kB"})
    assert machine.memory() == Memory(2**20, 2**18, None)


def test_a_system_that_tells_nothing(system: System) -> None:
    system()
    assert machine.memory() == Memory(0, 0, None)
    assert machine.n_physical_cores() == 1
    assert machine.cpu_name()


def test_cpu_name(system: System) -> None:
    system({"/proc/cpuinfo": "processor : 0\nmodel name\t: Fast CPU: 9000\nflags : a b\n\nmodel name : Other\n"})
    assert machine.cpu_name() == "Fast CPU: 9000"


def test_a_mac(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """Performance cores only: an efficiency core would hold up the others."""
    told = {"hw.perflevel0.physicalcpu": "6", "hw.physicalcpu": "10", "machdep.cpu.brand_string": "Apple M9"}
    system({}, set(range(10)))
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(machine, "_sysctl", lambda name: told.get(name, ""))
    assert machine.n_physical_cores() == 6
    assert machine.cpu_name() == "Apple M9"
    del told["hw.perflevel0.physicalcpu"]
    machine.n_physical_cores.cache_clear()
    assert machine.n_physical_cores() == 10


def test_this_machine() -> None:
    assert 1 <= machine.n_physical_cores() <= machine.n_logical_cores()
    found = machine.memory()
    assert 0 < found.available <= found.total
    assert machine.cpu_name()
    assert machine.system_name()
