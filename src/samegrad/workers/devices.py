"""Which devices are meant by "auto", "2", "cpu:2" or "cuda:0,cuda:1". Pure: the caller says what the machine has."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from samegrad.errors import ConfigurationError, DeviceUnavailable

__all__ = ["parse_devices", "usable_cores"]


def usable_cores() -> int:
    """Cores that this process may run on, by its affinity and by the CPU quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return cores if quota == "max" else max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):
        return cores


def parse_devices(
    devices: str | int | Sequence[str], *, cuda: int = 0, cores: int = 1, threads: int = 1, at_most: int = 8
) -> list[str]:
    """The devices meant by `devices`, one name per worker ("cpu" or "cuda:<index>"), in order.

    "auto": every CUDA device, or else one CPU worker for every `threads` cores; at most `at_most`.
    2 or "2": that many CUDA devices if the machine has any, else CPU workers (more than cores is allowed).
    "cpu": one CPU worker; "cpu:2": two. "cuda": every CUDA device; "cuda:1": the one of index 1 (twice: two workers).
    Several are separated by commas, or given as a sequence.

    Raises DeviceUnavailable for a CUDA device that the machine does not have, ConfigurationError for anything else.
    """
    if isinstance(devices, bool) or not isinstance(devices, str | int | Sequence):
        raise ConfigurationError(f"devices must be text, a number or a list; got {devices!r}")
    words = devices if not isinstance(devices, str | int) else str(devices).split(",")
    names: list[str] = []
    for word in words:
        names += _parse_word(str(word).strip().lower(), cuda, cores, threads, at_most)
    if not names:
        raise ConfigurationError(f"devices: {devices!r} names no device; say for example 2, cpu:2 or cuda:0,cuda:1")
    return names


def _parse_word(word: str, cuda: int, cores: int, threads: int, at_most: int) -> list[str]:
    if word == "auto":
        count = min(cuda or max(cores // threads, 1), at_most)
        return [f"cuda:{index}" for index in range(count)] if cuda else ["cpu"] * count
    match = re.fullmatch(r"(?:(cpu|cuda)(?::(\d{1,6}))?|(\d{1,6}))", word)
    if match is None:
        raise ConfigurationError(
            f"devices: {word!r} is not known; expected auto, a number (2), cpu, cpu:2 (two workers), cuda or cuda:0 "
            f"(an index), or several of them separated by commas"
        )
    kind, number, count_alone = match.groups()
    if count_alone is not None:
        kind, number = ("cuda", None) if cuda else ("cpu", count_alone)
    if kind == "cpu":
        return ["cpu"] * _positive(int(number or 1), word)
    wanted = range(_positive(int(count_alone), word)) if count_alone else None
    if wanted is None:
        wanted = range(int(number), int(number) + 1) if number else range(max(cuda, 1))
    if wanted.stop > cuda:
        has = f"this machine has {cuda} CUDA device{'s' if cuda != 1 else ''}" if cuda else "this machine has none"
        raise DeviceUnavailable(
            f"devices: {word!r} asks for CUDA device {wanted.stop - 1}, but {has} that torch can use"
            + (f" (0 to {cuda - 1})" if cuda > 1 else "")
            + "; use cpu:2 for two CPU workers"
        )
    return [f"cuda:{index}" for index in wanted]


def _positive(count: int, word: str) -> int:
    if count < 1:
        raise ConfigurationError(f"devices: {word!r} asks for no device; at least one is needed")
    return count
