"""What follows from the messages of the server, message by message, without any process."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from samegrad.errors import ConfigurationError, GroupError, NonFiniteLoss, PeerTimeout, WorkerDied, WorkerFailed
from samegrad.workers import pickling
from samegrad.workers.frames import Frame, Kind
from samegrad.workers.outcome import OnReport, Outcome


def started(ranks: int, on_report: OnReport | None = None) -> Outcome:
    outcome = Outcome(on_report)
    outcome.take(Frame(Kind.STARTED, -1, json.dumps({"devices": ["cpu"] * ranks, "pids": [1] * ranks}).encode()))
    return outcome


def failure(rank: int, error: BaseException | None) -> Frame:
    pickled = None if error is None else pickle.dumps(error)
    return Frame(Kind.FAILURE, rank, pickle.dumps((pickled, "its text", "its traceback")))


def died(rank: int, exit_code: int) -> Frame:
    return Frame(Kind.DIED, rank, json.dumps({"pid": 77, "exit_code": exit_code}).encode())


@pytest.mark.parametrize("ranks", range(1, 10))
def test_the_value_is_that_of_rank_0_once_all_have_returned(ranks: int) -> None:
    outcome = started(ranks)
    for rank in reversed(range(ranks)):
        with pytest.raises(GroupError, match="before all of them had answered"):
            outcome.value(0)
        outcome.take(Frame(Kind.RESULT, rank, pickling.dumps([rank]) if rank == 0 else b""))
    assert outcome.value(0) == [0]


def test_it_knows_when_the_workers_have_been_started() -> None:
    assert [Outcome(None).started, started(2).started] == [False, True]


def test_without_a_start_there_is_no_value() -> None:
    with pytest.raises(GroupError, match="ended by itself with exit code 1 before"):
        Outcome(None).value(1)


def test_a_failure_after_the_value_of_rank_0_counts() -> None:
    outcome = started(2)
    outcome.take(Frame(Kind.RESULT, 0, pickling.dumps(1)))
    with pytest.raises(WorkerDied):
        outcome.take(died(1, 7))


def test_reports_go_out_in_order_and_their_exceptions_come_back() -> None:
    seen: list[Any] = []
    outcome = started(2, seen.append)
    for number in range(5):
        outcome.take(Frame(Kind.REPORT, number % 2, json.dumps({"n": number}).encode()))
    assert seen == [{"n": number} for number in range(5)]

    def refuse(record: dict[str, Any]) -> None:
        raise KeyError(record["n"])

    with pytest.raises(KeyError):
        started(1, refuse).take(Frame(Kind.REPORT, 0, b'{"n": 1}'))
    started(1).take(Frame(Kind.REPORT, 0, b'{"n": 1}'))  # nobody wants them


def test_an_error_of_samegrad_comes_as_itself_with_the_traceback_as_a_note() -> None:
    with pytest.raises(PeerTimeout) as caught:
        started(3).take(failure(2, PeerTimeout("rank 2 waited", rank=1)))
    assert caught.value.rank == 1
    assert caught.value.__notes__ == ["in rank 2 of 3 (cpu):\nits traceback"]
    with pytest.raises(NonFiniteLoss):
        started(1).take(failure(0, NonFiniteLoss("step 3")))


def test_any_other_error_is_the_cause_of_a_failed_worker() -> None:
    with pytest.raises(WorkerFailed) as caught:
        started(3).take(failure(1, ValueError("wrong")))
    assert str(caught.value).startswith("rank 1 of 3 (cpu) raised its text\n")
    assert caught.value.rank == 1
    assert caught.value.worker_traceback == "its traceback"
    assert isinstance(caught.value.__cause__, ValueError)


class Fussy(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


@pytest.mark.parametrize(
    "frame",
    [
        failure(0, None),
        failure(0, Fussy(1, 2)),  # its unpickling fails
        Frame(Kind.FAILURE, 0, pickle.dumps((b"no pickle", "its text", "its traceback"))),
        Frame(Kind.FAILURE, 0, pickle.dumps((pickle.dumps("no exception"), "its text", "its traceback"))),
    ],
)
def test_an_error_that_cannot_be_had_here_is_told_by_its_text(frame: Frame) -> None:
    with pytest.raises(WorkerFailed, match="its text") as caught:
        started(1).take(frame)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("exit_code", "text"),
    [
        (0, "rank 1 of 2 (process 77, cpu) ended by itself with exit code 0; the other ranks were stopped"),
        (7, "ended by itself with exit code 7"),
        (-9, "was killed by SIGKILL (if nobody sent it, the system ran out of memory)"),
        (-7, "was killed by SIGBUS (mostly: no memory left"),
        (-11, "was killed by SIGSEGV (a fault in native code)"),
        (-15, "was killed by SIGTERM;"),
        (-63, "was killed by signal 63"),
    ],
)
def test_a_death_says_who_and_how(exit_code: int, text: str) -> None:
    with pytest.raises(WorkerDied) as caught:
        started(2).take(died(1, exit_code))
    assert text in str(caught.value)
    assert (caught.value.rank, caught.value.exit_code) == (1, exit_code)


def test_a_refusal_is_raised_as_it_is() -> None:
    with pytest.raises(ConfigurationError, match="no such device"):
        Outcome(None).take(Frame(Kind.REFUSED, -1, pickle.dumps(ConfigurationError("no such device"))))


def test_a_value_that_cannot_be_read_here() -> None:
    outcome = started(1)
    outcome.take(Frame(Kind.RESULT, 0, b"cno_such_module\nThing\n."))
    with pytest.raises(ConfigurationError, match=r"cannot be read here: ModuleNotFoundError: .*no_such_module"):
        outcome.value(0)
