"""`samegrad probe`: options, table, files, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.probing.test_record import MACHINE

from samegrad.cli import main, probe_display
from samegrad.probing import Machine


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as info:
        main(["probe", *words])
    assert isinstance(info.value.code, int)
    return info.value.code


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []

    def probe(*arguments: Any) -> Machine:
        calls.append(arguments[:3])
        return MACHINE

    monkeypatch.setattr(probe_display, "probe", probe)
    return calls


def test_people_get_a_table_with_references_and_reasons(
    asked: list[Any], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    out, plot = tmp_path / "machine.json", tmp_path / "machine.png"
    assert run("--quick", "--path", str(tmp_path), "--out", str(out), "--plot", str(plot)) == 0
    assert asked == [("quick", tmp_path, None)]
    text = capsys.readouterr().out
    for words in ("memory, load", "90.0 ns", "100 ns [1]", "0.90", "there is no GPU", "Dean, Designs", "Abacus"):
        assert words in text, words
    assert Machine.load(out) == MACHINE
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_machines_get_one_line_of_json(asked: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json", "--address", "box:5") == 0
    assert asked == [("default", None, "box:5")]
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert Machine.from_json(json.loads(out)) == MACHINE


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--quick", "--full"], "--quick and --full: give one of them"),
        (["--listen", "127.0.0.1:1", "--quick"], "--listen only answers others"),
        (["--listen", "127.0.0.1:x"], "--listen: expected an address"),
        (["--plot", "a.txt"], "--plot a.txt: expected a picture"),
        (["--out", "/proc/no/machine.json"], "--out /proc/no/machine.json: cannot be written"),
    ],
)
def test_what_cannot_work_is_said_before_measuring(
    words: list[str], said: str, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 1
    assert asked == []
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.dist
def test_a_listener_ends_at_ctrl_c() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "samegrad", "probe", "--listen", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("listening on 127.0.0.1 port ")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err


@pytest.mark.dist
def test_ctrl_c_leaves_no_file_and_no_process(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from samegrad.cli import main\n"
        "from samegrad.probing import network, probe\n"
        "import sys; module = sys.modules['samegrad.probing.probe']\n"
        "groups = module._groups\n"
        "module._groups = lambda *a: (each for each in groups(*a) if each[0] in ('storage', 'network'))\n"
        "tasks = network._tasks\n"
        "def stop(*a):\n"
        "    print(*(child.pid for child in __import__('psutil').Process().children()), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    return tasks(*a)\n"
        "network._tasks = stop\n"
        f"main(['probe', '--quick', '--path', {str(tmp_path)!r}])\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=100, env=os.environ
    )
    assert run.returncode == 130, run.stderr
    assert list(tmp_path.iterdir()) == []
    children = run.stdout.split()
    assert children
    assert not any(psutil.pid_exists(int(pid)) for pid in children)
