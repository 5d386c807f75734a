"""Where data sets are kept between runs, and how a file gets there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

from samegrad.errors import DataMissing

__all__ = ["default_cache_dir", "write_atomically"]


def default_cache_dir() -> Path:
    """`~/.cache/samegrad`; it need not exist. Raises `DataMissing` if this user has no home directory."""
    try:
        return Path.home() / ".cache" / "samegrad"
    except RuntimeError as error:
        raise DataMissing(
            "there is no home directory to keep data sets in; set HOME, or name a folder with --data-dir"
        ) from error


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path`, making its folder if needed. Others see the file of before or all of the new one.

    Several processes may do so at the same time: the last one wins. Raises `OSError`; then nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as file:
            file.write(content)
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise
