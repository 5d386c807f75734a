"""Passing what child processes print on to where this process prints."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import subprocess
from typing import IO, TextIO

__all__ = ["Output", "destination"]


def destination(stream: TextIO | None, number: int) -> int | None:
    """Where a child should print, for `subprocess`: in the place of this process, or into a pipe, or nowhere.

    stream: `sys.stdout` (number 1) or `sys.stderr` (2). Where they are not simply the process's own files (in a
    notebook, in tests), what children print has to be written to them.
    """
    if stream is None or getattr(stream, "closed", False):
        return subprocess.DEVNULL
    with contextlib.suppress(OSError, ValueError):  # it has no file
        if isinstance(stream, io.TextIOWrapper) and stream.fileno() == number:
            return None
    return subprocess.PIPE


class Output:
    """A pipe that child processes print into, and the stream that gets to see it."""

    def __init__(self, pipe: IO[bytes], stream: TextIO) -> None:
        self._pipe, self._stream = pipe, stream
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        os.set_blocking(pipe.fileno(), False)

    def fileno(self) -> int:
        """For selectors."""
        return self._pipe.fileno()

    def pass_on(self) -> bool:
        """Writes the next piece to the stream; False if there is none."""
        try:
            piece = os.read(self._pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return False
        self._write(self._decoder.decode(piece, final=not piece))
        return bool(piece)

    def close(self) -> None:
        """Writes all that has come to the stream, and lets go of the pipe."""
        try:
            while self.pass_on():
                pass
        finally:
            self._pipe.close()

    def _write(self, text: str) -> None:
        if text:
            self._stream.write(text)
            self._stream.flush()
