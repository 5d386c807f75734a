"""A process of our own that helps this one, says lines to it, and ends with it.

It is a new process, not a fork of this one, which may be large and have threads. It ends when its standard input does:
when whoever started it closes the pipe, or is no more, however that came about.
"""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
import time
from types import TracebackType
from typing import Self

__all__ = ["OwnProcess"]

_END_S = 5.0


class OwnProcess:
    """Calls `run(words)` of `module` in a new process, which finds modules where this one does; use it within `with`.

    `run` must return when standard input ends; if it has not 5 s later, the process is killed.
    """

    def __init__(self, module: str, *words: str) -> None:
        code = f"import sys; sys.path[:0] = {sys.path!r}; from {module} import run; run(sys.argv[1:])"
        # A group of its own: Ctrl-C in a terminal reaches the one that has started it, which ends it.
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            process_group=0,
        )
        self.pid = self._process.pid

    def tell(self, line: str) -> None:
        """Gives it a line to read. If it has ended already, `hear` says so."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n".encode())

    def hear(self, timeout_s: float) -> str:
        """The next line that it writes; between two calls it must not write more.

        Raises ChildProcessError if it has ended instead, TimeoutError if nothing comes in `timeout_s`.
        """
        assert self._process.stdout is not None
        deadline, line = time.monotonic() + timeout_s, b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], max(deadline - time.monotonic(), 0.0))
            if not ready:
                raise TimeoutError(f"process {self.pid} has said nothing within {timeout_s:.3g} s")
            piece = self._process.stdout.read(1 << 16)
            if not piece:
                raise ChildProcessError(f"process {self.pid} ended with {self._process.wait()}; its messages say why")
            line += piece
        return line.decode().strip()

    def close(self) -> None:
        """Ends it, and waits until it has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
