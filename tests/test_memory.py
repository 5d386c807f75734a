"""Memory files: shared when they are ours, and no other file is ever opened for them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from samegrad.memory import host_identity, new_memory_file, offered_memory, open_memory_file, open_offered


def test_what_is_opened_is_the_same_memory() -> None:
    fd = new_memory_file()
    other = open_memory_file(os.getpid(), fd)
    os.write(fd, b"here")
    assert os.pread(other, 10, 0) == b"here"
    assert not os.get_inheritable(other)
    os.close(fd)
    os.close(other)


def regular() -> int:
    fd, path = tempfile.mkstemp()
    Path(path).unlink()
    return fd


def in_memory() -> int:
    """A file of a file system in memory, which can have seals, under a name like that of a memory file."""
    if not Path("/dev/shm").is_dir():
        pytest.skip("there is no /dev/shm")
    path = f"/dev/shm/memfd:samegrad-{os.getpid()}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    Path(path).unlink()
    return fd


@pytest.mark.parametrize(
    "make",
    [regular, in_memory, lambda: os.memfd_create("another"), lambda: os.open("/dev/null", os.O_RDWR)],
    ids=["regular", "in_memory", "another", "device"],
)
def test_other_files_are_refused(make: Callable[[], int]) -> None:
    fd = make()
    os.write(fd, b"precious")
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(PermissionError, match=rf"^/proc/{os.getpid()}/fd/{fd} is no memory of samegrad"):
        open_memory_file(os.getpid(), fd)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    os.close(fd)


def test_memory_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fd, other = new_memory_file(), os.geteuid() + 1
    monkeypatch.setattr("os.geteuid", lambda: other)
    with pytest.raises(PermissionError, match="no memory of samegrad and of this user"):
        open_memory_file(os.getpid(), fd)
    os.close(fd)


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(FileNotFoundError):
        open_memory_file(os.getpid(), 1 << 20)


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
    code = "from samegrad.memory import host_identity; print(host_identity())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == host_identity()
