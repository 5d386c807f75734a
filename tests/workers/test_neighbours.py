"""Processes of one host that were not started together."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.workers.processes import wait_until

from samegrad.memory import new_memory_file
from samegrad.workers import neighbours
from samegrad.workers.neighbours import ProcessWatch, host_identity, offered_memory, open_offered


def test_memory_that_is_offered_is_the_same_memory() -> None:
    fd = new_memory_file()
    other = open_offered(os.getpid(), offered_memory(fd))
    os.write(fd, b"here")
    assert os.pread(other, 10, 0) == b"here"
    os.close(other)
    number, device, inode = offered_memory(fd)
    os.close(fd)
    with pytest.raises(OSError, match="No such file"):
        open_offered(os.getpid(), [number, device, inode])


def test_other_memory_under_the_number_is_refused() -> None:
    fd, other = new_memory_file(), new_memory_file()
    number, device, _ = offered_memory(fd)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="is another file here"):
        open_offered(os.getpid(), [number, device, os.fstat(other).st_ino])
    assert len(list(Path("/proc/self/fd").iterdir())) <= before  # an earlier test may have left one to be collected
    os.close(fd)
    os.close(other)


def test_a_file_that_is_no_memory_is_refused(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious", encoding="utf-8")
    with victim.open("r+b") as file, pytest.raises(PermissionError, match="no memory of samegrad"):
        open_offered(os.getpid(), offered_memory(file.fileno()))


def test_a_host_has_one_identity() -> None:
    code = "from samegrad.workers.neighbours import host_identity; print(host_identity())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == host_identity()


def test_a_process_that_has_ended_is_noticed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        watch = ProcessWatch([os.getpid(), process.pid])
        assert not watch.has_ended(0)
        assert not watch.has_ended(1)
        process.kill()
        process.wait()
        start = time.monotonic()
        assert not watch.has_ended(1)  # the launcher may still say more
        monkeypatch.setattr(neighbours, "_GRACE_S", 0.2)
        wait_until(lambda: watch.has_ended(1))
        assert time.monotonic() - start >= 0.2
        assert not watch.has_ended(0)
        later = ProcessWatch([os.getpid(), process.pid])
        wait_until(lambda: later.has_ended(1))
