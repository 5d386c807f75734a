"""Memory files: shared when they are ours, and no other file is ever opened for them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from samegrad.memory import new_memory_file, open_memory_file


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
