"""What a process may use, by its affinity and by control groups of both versions, laid out in a folder."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import psutil
import pytest

from samegrad.machine import available_memory, memory_peak, usable_cores

MIB = 1 << 20


def layout(root: Path, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
    """Control groups under `root`, and the file that says which ones a process is in."""
    for name, content in files.items():
        path = root / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="ascii")
    (root / "membership").write_text(membership, encoding="ascii")
    return root / "cgroup", root / "membership"


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})


V2, V1 = "0::/a/b\n", "12:cpu,cpuacct:/a\n7:memory:/a/b\n1:name=systemd:/a\n"
CORES: dict[str, tuple[str, dict[str, str], int]] = {
    "no groups": (V2, {}, 4),
    "no limit": (V2, {"a/b/cpu.max": "max 100000\n"}, 4),
    "two": (V2, {"a/b/cpu.max": "200000 100000\n"}, 2),
    "two and a half": (V2, {"a/b/cpu.max": "250000 100000\n"}, 2),
    "half": (V2, {"a/b/cpu.max": "50000 100000\n"}, 1),
    "more than there are": (V2, {"a/b/cpu.max": "900000 100000\n"}, 4),
    "of the group above": (V2, {"a/cpu.max": "100000 100000\n", "a/b/cpu.max": "300000 100000\n"}, 1),
    "of the container, whose path is that of the host": ("0::/x/y\n", {"cpu.max": "300000 100000\n"}, 3),
    "nonsense": (V2, {"a/b/cpu.max": "many\n"}, 4),
    "version 1": (V1, {"cpu,cpuacct/a/cpu.cfs_quota_us": "300000\n", "cpu,cpuacct/a/cpu.cfs_period_us": "100000\n"}, 3),
    "version 1, none": (V1, {"cpu/a/cpu.cfs_quota_us": "-1\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, 4),
    "version 1, of another controller": (
        V1,
        {"memory/a/cpu.cfs_quota_us": "100000\n", "memory/a/cpu.cfs_period_us": "100000\n"},
        4,
    ),
}


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize("name", CORES)
def test_cores(name: str, tmp_path: Path) -> None:
    membership, files, cores = CORES[name]
    assert usable_cores(*layout(tmp_path, membership, files)) == cores


MEMORY: dict[str, tuple[str, dict[str, str], int | None]] = {
    "no limit": (V2, {"a/b/memory.max": "max\n", "a/b/memory.current": f"{MIB}\n"}, None),
    "a limit": (V2, {"a/b/memory.max": f"{9 * MIB}\n", "a/b/memory.current": f"{2 * MIB}\n"}, 7 * MIB),
    "files in the cache can go": (
        V2,
        {
            "a/b/memory.max": f"{9 * MIB}\n",
            "a/b/memory.current": f"{5 * MIB}\n",
            "a/b/memory.stat": f"anon {MIB}\ninactive_file {3 * MIB}\n",
        },
        7 * MIB,
    ),
    "used up": (V2, {"a/memory.max": f"{MIB}\n", "a/memory.current": f"{2 * MIB}\n"}, 0),
    "version 1": (
        V1,
        {"memory/a/b/memory.limit_in_bytes": f"{9 * MIB}\n", "memory/a/b/memory.usage_in_bytes": f"{2 * MIB}\n"},
        7 * MIB,
    ),
    "version 1, none": (
        V1,
        {"memory/a/b/memory.limit_in_bytes": f"{(1 << 63) - 4096}\n", "memory/a/b/memory.usage_in_bytes": f"{MIB}\n"},
        None,
    ),
}


@pytest.mark.parametrize("name", MEMORY)
def test_memory(name: str, tmp_path: Path) -> None:
    membership, files, nbytes = MEMORY[name]
    found = available_memory(*layout(tmp_path, membership, files))
    if nbytes is None:
        assert found == pytest.approx(psutil.virtual_memory().available, rel=0.5)  # others take some meanwhile
    else:
        assert found == nbytes


def test_this_process(tmp_path: Path) -> None:
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))
    assert 0 < available_memory() <= psutil.virtual_memory().total
    assert usable_cores(tmp_path, tmp_path / "not there") == len(os.sched_getaffinity(0))


def test_the_peak_of_memory_is_kept_after_it_is_freed_and_begins_anew() -> None:
    before = memory_peak(anew=True)
    with mmap.mmap(-1, 1 << 26) as taken:  # not from what malloc has kept
        taken.write(b"1" * (1 << 26))
    after = memory_peak()
    assert before + (1 << 26) <= after + (1 << 22)
    assert memory_peak(anew=True) <= after - (1 << 25)
