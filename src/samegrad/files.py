"""How a file gets to its place whole or not at all. Pure: no torch; errors are the plain `OSError` of the system."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from io import FileIO
from pathlib import Path

__all__ = ["FolderLock", "FolderLocked", "check_writable", "is_locked", "write_atomically", "write_together"]

_LOCK = ".lock"
_CHUNK = 1 << 20  # bytes of one write; with larger ones the cache does not help
_BATCH = 1 << 25  # bytes after which the disk is told to begin
_SYNC_FILE_RANGE_WRITE = 2  # of sync_file_range, in linux/fs.h


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path`, making its folder if needed. Others see the file of before or all of the new one.

    That also holds after a power failure: the bytes have reached the disk before the name points to them. Several
    processes may do so at the same time: the last one wins. Raises `OSError`; then no part of a file is left behind.
    """
    write_together({path: (content,)})


def write_together(contents: Mapping[Path, Iterable[bytes | memoryview]]) -> None:
    """Write files of one folder, given in pieces; the last of them says that all are there.

    All bytes have reached the disk before the first file gets its name; names are given in order, and that of the last
    only when the others have reached the disk. So to replace the last file is to replace all, at once, if the others
    have names that the one of before does not speak of. Raises `OSError`; no part of a file is left then, and no folder
    that was made for it.
    """
    folder = next(iter(contents)).parent
    parts = {path: _part_of(path) for path in contents}
    with _made(folder):
        try:
            for path, pieces in contents.items():
                with parts[path].open("xb", buffering=0) as file:
                    _write(file, pieces)
            *others, last = parts
            for path in others:
                parts[path].replace(path)
            if others:
                _sync_folder(folder)
            parts[last].replace(last)
            _sync_folder(folder)
        except BaseException:
            for part in parts.values():
                _remove(part)
            raise


def _write(file: FileIO, pieces: Iterable[bytes | memoryview]) -> None:
    """Writes all of `pieces` and returns when they have reached the disk, which works on each part while the next one
    is copied."""
    start = end = 0
    for piece in pieces:
        left = memoryview(piece)
        while left:  # a raw write may take less than it is given
            written = file.write(left[:_CHUNK])
            left, end = left[written:], end + written
            if end - start >= _BATCH:
                _begin_to_sync(file.fileno(), start, end - start)
                start = end
    os.fsync(file.fileno())


def _begin_to_sync(descriptor: int, start: int, nbytes: int) -> None:
    """Lets the disk begin, where the system offers this. What fails is told by fsync. (posix_fadvise does the same, but
    waits for all cores.)"""
    with contextlib.suppress(AttributeError):
        begin = ctypes.CDLL(None).sync_file_range
        begin.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
        begin(descriptor, start, nbytes, _SYNC_FILE_RANGE_WRITE)


def check_writable(folder: Path, keep: bool = False) -> None:
    """Show that a file can be made in `folder`; raises `OSError` if not. A folder that has to be made for it stays only
    with `keep`, and if a file can be made there."""
    probe = _part_of(folder / "probe")
    with _made(folder, keep):
        try:
            probe.open("xb").close()
        finally:
            _remove(probe)


@contextlib.contextmanager
def _made(folder: Path, keep: bool = True) -> Iterator[None]:
    """`folder`, made if needed. What was made is removed again after an error, and without `keep`; unless others have
    put something there meanwhile."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    done = False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
        done = keep
    finally:
        if not done:
            with contextlib.suppress(OSError):
                for each in missing:
                    each.rmdir()


class FolderLock:
    """Keeps others from writing into `folder` (made if needed) until `release`, or until this process has ended.

    The system forgets the lock with the process that holds it, so none is left behind by a crash; only the file `.lock`
    stays, which says who held it last. Raises FolderLocked while another one holds it, other OSErrors if it cannot be
    made.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        self._fd = os.open(folder / _LOCK, flags, 0o666)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(OSError):  # the disk is full: then nobody knows who it is
                holder = f"process {os.getpid()} on {os.uname().nodename}\n".encode()
                os.ftruncate(self._fd, os.pwrite(self._fd, holder, 0))
        except BlockingIOError as error:
            holder = os.pread(self._fd, 1 << 10, 0)
            os.close(self._fd)
            raise FolderLocked(holder.decode(errors="replace").strip()) from error
        except OSError:
            os.close(self._fd)
            raise

    def release(self) -> None:
        """Lets others write there."""
        if self._fd >= 0:
            fcntl.flock(self._fd, fcntl.LOCK_UN)  # a process that was forked meanwhile has the descriptor, too
            os.close(self._fd)
            self._fd = -1


class FolderLocked(BlockingIOError):
    """Another process holds the lock of a folder. holder: which one, as far as it is known."""

    def __init__(self, holder: str) -> None:
        super().__init__(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
        self.holder = holder or "another process"


def is_locked(folder: Path) -> bool:
    """Whether a process holds the `FolderLock` of `folder`. Looks it up and does not try: that could be in its way.

    Says no where the system does not tell: for a process on another host, or in another container.
    """
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            file = f"{_device(descriptor)}:{os.fstat(descriptor).st_ino}"
        finally:
            os.close(descriptor)
        locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    fields = (line.split() for line in locks)  # 1: FLOCK ADVISORY WRITE pid major:minor:inode start end
    return any(words[1] == "FLOCK" and words[5] == file for words in fields if len(words) == 8)


def _device(descriptor: int) -> str:
    """That of the file system of an open file, as /proc/locks has it: `stat` says another one on some (btrfs)."""
    about = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii").splitlines()
    mount = next((line.split()[1] for line in about if line.startswith("mnt_id:")), "")
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    number = next((words[2] for words in map(str.split, mounts) if words[0] == mount), None)
    if number is None:
        device = os.fstat(descriptor).st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
    return ":".join(f"{int(part):02x}" for part in number.split(":"))


def _part_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.part")


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Let the new name of a file reach the disk, on file systems that offer this."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
