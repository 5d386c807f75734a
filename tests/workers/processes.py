"""What the tests of workers share: scripts in processes of their own, and looking after processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from tests import warm_start

__all__ = ["Scripts", "is_gone", "own_children", "wait_until"]

PATIENCE_S = 30.0  # for what takes no time on an idle machine


def wait_until(condition: Callable[[], bool], within_s: float = PATIENCE_S) -> float:
    """Returns after how many seconds `condition` was true; fails if it is not within `within_s`."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < within_s, f"not so within {within_s:g} s"
        time.sleep(0.005)
    return time.monotonic() - start


def is_gone(pid: int) -> bool:
    """Whether the process has ended, even if its parent has not asked how yet."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def own_children() -> list[psutil.Process]:
    """All that this process has started, directly or not, and that has not ended or has not been reaped.

    But for the helpers of multiprocessing, which a test of another file in this process may have had started, and for
    the one that forks for tests: they stay until the process ends.
    """
    return [child for child in psutil.Process().children(recursive=True) if not _is_a_helper(child)]


def _is_a_helper(process: psutil.Process) -> bool:
    if process.pid in warm_start.PIDS:
        return True
    try:
        words = " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False
    return "multiprocessing.forkserver" in words or "multiprocessing.resource_tracker" in words


@dataclass(frozen=True)
class Scripts:
    """Runs Python in `folder` with `path` first in its search path."""

    folder: Path
    path: Path

    def command(self, text: str, how: str, flags: Iterable[str]) -> list[str]:
        """The command that runs `text` in one of several ways; through standard input if it is not in there."""
        python = [sys.executable, *flags]
        if how in ("stdin", "-i"):
            return [*python, "-i"] if how == "-i" else [*python, "-"]
        if how == "-c":
            return [*python, "-c", text]
        (self.folder / "my_script.py").write_text(text, encoding="utf-8")
        return [*python, "-m", "my_script"] if how == "-m" else [*python, "my_script.py"]

    def run(self, text: str, how: str = "file", flags: Iterable[str] = ()) -> subprocess.CompletedProcess[str]:
        """Runs `text` to its end."""
        return subprocess.run(
            self.command(text, how, flags),
            input=text if how in ("stdin", "-i") else "",
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    @contextmanager
    def start(self, text: str) -> Iterator[subprocess.Popen[str]]:
        """Starts `text` as a script in a process group of its own; what is left of it in the end is killed."""
        with subprocess.Popen(
            self.command(text, "file", ()),
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    @property
    def environment(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(self.path), os.environ.get("PYTHONPATH")]))
        return {**os.environ, "PYTHONPATH": path, "TMPDIR": str(self.folder)}


def read_record(process: subprocess.Popen[str]) -> Any:
    """The next line that the process prints, as JSON."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    return json.loads(line)
