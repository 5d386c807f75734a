"""Emulated hosts go, with what runs on them, however the process ends that has made them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.emulated_hosts import emulated_hosts, lacking, remove_left
from tests.workers.processes import is_gone, wait_until

_ROOT = Path(__file__).parents[2]
_PREFIX = "testhosts"
_PROGRAM = f"""
import time
from benchmarks.emulated_hosts import emulated_hosts, ended_by_signals
with ended_by_signals(), emulated_hosts({_PREFIX!r}, 2, 1e6, "reno") as hosts:
    print(hosts[0].start(["sleep", "100"]).pid, flush=True)
    time.sleep(100)
"""


def _namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout


@pytest.mark.dist
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left(number: signal.Signals) -> None:
    if missing := lacking():
        pytest.skip(f"needs {missing}")
    with subprocess.Popen([sys.executable, "-c", _PROGRAM], cwd=_ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        inside = int(process.stdout.readline())
        names = [f"{_PREFIX}-{process.pid}-{which}" for which in ("0", "1", "switch")]
        assert all(name in _namespaces() for name in names)
        assert remove_left(_PREFIX) == []  # not those of one that lives
        process.send_signal(number)
        code = process.wait(20)
    if number == signal.SIGKILL:
        assert code == -number
        assert Path(f"/proc/{inside}").exists()
        assert sorted(remove_left(_PREFIX)) == names
    else:
        assert code == 128 + number
    assert f"{_PREFIX}-{process.pid}-" not in _namespaces()
    wait_until(lambda: is_gone(inside), 10)


@pytest.mark.dist
def test_what_cannot_be_made_is_an_error_and_leaves_nothing() -> None:
    if missing := lacking():
        pytest.skip(f"needs {missing}")
    with (
        pytest.raises(OSError, match=r"^ip netns exec .*tcp_congestion_control=nothing: "),
        emulated_hosts(_PREFIX, 1, 1e6, "nothing"),
    ):
        pass
    assert f"{_PREFIX}-{os.getpid()}-" not in _namespaces()


def test_what_is_lacking_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert lacking() == "root, to make network namespaces and the command ip and the command tc"
