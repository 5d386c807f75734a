"""However a launch ends, nothing is left: no process, no zombie, no open file, no temporary file."""

from __future__ import annotations

import contextlib
import multiprocessing.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.workers.processes import Scripts, is_gone, own_children, read_record, wait_until

from samegrad import launch
from samegrad.errors import ConfigurationError, GroupError, WorkerFailed
from samegrad.workers import report

pytestmark = pytest.mark.dist

WITHIN_S = 4.0  # 2 s are promised where the cores are free; here other tests run beside this one

# Rank 0 waits in Python, rank 1 sleeps, rank 2 is in C code that runs no signal handlers, rank 3 ignores the request.
SCRIPT = """\
import collections, itertools, json, os, signal, sys, threading, time
import psutil
import samegrad
from samegrad.workers import context, report

def work():
    rank = context().rank
    report({"rank": rank, "pid": os.getpid(), "server": os.getppid()})
    if rank == 0:
        threading.Event().wait()
    elif rank == 1:
        time.sleep(1000)
    elif rank == 2:
        collections.deque(itertools.repeat(0), maxlen=0)
    else:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(1000)

def show(record):
    print(json.dumps(record), flush=True)

try:
    samegrad.launch(work, devices="cpu:4", on_report=show)
except BaseException as error:
    left = [process.pid for process in psutil.Process().children(recursive=True)]
    show({"type": type(error).__name__, "text": str(error), "left": left})
    sys.exit(130)
"""


@contextmanager
def running(scripts: Scripts) -> Iterator[tuple[subprocess.Popen[str], int, list[int]]]:
    """The script once all workers are at work: the launcher, the pid of the server, those of the workers."""
    with scripts.start(SCRIPT) as launcher:
        records = [read_record(launcher) for _ in range(4)]
        server, workers = records[0]["server"], [record["pid"] for record in records]
        try:
            yield launcher, server, workers
        finally:
            for pid in [server, *workers]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def all_gone_in_time(pids: list[int]) -> None:
    wait_until(lambda: all(map(is_gone, pids)), WITHIN_S)


@pytest.mark.parametrize("how", ["launcher only", "process group", "twice"])
def test_ctrl_c(how: str, scripts: Scripts) -> None:
    with running(scripts) as (launcher, server, workers):
        start = time.monotonic()
        if how == "process group":
            os.killpg(launcher.pid, signal.SIGINT)
        else:
            launcher.send_signal(signal.SIGINT)
        if how == "twice":
            wait_until(lambda: is_gone(workers[0]))  # the others are not, yet
            launcher.send_signal(signal.SIGINT)
        found = read_record(launcher)
        assert time.monotonic() - start < WITHIN_S
        assert (found["type"], found["left"]) == ("KeyboardInterrupt", [])
        all_gone_in_time([server, *workers])
        assert launcher.wait(10) == 130
        assert launcher.stderr is not None
        assert launcher.stderr.read() == ""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_the_launcher_is_killed(number: int, scripts: Scripts) -> None:
    with running(scripts) as (launcher, server, workers):
        launcher.send_signal(number)
        all_gone_in_time([launcher.pid, server, *workers])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_is_killed(number: int, scripts: Scripts) -> None:
    with running(scripts) as (launcher, server, workers):
        os.kill(server, number)
        all_gone_in_time([server, *workers])
        found = read_record(launcher)
        assert (found["type"], found["left"]) == ("GroupError", [])
        assert f"the process that starts the workers was killed by {signal.Signals(number).name}" in found["text"]


def test_the_server_does_not_answer_any_more(scripts: Scripts) -> None:
    """Nothing but the launcher can end it then, which Ctrl-C makes it do."""
    with running(scripts) as (launcher, server, workers):
        os.kill(server, signal.SIGSTOP)
        launcher.send_signal(signal.SIGINT)
        all_gone_in_time([server, *workers])
        assert read_record(launcher)["type"] == "KeyboardInterrupt"


def test_ctrl_c_while_the_server_starts(scripts: Scripts) -> None:
    (scripts.folder / "never_ready.py").write_text("print('starting', flush=True)\nwhile True: pass\n")
    text = (
        "import samegrad, psutil\n"
        "try: samegrad.launch(print, devices='cpu', preload=['never_ready'])\n"
        "except KeyboardInterrupt: print(psutil.Process().children())\n"
    )
    with scripts.start(text) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "starting\n"
        (server,) = psutil.Process(launcher.pid).children()
        os.killpg(launcher.pid, signal.SIGINT)
        assert launcher.communicate(timeout=WITHIN_S) == ("[]\n", "")
        assert is_gone(server.pid)


def test_a_worker_dies_while_the_caller_ignores_its_children(quick: None) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # which child processes inherit
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
    try:
        assert launch(lambda: 5, devices="cpu:2") == 5
        with pytest.raises(GroupError, match="exit code 3"):
            launch(lambda: os._exit(3), devices="cpu:2")
    finally:
        signal.signal(signal.SIGCHLD, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def test_no_open_file_and_no_child_is_left_over_many_launches(quick: None) -> None:
    def fail() -> None:
        raise ValueError

    def open_files() -> list[str]:
        return sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208

    launch(lambda: None, devices="cpu")
    before = open_files()
    for _ in range(3):
        launch(lambda: 1, devices="cpu:2")
        with pytest.raises(WorkerFailed):
            launch(fail, devices="cpu:2")
        with pytest.raises(ConfigurationError):
            launch(lambda lock=threading.Lock(): None, devices="cpu:2")  # type: ignore[misc]  # noqa: B008
    assert open_files() == before
    assert own_children() == []


# What the function itself has started


def test_children_of_a_worker_end_with_it(quick: None) -> None:
    def work() -> int:
        script = "import subprocess, time; subprocess.Popen(['sleep', '1000'], start_new_session=True); time.sleep(999)"
        child = subprocess.Popen([sys.executable, "-c", script])
        while not psutil.Process(child.pid).children():
            time.sleep(0.01)
        return child.pid

    pid = launch(work, devices="cpu:2")
    assert is_gone(pid)
    assert [process for process in psutil.process_iter() if process.name() == "sleep" and process.ppid() == pid] == []


def test_a_child_of_a_worker_does_not_keep_the_output_open(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)

    def work() -> None:
        subprocess.Popen(["sleep", "1000"])
        sys.stdout.write("done")

    launch(work, devices="cpu")
    assert out.getvalue() == "done"


def test_a_child_forked_by_the_function_is_not_a_worker(quick: None, capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> list[Any]:
        codes: list[Any] = []
        for end in (lambda: None, lambda: sys.exit(4), lambda: report({"from": "child"}), os.abort):
            pid = os.fork()
            if pid == 0:
                end()  # type: ignore[no-untyped-call]
                return ["a child came out of the function"]
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        pid = os.fork()
        if pid == 0:
            threading.Event().wait()
        os.kill(pid, signal.SIGTERM)  # is not the request of a worker to stop
        return [*codes, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]

    assert launch(work, devices="cpu:2") == [0, 4, 1, -6, -15]
    assert capfd.readouterr().err.count("samegrad.errors.ConfigurationError: report: this process was started") == 2


def test_temporary_files_of_multiprocessing_are_removed(quick: None, tmp_path: Path) -> None:
    def work() -> str:
        import tempfile

        tempfile.tempdir = str(tmp_path)
        return multiprocessing.util.get_temp_dir()

    assert Path(launch(work, devices="cpu")).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_a_launch_forked_from_another_thread_meanwhile_is_told_apart(quick: None) -> None:
    """A child that the caller forks meanwhile holds a copy of the connection; the end is seen all the same."""
    pids: list[int] = []

    def fork(_: object) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                signal.pause()
            finally:
                os._exit(0)
        pids.append(pid)
        raise LookupError

    def work() -> None:
        report({})
        threading.Event().wait()

    start = time.monotonic()
    try:
        with pytest.raises(LookupError):
            launch(work, devices="cpu", on_report=fork)
        assert time.monotonic() - start < WITHIN_S
    finally:
        os.kill(pids[0], signal.SIGKILL)
        os.waitpid(pids[0], 0)


# The end of a worker


def test_what_is_printed_last_is_not_lost_and_threads_are_not_waited_for(scripts: Scripts) -> None:
    text = (
        "import samegrad, atexit, threading, os, sys\n"
        "def work():\n"
        "    threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "    threading.Thread(target=threading.Event().wait).start()\n"
        "    atexit.register(print, 'atexit is not called in workers')\n"
        "    print('a line')\n"
        "    print('no end of line', end='')\n"
        "    sys.stderr.write('nor here')\n"
        "    return sys.stdin.read()\n"
        "assert samegrad.launch(work, devices='cpu') == ''\n"
    )
    run = scripts.run(text)
    assert (run.returncode, run.stdout, run.stderr) == (0, "a line\nno end of line", "nor here")


def test_a_line_printed_just_before_a_kill_is_not_lost(scripts: Scripts) -> None:
    text = (
        "import samegrad, os\n"
        "def work():\n    print('last words')\n    os.kill(os.getpid(), 9)\n"
        "samegrad.launch(work, devices='cpu')\n"
    )
    run = scripts.run(text)
    assert run.stdout == "last words\n"
    assert "WorkerDied: rank 0 of 1" in run.stderr
