"""What this process may use of the machine: cores and memory, by its affinity and the limits of its container.

Containers and batch systems limit by control groups (cgroups). A limit of a group holds for all groups below it, so
those of a process are the smallest on the way from its own group to the root. Pure Python; needs no torch.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import psutil

__all__ = ["available_memory", "memory_peak", "orders_stores", "processor_name", "usable_cores"]

_CGROUPS, _MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_CPUINFO = Path("/proc/cpuinfo")


def usable_cores(cgroups: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> int:
    """Cores that this process may keep busy, at least 1; of a quota of 2.5 cores, 2.

    cgroups: where the control groups are mounted. membership: the file that says which ones this process is in.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _folders("cpu", cgroups, membership):
        quota, period = (
            _numbers(folder, "cpu.max", 2)
            or [
                *_numbers(folder, "cpu.cfs_quota_us", 1),
                *_numbers(folder, "cpu.cfs_period_us", 1),
            ]
            or [-1, 1]
        )
        if quota > 0 and period > 0:  # -1: none
            cores = min(cores, quota // period)
    return max(cores, 1)


def available_memory(cgroups: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> int:
    """Bytes that can be taken without swapping, and without being killed for it."""
    available = int(psutil.virtual_memory().available)
    for folder in _folders("memory", cgroups, membership):
        for most, used, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limits, usage = _numbers(folder, most, 1), _numbers(folder, used, 1)
            if limits and usage:
                available = min(available, limits[0] - usage[0] + _statistic(folder, cache))  # files can be dropped
    return max(available, 0)


def memory_peak(anew: bool = False) -> int:
    """The most bytes of memory that this process has held at a time; 0 where the system does not tell.

    anew: it is what the process holds now that counts from here on, where the system can forget the peak.
    """
    if anew:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def orders_stores() -> bool:
    """Whether others see what a core of this machine writes in the order in which it was written."""
    return platform.machine().lower() in {"x86_64", "amd64", "i686", "i386"}


def processor_name(cpuinfo: Path = _CPUINFO) -> str:
    """What the processor calls itself, as "AMD EPYC"; cpuinfo: the file in which Linux says it."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown processor")


def _folders(controller: str, cgroups: Path, membership: Path) -> Iterator[Path]:
    """The folders of the groups that this process is in, from its own up; of version 2, and of `controller` of 1."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        mounts = [cgroups / controllers, cgroups / controller] if controllers else [cgroups, cgroups / "unified"]
        for mount in mounts:
            own = mount / path.lstrip("/")
            # In a container the path may be that of the host, of which only the mount itself is seen here.
            yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(mount))


def _numbers(folder: Path, name: str, count: int) -> list[int]:
    """The first `count` numbers in a file; none if there are no such numbers ("max")."""
    try:
        return [int(word) for word in (folder / name).read_text(encoding="ascii").split()[:count]]
    except (OSError, ValueError):
        return []


def _statistic(folder: Path, name: str) -> int:
    try:
        lines = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.split()[0] == name)
    except (OSError, ValueError, IndexError, StopIteration):
        return 0
