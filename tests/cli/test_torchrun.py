"""`samegrad train` as the ranks of a job that torchrun has started, also on two hosts (network namespaces)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import psutil
import pytest
from tests.workers.jobs import environment, free_port, torchrun
from tests.workers.processes import is_gone, wait_until

from samegrad.cli import main, training
from samegrad.trainer.checkpoint_record import latest, read_record

TRAIN = ["-m", "samegrad", "train"]
OPTIONS = ["--data", "synthetic", "--model", "mlp", "--batch-size", "64", "--optimizer", "momentum", "--epochs", "2"]


def variables(rank: int, size: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }


@pytest.mark.parametrize(
    ("size", "arguments", "message"),
    [
        (3, ["--devices", "cpu:2"], "error on rank 1: devices: 'cpu:2' contradicts the launcher of this job"),
        (9, [], "error on rank 1: 9 devices cannot share 8 shards"),
        (9, ["--devices", "cpu"], "--shards 9"),
        (3, ["--shares", "1,2"], "shares need 3 positive numbers"),
        (1, [], "error on rank 1: RANK is 1, but WORLD_SIZE is 1"),
    ],
)
def test_what_contradicts_the_job_is_refused_before_anything_starts(
    size: int,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in variables(1, size).items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(training, "launch", None)
    with pytest.raises(SystemExit) as info:
        main(["train", *arguments])
    out, err = capsys.readouterr()
    assert (info.value.code, out) == (1, "")
    assert message in err


@pytest.fixture(scope="module")
def fingerprint() -> str:
    """That of one process."""
    command = [sys.executable, *TRAIN, *OPTIONS, "--devices", "cpu:1", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    return str(json.loads(ended.stdout)["fingerprint"])


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_result_is_that_of_one_process(ranks: int, fingerprint: str, tmp_path: Path) -> None:
    shares = "auto" if ranks == 3 else "equal"
    ended = torchrun(ranks, *TRAIN, *OPTIONS, "--json", "--out", str(tmp_path), "--shares", shares)
    assert ended.code == 0, ended.err
    report = json.loads(ended.out)  # of one rank only
    assert (report["fingerprint"], report["world_size"]) == (fingerprint, ranks)
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["fingerprint"] == fingerprint
    assert ended.err.count("epoch 1/2") == 1


@pytest.mark.dist
@pytest.mark.slow
def test_ranks_with_different_options_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os\nfrom samegrad.cli import main\nmain(['train', '--lr', '0.' + str(int(os.environ['RANK']) + 1)])\n"
    )
    ended = torchrun(2, str(script))
    assert ended.code != 0
    assert "rank 0 has --lr 0.1 where rank 1 has --lr 0.2" in ended.err


@contextlib.contextmanager
def started(out: Path, ranks: int, epochs: int = 200) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """torchrun, whose ranks save into `out` and have done an epoch, and these ranks, in order."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", *TRAIN, *OPTIONS]
    process = subprocess.Popen(
        [*command, "--epochs", str(epochs), "--out", str(out)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("epoch"):
            assert process.poll() is None
        workers = {int(child.environ()["RANK"]): child for child in psutil.Process(process.pid).children()}
        yield process, [workers[rank] for rank in range(ranks)]
    finally:
        process.kill()
        process.communicate()


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_torchrun_saves_and_ends_the_run(number: signal.Signals, tmp_path: Path) -> None:
    with started(tmp_path, 3) as (process, workers):
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
        wait_until(lambda: all(is_gone(worker.pid) for worker in workers))
    steps = read_record(latest(tmp_path))["position"]["steps"]
    assert process.returncode != 0
    assert stderr.count("stopping after the next step, and saving") == 1
    assert stderr.count(f"after {steps} steps in all, and saved. To go on, with the same result:") == 1


@pytest.mark.dist
@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    epochs = 12
    with started(tmp_path, 3, epochs) as (process, _):
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    position = read_record(latest(tmp_path))["position"]
    ended = torchrun(2, *TRAIN, "--resume", str(tmp_path), "--json")
    assert ended.code == 0, ended.err
    assert f"resumed   after step {position['steps']}, " in ended.err
    report = json.loads(ended.out)
    command = [sys.executable, *TRAIN, *OPTIONS, "--epochs", str(epochs), "--devices", "cpu:1", "--json"]
    whole = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    assert (report["fingerprint"], report["world_size"]) == (json.loads(whole.stdout)["fingerprint"], 2)


@pytest.mark.dist
@pytest.mark.slow
def test_a_rank_that_is_killed_ends_all(tmp_path: Path) -> None:
    with started(tmp_path, 3) as (process, workers):
        start = time.monotonic()
        workers[1].kill()
        _, stderr = process.communicate(timeout=60)
        assert time.monotonic() - start < 30  # torchrun waits so long for ranks that do not end when it asks them
        assert process.returncode != 0
        assert all(is_gone(worker.pid) for worker in workers)
    assert "rank      : 1 (local_rank: 1)" in stderr
    assert "Signal 9 (SIGKILL)" in stderr
    assert "waits for rank 1 at" in stderr  # the others save on SIGTERM, so they live long enough to notice


@pytest.fixture
def two_hosts() -> Iterator[list[str]]:
    """The names of two network namespaces with a link between them, 10.99.7.1 and 10.99.7.2; needs root and ip."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and the command ip")
    names = [f"samegrad-{os.getpid()}-{place}" for place in "ab"]
    commands = [
        f"netns add {names[0]}",
        f"netns add {names[1]}",
        f"link add veth0 netns {names[0]} type veth peer name veth0 netns {names[1]}",
        *(f"-n {name} addr add 10.99.7.{place}/24 dev veth0" for place, name in enumerate(names, start=1)),
        *(f"-n {name} link set {link} up" for name in names for link in ("lo", "veth0")),
    ]
    try:
        for command in commands:
            done = subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"ip {command}: {done.stderr}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("ranks_each", [1, 2])
def test_two_hosts_give_the_result_of_one_process(ranks_each: int, two_hosts: list[str], fingerprint: str) -> None:
    port = free_port()
    launchers = [
        subprocess.Popen(
            [
                *("ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run", "--nnodes=2"),
                *(f"--node-rank={node}", f"--nproc-per-node={ranks_each}"),
                *("--master-addr=10.99.7.1", f"--master-port={port}", *TRAIN, *OPTIONS, "--json"),
            ],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node, name in enumerate(two_hosts)
    ]
    with ThreadPoolExecutor() as pool:
        ends = [pool.submit(launcher.communicate) for launcher in launchers]
        wait(ends, timeout=100)
        is_late = [launcher.poll() is None for launcher in launchers]
        for launcher in launchers:
            launcher.terminate()  # so that it ends its workers, too
    (out, err), (other, other_err) = [end.result() for end in ends]
    assert (is_late, [launcher.returncode for launcher in launchers]) == ([False] * 2, [0, 0]), err + other_err
    report = json.loads(out)
    assert (report["fingerprint"], report["world_size"], report["update"]) == (
        fingerprint,
        2 * ranks_each,
        "replicated",
    )
    assert other == ""
