from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from samegrad.files import FolderLock, check_writable, is_locked, write_atomically


def test_a_file_is_written_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "made" / "on the way" / "file"
    for content in (b"first", b"", b"second, longer"):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Path, target: Path) -> Path:
        raise OSError("no space left")

    path = tmp_path / "file"
    write_atomically(path, b"old")
    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_made_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        write_atomically(tmp_path / "file" / "below", b"content")


def test_a_writer_that_another_overtakes_replaces_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    replace = Path.replace

    def overtaken(self: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "replace", replace)
        write_atomically(path, b"of the other, which began later and ended first")
        assert path.read_bytes().startswith(b"of the other")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", overtaken)
    write_atomically(path, b"mine")
    assert path.read_bytes() == b"mine"
    assert list(tmp_path.iterdir()) == [path]


def test_the_bytes_are_on_the_disk_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, events = tmp_path / "file", []
    fsync, replace = os.fsync, Path.replace

    def synced(descriptor: int) -> None:
        events.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name.split('.')[-1]}")
        fsync(descriptor)

    def replaced(self: Path, target: Path) -> Path:
        events.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    write_atomically(path, b"content")
    assert events == ["sync part", "rename", f"sync {tmp_path.name}"]


@pytest.mark.parametrize(("number", "is_error"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_a_file_system_without_sync_of_folders_will_do(
    number: int, is_error: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def refuse_folders(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").is_dir():
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    if is_error:
        with pytest.raises(OSError, match="Input/output error"):
            write_atomically(tmp_path / "file", b"content")
    else:
        write_atomically(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"


def test_the_check_leaves_a_folder_only_where_it_is_to_be_kept(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):
        check_writable(tmp_path / "a" / "b", keep=True)
    assert list((tmp_path / "a" / "b").iterdir()) == []
    check_writable(tmp_path / "a" / "b" / "c")
    assert list((tmp_path / "a").iterdir()) == [tmp_path / "a" / "b"]


def test_a_folder_below_a_file_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        check_writable(tmp_path / "file" / "out")
    assert (tmp_path / "file").read_bytes() == b""


@pytest.mark.parametrize("keep", [False, True])
def test_no_folder_is_left_where_no_file_can_be_made(
    keep: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    (tmp_path / "a").mkdir()
    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(tmp_path / "a" / "b" / "c" / "file", b"content")
    with pytest.raises(OSError, match="no space left"):
        check_writable(tmp_path / "a" / "b" / "c", keep)
    assert list(tmp_path.rglob("*")) == [tmp_path / "a"]


def test_a_folder_that_another_has_used_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def overtaken(self: Path, target: Path) -> Path:
        (target.parent / "of another").write_bytes(b"")
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(Path, "replace", overtaken)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(tmp_path / "a" / "b" / "file", b"content")
    assert [each.name for each in (tmp_path / "a" / "b").iterdir()] == ["of another"]


def test_a_lock_is_seen_while_it_is_held(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    lock = FolderLock(tmp_path)
    assert is_locked(tmp_path)
    lock.release()
    assert not is_locked(tmp_path)


@pytest.mark.parametrize(("device", "locked"), [("{major:02x}:{minor:02x}", True), ("{minor:02x}:{major:02x}", False)])
def test_a_lock_of_the_same_number_on_another_file_system_does_not_count(
    device: str, locked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FolderLock(tmp_path).release()
    file = (tmp_path / ".lock").stat()
    assert os.major(file.st_dev) != os.minor(file.st_dev)
    where = device.format(major=os.major(file.st_dev), minor=os.minor(file.st_dev))
    read_text = Path.read_text

    def read(self: Path, encoding: str | None = None, errors: str | None = None) -> str:
        if self == Path("/proc/locks"):
            return f"1: FLOCK  ADVISORY  WRITE 32420 {where}:{file.st_ino} 0 EOF\n"
        return read_text(self, encoding, errors)

    monkeypatch.setattr(Path, "read_text", read)
    assert is_locked(tmp_path) is locked
