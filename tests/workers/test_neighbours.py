"""The end of processes of this host that were not started together."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from tests.workers.processes import wait_until

from samegrad.workers import neighbours
from samegrad.workers.neighbours import ProcessWatch


def test_a_process_that_has_ended_is_noticed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        watch = ProcessWatch([os.getpid(), process.pid])
        assert not watch.has_ended(0)
        assert not watch.has_ended(1)
        process.kill()
        process.wait()
        start = time.monotonic()
        assert not watch.has_ended(1)  # the launcher may still say more
        monkeypatch.setattr(neighbours, "_GRACE_S", 0.2)
        wait_until(lambda: watch.has_ended(1))
        assert time.monotonic() - start >= 0.2
        assert not watch.has_ended(0)
        later = ProcessWatch([os.getpid(), process.pid])
        wait_until(lambda: later.has_ended(1))
