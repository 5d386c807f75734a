"""How a file gets to its place whole or not at all. Pure: no torch; errors are the plain `OSError` of the system."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

__all__ = ["check_writable", "write_atomically"]


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path`, making its folder if needed. Others see the file of before or all of the new one.

    That also holds after a power failure: the bytes have reached the disk before the name points to them. Several
    processes may do so at the same time: the last one wins. Raises `OSError`; then no part of a file is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = _part_of(path)
    try:
        with part.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        _sync_folder(path.parent)
    except BaseException:
        _remove(part)
        raise


def check_writable(folder: Path) -> None:
    """Make `folder` if needed and show that a file can be made in it; raises `OSError` if not."""
    folder.mkdir(parents=True, exist_ok=True)
    probe = _part_of(folder / "probe")
    try:
        probe.open("xb").close()
    finally:
        _remove(probe)


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
