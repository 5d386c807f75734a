"""Storage that cannot be measured, and what is said of it."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from tests.probing.test_probe import TINY

from samegrad.errors import OutputError
from samegrad.probing import storage as module
from samegrad.probing.storage import file_system, storage


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match=r"expected a folder .* Name another one \(--path\)"),
        storage(TINY, tmp_path / "x"),
    ):
        pass


def test_a_folder_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4_000_000))
    with pytest.raises(OutputError, match=r"4\.00 MB are free, and measuring needs 4\.19 MB"), storage(TINY, tmp_path):
        pass


def test_a_folder_that_may_not_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(OutputError, match="could not be written: Permission denied"), storage(TINY, tmp_path):
        pass


def test_memory_that_looks_like_a_disk_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    parts = [
        SimpleNamespace(mountpoint="/", fstype="ext4", device="/dev/sda1"),
        SimpleNamespace(mountpoint=str(tmp_path), fstype="tmpfs", device="tmpfs"),
    ]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: parts)
    assert file_system(tmp_path / "deeper") == ("tmpfs", "tmpfs")
    assert file_system(Path("/elsewhere")) == ("ext4", "/dev/sda1")
    with storage(TINY, tmp_path) as tasks:
        assert all("tmpfs on tmpfs, which is memory, not a disk" in task.note for task in tasks)


def test_a_file_system_without_a_way_past_the_cache_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refuse(path: Any, flags: int, *others: Any, **named: Any) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return opened(path, flags, *others, **named)

    monkeypatch.setattr(os, "open", refuse)
    with storage(TINY, tmp_path) as tasks:
        first = tasks[0]
        assert first.name == "write 1 MB after 1 MB, past the cache"
        with pytest.raises(OutputError, match="no way past the page cache"):
            first.run()
        write = next(task for task in tasks if task.name == "write 1 MB after 1 MB, to the cache")
        assert write.run().lowest > 0


def test_a_disk_that_is_too_slow_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DEADLINE_S", 0.0)
    with storage(TINY, tmp_path) as tasks:
        write = next(task for task in tasks if task.name == "write 1 MB after 1 MB, to the cache")
        with pytest.raises(OutputError, match=r"the disk is too slow: 2 pieces of 1\.05 MB"):
            write.run()
