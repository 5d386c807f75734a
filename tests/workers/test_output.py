"""Where workers print."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from samegrad.workers.output import Output, destination


class Wrapped:
    """A stream such as a notebook has, or who writes to a log too: it may know of a file, but is more than that."""

    closed = False

    def fileno(self) -> int:
        return 1

    def write(self, text: str) -> int:
        return len(text)


def test_the_files_of_the_process_are_those_of_its_children() -> None:
    with open(1, "w", closefd=False) as out, open(2, "w", closefd=False) as err:
        assert destination(out, 1) is None
        assert destination(err, 2) is None
        assert destination(err, 1) == subprocess.PIPE
        assert destination(io.TextIOWrapper(os.fdopen(1, "wb", closefd=False)), 1) is None


@pytest.mark.parametrize("stream", [io.StringIO(), Wrapped()])
def test_anything_else_is_fed_through_a_pipe(stream: io.StringIO) -> None:
    assert destination(stream, 1) == subprocess.PIPE


def test_a_log_file_in_the_place_of_stdout_is_fed_through_a_pipe(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        assert destination(log, 1) == subprocess.PIPE
    assert destination(log, 1) == subprocess.DEVNULL  # closed by now
    assert destination(None, 2) == subprocess.DEVNULL


def test_text_is_passed_on_whole_however_it_is_cut() -> None:
    reading, writing = os.pipe()
    stream = io.StringIO()
    output = Output(os.fdopen(reading, "rb"), stream)
    assert not output.pass_on()  # nothing yet
    for byte in "a ü € 𝄞\n".encode():
        os.write(writing, bytes([byte]))
        assert output.pass_on()
    assert stream.getvalue() == "a ü € 𝄞\n"
    os.write(writing, b"last \xff \xe2\x82")
    os.close(writing)
    output.close()
    assert stream.getvalue() == "a ü € 𝄞\nlast � �"


def test_closing_does_not_wait_for_who_still_holds_the_pipe() -> None:
    reading, writing = os.pipe()
    stream = io.StringIO()
    os.write(writing, b"all that has come")
    Output(os.fdopen(reading, "rb"), stream).close()
    os.close(writing)
    assert stream.getvalue() == "all that has come"
    assert sys.stdout is not stream
