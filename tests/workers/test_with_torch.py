"""Workers that train: how they start, and what the others are told when one is lost, stops or leaves."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tests.workers.processes import Scripts, is_gone, own_children, wait_until

from samegrad import launch
from samegrad.errors import GroupError, PeerFailed, PeerTimeout, WorkerDied, WorkerFailed
from samegrad.machine import usable_cores
from samegrad.workers import context, report

pytestmark = pytest.mark.dist

PROBE = """\
import os
threads_at_fork = []
os.register_at_fork(before=lambda: threads_at_fork.append(len(os.listdir("/proc/self/task"))))
"""


def rank() -> int:
    worker = context()
    assert worker is not None
    return worker.rank


def test_workers_start_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a process with one thread; with the same random numbers on each rank and in each run."""
    (tmp_path / "fork_probe.py").write_text(PROBE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)

    def look() -> dict[str, Any]:
        import random

        import numpy as np
        from fork_probe import threads_at_fork  # type: ignore[import-not-found]

        found = {
            "random": [random.random(), float(np.random.rand()), torch.rand(3).tolist(), hash("text")],
            "threads": [torch.get_num_threads(), torch.ones(300, 300).mm(torch.ones(300, 300)).sum().item()],
            "at fork": set(threads_at_fork) == {1},
            "stdin": sys.stdin.read(),
            "collects garbage": gc.isenabled(),
        }
        report(found)
        return found | {"tensor": torch.arange(6).reshape(2, 3).t(), "parameter": torch.nn.Parameter(torch.ones(2))}

    seen: list[dict[str, Any]] = []
    ranks = usable_cores() + 1  # more than cores: torch._dynamo is imported before the fork too
    result = launch(look, devices=f"cpu:{ranks}", preload=["torch", "fork_probe"], on_report=seen.append)
    launch(look, devices="cpu:1", preload=["torch", "fork_probe"], on_report=seen.append)
    assert len(seen) == ranks + 1
    assert all(record == seen[0] for record in seen)
    assert (seen[0]["threads"], seen[0]["stdin"]) == ([1, 300.0**3], "")
    assert seen[0]["at fork"]
    assert seen[0]["collects garbage"]
    assert torch.equal(result["tensor"], torch.arange(6).reshape(2, 3).t())
    assert isinstance(result["parameter"], torch.nn.Parameter)


def test_nothing_is_imported_beforehand_but_what_is_asked_for() -> None:
    """Not torch's compiler either, which is imported beside torch where there are more workers than cores."""
    devices = f"cpu:{usable_cores() + 1}"
    found = [
        launch(lambda: "torch._dynamo" in sys.modules, devices=devices, preload=names) for names in ([], ["torch"])
    ]
    assert found == [False, True]


BUSY_CALLER = """\
import threading
import numpy, torch
import samegrad

torch.set_num_threads(4)
weights = torch.ones(400, 400, requires_grad=True)
weights.mm(weights).sum().backward()
numpy.ones((400, 400)) @ numpy.ones((400, 400))
threading.Thread(target=threading.Event().wait, daemon=True).start()

def train(threads):
    model = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.Linear(300, 3))
    recipe = samegrad.Recipe(batch_size=8, threads=threads)
    sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.1)
    trainer = samegrad.Trainer(model, torch.nn.functional.cross_entropy, sgd, recipe)
    for _ in range(3):
        trainer.step(torch.rand(8, 20), torch.randint(3, (8,)))
    return trainer.fingerprint()

print(len({samegrad.launch(lambda: train(2), devices=k, threads=2) for k in ("cpu:1", "cpu:2")}))
"""


@pytest.mark.slow
def test_the_caller_may_have_computed_and_have_threads(torch_scripts: Scripts) -> None:
    run = torch_scripts.run(BUSY_CALLER)
    assert (run.returncode, run.stdout) == (0, "1\n"), run.stderr


def train(before_step: Callable[[int], None], steps: int = 3, width: int = 8) -> None:
    import samegrad

    model = torch.nn.Linear(width, width)
    sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.1)  # noqa: E731
    recipe = samegrad.Recipe(batch_size=2, shards=2)
    trainer = samegrad.Trainer(model, torch.nn.functional.mse_loss, sgd, recipe)
    for step in range(steps):
        before_step(step)
        trainer.step(torch.ones(2, width), torch.zeros(2, width))


def exchange(before_step: Callable[[int], None], steps: int = 3) -> None:
    """All that matters of training for who waits for whom, in less time."""
    from samegrad import current_world

    for step in range(steps):
        before_step(step)
        current_world().group.gather(b"", f"step {step}")


def nothing(_: int) -> None:
    pass


def test_a_worker_that_returns_before_it_has_met_the_others() -> None:
    def work() -> None:
        if rank() == 0:
            exchange(nothing)

    with pytest.raises(PeerFailed, match="rank 1 has ended") as caught:
        launch(work, devices="cpu:2", timeout_s=60)
    assert caught.value.rank == 1


def test_a_worker_that_makes_fewer_steps() -> None:
    with pytest.raises(PeerFailed, match="rank 1 has ended") as caught:
        launch(lambda: exchange(nothing, steps=3 - rank()), devices="cpu:2", timeout_s=60)
    assert caught.value.rank == 1


def lose(number: int, run: Callable[[Callable[[int], None]], None], timeout_s: float = 60) -> tuple[GroupError, float]:
    """Sends a signal to rank 1 while rank 0 waits for it; what launch then raises, and after how long."""
    sent = 0.0

    def work() -> None:
        def tell(step: int) -> None:
            if rank() == 1 and step == 1:
                report({"pid": os.getpid()})
                while True:
                    time.sleep(1)

        run(tell)

    def send(record: dict[str, Any]) -> None:
        nonlocal sent
        os.kill(record["pid"], number)
        sent = time.monotonic()

    with pytest.raises(GroupError) as caught:
        launch(work, devices="cpu:2", timeout_s=timeout_s, on_report=send)
    return caught.value, time.monotonic() - sent


def test_a_worker_that_is_killed_in_the_middle_of_a_step() -> None:
    error, seconds = lose(signal.SIGKILL, train)
    assert isinstance(error, WorkerDied)
    assert "rank 1 of 2 (process " in str(error)
    assert "was killed by SIGKILL" in str(error)
    assert seconds < 4  # 2 s are promised where the cores are free


def test_a_worker_that_does_not_go_on() -> None:
    error, seconds = lose(signal.SIGSTOP, exchange, timeout_s=0.5)
    assert isinstance(error, PeerTimeout)
    assert "rank 0 waited 0.5 s at 'step 1'" in str(error)
    assert error.rank == 1
    assert seconds < 0.5 + 4


def test_loaders_that_the_function_leaves_behind_end_with_it() -> None:
    """Left to themselves they would look for their parent every few seconds only."""

    def work() -> list[int]:
        global kept
        data = torch.utils.data.TensorDataset(torch.arange(8))
        loader = torch.utils.data.DataLoader(data, batch_size=2, num_workers=2, persistent_workers=True)
        kept = iter(loader)
        assert next(kept)[0].tolist() == [0, 1]
        return [worker.pid for worker in kept._workers]

    pids = launch(work, devices="cpu:2")
    assert len(pids) == 2
    assert all(map(is_gone, pids))
    assert own_children() == []


kept: Any = None


@pytest.mark.parametrize(
    ("limit", "expected"), [(resource.RLIMIT_FSIZE, GroupError), (resource.RLIMIT_AS, (GroupError, WorkerFailed))]
)
def test_too_little_memory_is_an_error_not_a_crash(limit: int, expected: Any) -> None:
    def work() -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        room = 60_000_000 if limit == resource.RLIMIT_AS else -used + 1_000_000
        resource.setrlimit(limit, (used + room, resource.RLIM_INFINITY))
        train(nothing, width=3000)

    with pytest.raises(expected) as caught:
        launch(work, devices="cpu:2")
    assert not isinstance(caught.value, WorkerDied)


SMALL_SHM = """\
import os, samegrad

def work():
    import torch
    size = os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize
    model = torch.nn.Linear(4200, 4200, bias=False)  # 71 MB of gradients
    sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.1)
    trainer = samegrad.Trainer(model, torch.nn.functional.mse_loss, sgd, samegrad.Recipe(batch_size=2, shards=2))
    trainer.step(torch.ones(2, 4200), torch.zeros(2, 4200))
    return size, model.weight.nbytes

print(*samegrad.launch(work, devices="cpu:2"), os.listdir("/dev/shm"))
"""


@pytest.mark.skipif(shutil.which("unshare") is None or os.geteuid() != 0, reason="needs root, to mount")
def test_the_size_of_dev_shm_does_not_matter(torch_scripts: Scripts) -> None:
    mount = "mount -t tmpfs -o size=64m none /dev/shm"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("may not mount here")
    command = torch_scripts.command(SMALL_SHM, "file", ())
    run = subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh", *command],
        cwd=torch_scripts.folder,
        env=torch_scripts.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    size, nbytes, *left = run.stdout.split() or [run.stderr]
    assert int(size) == 64 << 20 < int(nbytes)
    assert left == ["[]"]


KILLED = """\
import sys, samegrad
steps = 3 if len(sys.argv) == 1 else 10**9

def work():
    import torch
    model = torch.nn.Linear(300, 300, bias=False)
    sgd = lambda parameters: torch.optim.SGD(parameters, lr=0.1)
    trainer = samegrad.Trainer(model, torch.nn.functional.mse_loss, sgd, samegrad.Recipe(batch_size=4, shards=2))
    for step in range(steps):
        trainer.step(torch.ones(4, 300), torch.zeros(4, 300))
        if step == 2 and trainer.world.rank == 0:
            print(trainer.fingerprint(), flush=True)

samegrad.launch(work, devices="cpu:2")
"""


@pytest.mark.slow
def test_nothing_is_left_of_a_job_that_was_killed(torch_scripts: Scripts) -> None:
    command = torch_scripts.command(KILLED, "file", ())
    settings: dict[str, Any] = {"cwd": torch_scripts.folder, "env": torch_scripts.environment, "text": True}
    line = ""
    for _ in range(2):
        with subprocess.Popen([*command, "on"], stdout=subprocess.PIPE, **settings) as killed:
            assert killed.stdout is not None
            line = killed.stdout.readline()
            children = psutil.Process(killed.pid).children(recursive=True)
            assert len(children) == 3
            maps = [Path(f"/proc/{child.pid}/maps").read_text(encoding="utf-8") for child in children]
            assert ["memfd:samegrad" in text for text in maps] == [False, True, True]
            assert "/dev/shm/" not in "".join(maps)  # what they share has no name, so it ends with them
            killed.kill()
        wait_until(lambda children=children: all(is_gone(child.pid) for child in children))  # type: ignore[misc]
    again = subprocess.run(command, capture_output=True, timeout=60, check=False, **settings)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout == line
