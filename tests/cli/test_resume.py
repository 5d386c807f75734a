"""`samegrad train`, stopped and resumed; what is stopped is a process of its own."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.cli.in_process import samegrad
from tests.workers.processes import is_gone, wait_until
from typer.testing import CliRunner

from samegrad.cli.app import app
from samegrad.errors import OutputError
from samegrad.files import FolderLock
from samegrad.trainer.checkpoint import read_checkpoint
from samegrad.trainer.checkpoint_files import checkpoints, steps_of
from samegrad.trainer.checkpoint_record import latest, read_record

pytestmark = pytest.mark.dist

COMMAND = [sys.executable, "-m", "samegrad", "train"]
EPOCHS = 10  # a signal that comes when the first is done comes before the last is, also on a busy machine
OPTIONS = [
    *("--data", "synthetic", "--model", "mlp", "--batch-size", "64", "--optimizer", "momentum"),
    *("--epochs", str(EPOCHS)),
]


def train(*options: object) -> subprocess.CompletedProcess[str]:
    return samegrad("train", *options)


def start_and_signal(out: Path, number: signal.Signals, *options: object) -> subprocess.CompletedProcess[str]:
    """Starts a run on four workers, and signals it when it has done an epoch."""
    process = subprocess.Popen(
        [*COMMAND, *OPTIONS, "--devices", "cpu:4", "--out", str(out), *map(str, options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    while not process.stdout.readline().startswith("epoch"):
        assert process.poll() is None
    children = psutil.Process(process.pid).children(recursive=True)
    if number is signal.SIGKILL:
        process.send_signal(number)
    else:
        os.killpg(process.pid, number)  # as terminals and batch systems do: to all of its processes
    stdout, stderr = process.communicate(timeout=60)
    wait_until(lambda: all(is_gone(child.pid) for child in children), within_s=4)  # killed ones end a little later
    return subprocess.CompletedProcess([], process.returncode, stdout, stderr)


@pytest.fixture(scope="module")
def fingerprint() -> str:
    """That of the run without a break."""
    ended = train(*OPTIONS, "--devices", "cpu:1", "--json")
    return str(json.loads(ended.stdout)["fingerprint"])


@pytest.fixture(scope="module")
def of_stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of 400 epochs that was stopped, far from its end, however late the signal came."""
    out = tmp_path_factory.mktemp("stopped")
    start_and_signal(out, signal.SIGTERM, "--epochs", 400)
    return out


@pytest.fixture
def stopped(of_stopped: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(of_stopped, tmp_path / "stopped"))


@pytest.mark.slow
@pytest.mark.parametrize(("number", "loader_workers"), [(signal.SIGINT, 0), (signal.SIGTERM, 1)])
def test_a_run_that_is_stopped_goes_on_with_the_same_result(
    number: signal.Signals, loader_workers: int, fingerprint: str, tmp_path: Path
) -> None:
    out = tmp_path / "the run"
    stopped = start_and_signal(out, number, "--loader-workers", loader_workers)
    assert stopped.returncode == 128 + number
    steps = read_record(latest(out))["position"]["steps"]
    assert 32 < steps < EPOCHS * 32
    assert stopped.stderr == (
        "stopping after the next step, and saving; once more to end at once, without\n"
        f"stopped in epoch {(steps - 1) // 32 + 1} of {EPOCHS}, after {steps} steps in all, and saved. "
        f"To go on, with the same result:\nsamegrad train --resume '{out}'\n"
    )
    resumed = train("--resume", out, "--devices", "cpu:3", "--json")
    assert resumed.returncode == 0, resumed.stderr
    report = json.loads(resumed.stdout)
    assert (report["fingerprint"], report["epochs"], report["lr"]) == (fingerprint, EPOCHS, 0.02)
    assert f"resumed   after step {steps}, " in resumed.stderr
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [record["epoch"] for record in metrics] == list(range(1, EPOCHS + 1))
    again = train("--resume", out)
    assert (again.returncode, again.stderr) == (
        1,
        f"error: --resume {out}: all {EPOCHS} epochs are done; nothing is left to do. A run cannot be made longer: "
        "begin a new one with more --epochs\n",
    )


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_from_what_was_saved(fingerprint: str, tmp_path: Path) -> None:
    killed = start_and_signal(tmp_path, signal.SIGKILL, "--save-every", "5", "--keep", "3")
    assert killed.returncode == -signal.SIGKILL
    assert read_record(latest(tmp_path))["position"]["steps"] >= 25
    other = tmp_path / "other"
    resumed = train("--resume", tmp_path, "--devices", "cpu:1", "--out", other, "--keep", "1", "--json")
    assert json.loads(resumed.stdout)["fingerprint"] == fingerprint
    assert len(list(other.glob("checkpoint-*.json"))) == 1
    metrics = [json.loads(line) for line in (other / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [record["epoch"] for record in metrics] == list(range(1, EPOCHS + 1))


@pytest.mark.slow
def test_killed_at_ten_moments_it_ends_with_the_same_result(fingerprint: str, tmp_path: Path) -> None:
    generator, options, kills, stdout = random.Random(10), OPTIONS, 0, ""
    saving = ["--save-every", "1", "--keep", "1", "--json"]
    for devices in itertools.cycle(["cpu:2", "cpu:1", "cpu:3"]):
        process = subprocess.Popen(
            [*COMMAND, *options, "--out", str(tmp_path), "--devices", devices, *saving],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        done = steps(tmp_path)
        if kills == 10:
            stdout, stderr = process.communicate(timeout=100)
            assert process.returncode == 0, stderr
            break
        wait_until(lambda done=done: steps(tmp_path) > done, within_s=100)  # type: ignore[misc]
        time.sleep(0.05 * generator.random())
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
        wait_until(lambda children=children: all(is_gone(child.pid) for child in children))  # type: ignore[misc]
        assert read_checkpoint(latest(tmp_path)).steps > done
        options, kills = ["--resume", str(tmp_path)], kills + 1
    assert json.loads(stdout)["fingerprint"] == fingerprint
    assert read_checkpoint(latest(tmp_path)).steps == EPOCHS * 32


def steps(folder: Path) -> int:
    """Of the newest checkpoint in `folder`; 0 if there is none."""
    return max(map(steps_of, checkpoints(folder)), default=0)


def test_a_run_that_is_not_finished_is_not_replaced(stopped: Path) -> None:
    before = sorted(path.name for path in stopped.iterdir())
    refused = train(*OPTIONS, "--devices", "cpu:1", "--out", stopped)
    assert refused.returncode == 1
    assert "got one with a run of 400 epochs that was stopped in epoch" in refused.stderr
    assert f"Go on with that run (--resume {stopped})" in refused.stderr
    latest(stopped).write_bytes(b"{}")
    assert "got one with a damaged checkpoint" in train(*OPTIONS, "--out", stopped).stderr
    assert sorted(path.name for path in stopped.iterdir()) == before


def test_a_second_run_in_the_same_folder_is_refused_at_once(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    refused = train(*OPTIONS, "--devices", "cpu:1", "--out", tmp_path)
    assert refused.returncode == 1
    assert f"another run is saving to: process {os.getpid()} on " in refused.stderr
    lock.release()


@pytest.mark.parametrize(
    ("made", "got"),
    [
        ("nothing", "got nothing: it does not exist"),
        ("empty", "got an empty one"),
        ("file", "got a file"),
        ("other", "got one that holds a, b, c, ..."),
    ],
)
def test_a_place_without_a_checkpoint_is_refused(made: str, got: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    if made == "file":
        place.write_bytes(b"")
    elif made != "nothing":
        place.mkdir()
        for name in "abcd" if made == "other" else "":
            (place / name).write_bytes(b"")
    refused = CliRunner().invoke(app, ["train", "--resume", str(place)])
    assert isinstance(refused.exception, OutputError)
    assert str(refused.exception) == f"{place}: expected a folder with a checkpoint (checkpoint-*.json); {got}"


def test_what_contradicts_the_checkpoint_is_refused_by_name(stopped: Path) -> None:
    options = ["--lr", "0.3", "--seed", "0", "--model", "lenet", "--lr-rule", "linear", "--warmup-epochs", "20"]
    refused = train("--resume", stopped, *options, "--devices", "cpu:1")
    assert refused.returncode == 1
    assert "otherwise: --model lenet (the checkpoint has mlp), --lr 0.3 (the checkpoint has 0.02)" in refused.stderr
    assert "--lr-rule linear (the checkpoint has none), --warmup-epochs 20.0 (the checkpoint has 0.0)" in refused.stderr
    assert "--seed" not in refused.stderr  # it is that of the checkpoint
    assert "--batch-size" not in refused.stderr  # the default is another one, but nobody asked for it


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "--out", str(tmp_path), "--devices", "cpu:2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    caller = psutil.Process(process.pid)
    wait_until(lambda: bool(caller.children(recursive=True)), within_s=30)
    children = caller.children(recursive=True)
    # The handler of signals is there before the process that imports torch, which the first signal does not interrupt.
    assert process.stderr is not None
    process.send_signal(signal.SIGTERM)
    assert process.stderr.readline().startswith("stopping after the next step")
    process.send_signal(signal.SIGTERM)
    start = time.monotonic()
    _, stderr = process.communicate(timeout=30)
    assert time.monotonic() - start < 5
    assert (process.returncode, stderr) == (143, "interrupted: all workers have ended\n")
    assert psutil.wait_procs(children, timeout=1)[1] == []
