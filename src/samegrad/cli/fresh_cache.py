"""Compiling as if nothing had been compiled before."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

__all__ = ["nothing_compiled_yet"]

_CACHE = "TORCHINDUCTOR_CACHE_DIR"


@contextlib.contextmanager
def nothing_compiled_yet() -> Iterator[None]:
    """Within, torch keeps what it compiles in a folder of its own, instead of where it finds what earlier runs have
    compiled."""
    before = os.environ.get(_CACHE)
    with tempfile.TemporaryDirectory(prefix="samegrad-") as folder:
        os.environ[_CACHE] = folder
        try:
            yield
        finally:
            del os.environ[_CACHE]
            if before is not None:
                os.environ[_CACHE] = before
