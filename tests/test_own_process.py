"""A helping process: it hears, says lines, and is gone afterwards, whatever it does."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from samegrad import own_process
from samegrad.own_process import OwnProcess

pytestmark = pytest.mark.dist

HELPER = """
import os, sys, time
def run(words):
    match words:
        case ["echo"]:
            for line in sys.stdin:
                os.write(1, b"heard ")
                os.write(1, line.encode())
        case ["fail"]:
            sys.exit(3)
        case ["halting"]:
            os.write(1, b"half a line")
            sys.stdin.read()
        case ["deaf"]:
            os.write(1, b"here\\n")
            time.sleep(60)
"""


@pytest.fixture(autouse=True)
def helper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "some_helper.py").write_text(HELPER)
    monkeypatch.syspath_prepend(tmp_path)


def test_it_hears_and_says_lines_and_ends() -> None:
    with OwnProcess("some_helper", "echo") as process:
        for word in ("one", "two"):
            process.tell(word)
            assert process.hear(30.0) == f"heard {word}"
        assert os.getpgid(process.pid) != os.getpgid(0)  # Ctrl-C of a terminal does not reach it
    assert not psutil.pid_exists(process.pid)


def test_one_that_has_ended_is_told_from_one_that_is_silent() -> None:
    with OwnProcess("some_helper", "fail") as process:
        with pytest.raises(ChildProcessError, match=rf"process {process.pid} ended with 3"):
            process.hear(30.0)
        process.tell("anything")
    with (
        OwnProcess("some_helper", "halting") as process,
        pytest.raises(TimeoutError, match=rf"process {process.pid} has said nothing within 0\.05 s"),
    ):
        process.hear(0.05)
    assert not psutil.pid_exists(process.pid)


def test_one_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_process, "_END_S", 0.1)
    with OwnProcess("some_helper", "deaf") as process:
        assert process.hear(30.0) == "here"
    assert not psutil.pid_exists(process.pid)
