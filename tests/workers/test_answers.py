"""What comes back from workers: values, exceptions with their tracebacks, and news of those that ended without one."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.workers.processes import Scripts

from samegrad import launch
from samegrad.errors import ConfigurationError, NonFiniteLoss, WorkerDied, WorkerFailed
from samegrad.workers import context, report

pytestmark = [pytest.mark.dist, pytest.mark.usefixtures("quick")]


def rank() -> int:
    worker = context()
    assert worker is not None
    return worker.rank


@pytest.mark.parametrize("ranks", [1, 2, 9])
def test_rank_0_answers(ranks: int) -> None:
    def work() -> tuple[int, int, object]:
        worker = context()
        assert worker is not None
        return worker.rank, len(worker.devices), {"nested": [None, 1.5, float("inf"), {2}, b"x"]}

    assert launch(work, devices=f"cpu:{ranks}") == (0, ranks, {"nested": [None, 1.5, float("inf"), {2}, b"x"]})


def test_large_functions_and_values() -> None:
    data = os.urandom(1 << 20) * 50

    def work() -> bytes:
        return data[::-1]

    assert launch(work, devices="cpu:2") == data[::-1]


def test_a_value_that_cannot_travel() -> None:
    with pytest.raises(ConfigurationError) as caught:
        launch(threading.Lock, devices="cpu:2")
    assert "what the function returned on rank 0 (lock) cannot be sent to the caller: cannot pickle" in str(
        caught.value
    )
    assert "its state_dict()" in str(caught.value)
    other = launch(lambda: threading.Lock() if rank() else "rank 0's counts", devices="cpu:2")
    assert other == "rank 0's counts"


class Fussy(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


def raise_of_module() -> None:
    error = KeyError("missing")
    error.add_note("a note")
    raise error from ValueError("what led to it")


def raise_fussy() -> None:
    raise Fussy(1, 2)


def raise_unpicklable() -> None:
    error = RuntimeError("holds a lock")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    raise error


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)  # is for the launcher only
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("function", "text", "cause"),
    [
        (raise_of_module, "KeyError: 'missing'", KeyError),
        (raise_fussy, "Fussy: 1 and 2", None),
        (raise_unpicklable, "RuntimeError: holds a lock", None),
        (lambda: sys.exit(3), "SystemExit: 3", SystemExit),
        (sys.exit, "SystemExit", SystemExit),
        (interrupt, "KeyboardInterrupt", KeyboardInterrupt),
    ],
)
def test_exceptions(function: Callable[[], None], text: str, cause: type[BaseException] | None) -> None:
    with pytest.raises(WorkerFailed) as caught:
        launch(function, devices="cpu:2")
    failure = caught.value
    assert failure.rank in (0, 1)
    assert f"rank {failure.rank} of 2 (cpu) raised " in str(failure)
    assert text in str(failure)
    assert type(failure.__cause__) is (type(None) if cause is None else cause)
    assert failure.worker_traceback in str(failure)


def test_a_traceback_shows_the_lines_of_the_user_and_what_led_to_it() -> None:
    with pytest.raises(WorkerFailed) as caught:
        launch(raise_of_module, devices="cpu")
    trace = caught.value.worker_traceback
    line = raise_of_module.__code__.co_firstlineno + 3
    assert f'File "{__file__}", line {line}, in raise_of_module\n    raise error from ValueError' in trace
    assert "ValueError: what led to it" in trace
    assert "a note" in trace
    assert "samegrad/workers" not in trace


@pytest.mark.parametrize(("how", "where"), [("file", 'my_script.py", line 6'), ("-c", 'File "<string>", line 6')])
def test_the_traceback_of_a_script(how: str, where: str, scripts: Scripts) -> None:
    text = "import samegrad\n\nclass Special(Exception): ...\n\ndef work():\n    raise Special('in line 6')\n\n"
    run = scripts.run(text + "samegrad.launch(work, devices='cpu')", how)
    assert run.returncode == 1
    assert where in run.stderr
    assert "Special: in line 6" in run.stderr
    if how == "file":
        assert "raise Special('in line 6')" in run.stderr


def test_an_error_of_samegrad_is_raised_as_it_is() -> None:
    def work() -> None:
        raise NonFiniteLoss(f"step 3 on {rank()}")

    with pytest.raises(NonFiniteLoss, match="step 3") as caught:
        launch(work, devices="cpu")
    assert "in rank 0 of 1 (cpu):\nTraceback" in caught.value.__notes__[0]


def test_one_of_several_failures_comes_back() -> None:
    def work() -> None:
        raise ValueError(f"on {rank()}")

    with pytest.raises(WorkerFailed) as caught:
        launch(work, devices="cpu:4")
    assert f"ValueError: on {caught.value.rank}" in str(caught.value)


def test_the_first_failure_comes_back_and_the_others_get_to_clean_up(tmp_path: Path) -> None:
    def work() -> None:
        try:
            if rank() == 2:
                while len(list(tmp_path.iterdir())) < 3:
                    time.sleep(0.001)
                raise ValueError("first")
            (tmp_path / f"{rank()}").touch()
            threading.Event().wait()
        finally:
            (tmp_path / f"cleaned up {rank()}").touch()
            if rank() != 2:
                raise ValueError("later")

    with pytest.raises(WorkerFailed, match=r"rank 2 of 4 .* ValueError: first"):
        launch(work, devices="cpu:4")
    assert len(list(tmp_path.glob("cleaned up *"))) == 4


def test_reports_come_in_order_from_all_ranks() -> None:
    def work() -> None:
        for number in range(100):
            report({"rank": rank(), "n": number, "loss": 0.1 * number, "text": "ü", "list": [None, True]})

    seen: list[dict[str, Any]] = []
    launch(work, devices="cpu:3", on_report=seen.append)
    for of in range(3):
        own = [record for record in seen if record["rank"] == of]
        assert [record["n"] for record in own] == list(range(100))
    assert seen[0] | {"rank": 0} == {"rank": 0, "n": 0, "loss": 0.0, "text": "ü", "list": [None, True]}
    launch(work, devices="cpu")  # nobody listens
    report({"outside": "of a worker"})


def test_what_a_report_cannot_hold() -> None:
    def work() -> list[str]:
        texts = []
        for record in ({"x": threading.Event}, {(1, 2): 3}, [1], {"x": object()}):
            try:
                report(record)  # type: ignore[arg-type]
            except ConfigurationError as error:
                texts.append(str(error))
        return texts

    texts = launch(work, devices="cpu")
    assert len(texts) == 4
    assert "Object of type type is not JSON serializable. Of a tensor or array, report .item() or .tolist()" in texts[0]
    assert "keys must be" in texts[1]
    assert texts[2] == "report: a record is a dict of names and values; got list"


def test_an_exception_of_on_report_stops_the_workers() -> None:
    def work() -> None:
        report({"rank": rank(), "pid": os.getpid()})
        threading.Event().wait()

    def refuse(record: dict[str, Any]) -> None:
        raise LookupError(record["rank"])

    start = time.monotonic()
    with pytest.raises(LookupError):
        launch(work, devices="cpu:2", on_report=refuse)
    assert time.monotonic() - start < 5


def test_workers_wait_for_a_slow_reader_and_nothing_is_lost() -> None:
    """Far more than the sockets take, while the caller is busy; and a failure behind it that is not lost either."""

    def work() -> None:
        for number in range(30):
            report({"rank": rank(), "n": number, "padding": "x" * 1_000_000})
        if rank() == 1:
            raise ValueError("after all reports")

    seen: list[tuple[int, int]] = []

    def slow(record: dict[str, Any]) -> None:
        if not seen:
            time.sleep(0.1)  # as on a slow disk
        seen.append((record["rank"], record["n"]))

    with pytest.raises(WorkerFailed, match="after all reports"):
        launch(work, devices="cpu:2", on_report=slow)
    assert [n for of, n in seen if of == 1] == list(range(30))


def test_a_caller_that_goes_away_in_the_middle_of_large_reports() -> None:
    def work() -> None:
        for number in range(1000):
            report({"n": number, "padding": "x" * 1_000_000})

    def refuse(record: dict[str, Any]) -> None:
        if record["n"] == 3:
            raise LookupError

    with pytest.raises(LookupError):
        launch(work, devices="cpu:2", on_report=refuse)


# Ends without an answer


@pytest.mark.parametrize(
    ("end", "code", "text"),
    [
        (lambda: os._exit(7), 7, "ended by itself with exit code 7"),
        (lambda: os._exit(0), 0, "ended by itself with exit code 0"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), -9, "was killed by SIGKILL (if nobody sent it"),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), -15, "was killed by SIGTERM"),
        (lambda: ctypes.string_at(0), -11, "was killed by SIGSEGV"),
        (os.abort, -6, "was killed by SIGABRT"),
    ],
)
def test_a_worker_that_ends_without_an_answer(end: Callable[[], None], code: int, text: str) -> None:
    pids: list[int] = []

    def work() -> None:
        if rank() == 1:
            report({"pid": os.getpid()})
            end()
        threading.Event().wait()

    start = time.monotonic()
    with pytest.raises(WorkerDied) as caught:
        launch(work, devices="cpu:3", on_report=lambda record: pids.append(record["pid"]))
    assert (caught.value.rank, caught.value.exit_code) == (1, code)
    assert f"rank 1 of 3 (process {pids[0]}, cpu) {text}" in str(caught.value)
    assert time.monotonic() - start < 5


def test_a_worker_that_ends_before_it_runs_the_function() -> None:
    """Killed while it loads the function."""

    class KillsItself:
        def __reduce__(self) -> tuple[Any, ...]:
            return eval, ("__import__('os').kill(__import__('os').getpid(), 9)",)

        def __call__(self) -> None: ...

    with pytest.raises(WorkerDied, match="SIGKILL"):
        launch(KillsItself(), devices="cpu:2")


def test_a_death_after_rank_0_has_answered_counts() -> None:
    def work() -> int:
        worker = context()
        assert worker is not None
        while rank() == 1 and not worker.has_left(0):
            time.sleep(0.001)
        if rank() == 1:
            os._exit(7)
        return 5

    with pytest.raises(WorkerDied, match=r"rank 1 of 2 .* exit code 7"):
        launch(work, devices="cpu:2")
