"""Ranks that torchrun, or variables alone, have started: they join, and compute what one process computes."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.workers.jobs import PATIENCE_S, Ended, free_port, start_ranks, torchrun, wait_for

from samegrad.errors import ConfigurationError, DeviceUnavailable
from samegrad.workers import joining, launch, membership
from samegrad.workers.context import context
from samegrad.workers.joining import join
from samegrad.workers.meeting import Meeting
from samegrad.workers.membership import Listeners, is_member
from samegrad.workers.settings import Settings
from samegrad.workers.variables import Place

# Trains a few steps, and prints what this rank has seen. It hides memfd_create if it shall not share memory.
SCRIPT = """\
import json, os, sys, time
how = sys.argv[1:]
if "apart" in how:
    del os.memfd_create
import psutil, samegrad as sg, torch
from torch.nn import functional as F

if "late" in how:  # fails when it has joined; then, started again, one rank comes after the other
    rank, (late, marker) = os.environ["RANK"], how[how.index("late") + 1 :]
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        sg.current_world()
        sys.exit(rank == "1")
    if rank == late:
        while not os.path.exists(marker):
            time.sleep(0.01)
        time.sleep(0.5)
    else:
        open(marker, "x").close()

def train():
    torch.manual_seed(3)
    X, y = torch.randn(96, 20), torch.randint(0, 5, (96,))
    layers = torch.nn.Linear(20, 33), torch.nn.BatchNorm1d(33), torch.nn.Dropout(), torch.nn.Linear(33, 5)
    net = torch.nn.Sequential(*layers)
    recipe = sg.Recipe(batch_size=32, threads=2)
    threads = set()

    def loss(outputs, targets):
        threads.add(torch.get_num_threads())
        return F.cross_entropy(outputs, targets)

    trainer = sg.Trainer(net, loss, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), recipe)
    data = torch.utils.data.TensorDataset(X, y)
    if "die" in how and trainer.world.rank == 1:
        os.kill(os.getpid(), 9)
    trainer.fit(data, epochs=2)
    world = sg.current_world()
    open_to_all = [] if "group" in how else [
        found.laddr.ip for found in psutil.Process().net_connections()
        if found.status == "LISTEN" and found.laddr.ip not in ("127.0.0.1", "::1")
    ]
    return {"open_to_all": open_to_all, "rank": world.rank, "threads": list(threads), "size": world.size,
            "group": type(world.group).__name__,
            "fingerprint": trainer.fingerprint(), "accuracy": trainer.evaluate(data)["accuracy"]}

if "group" in how:
    torch.distributed.init_process_group("gloo")
found = sg.launch(train, devices=how[how.index("launch") + 1]) if "launch" in how else train()
if "group" in how:  # it is the user's still
    ones = torch.ones(1)
    torch.distributed.all_reduce(ones)
    found["ones"] = int(ones)
    torch.distributed.destroy_process_group()
os.write(1, (json.dumps(found) + chr(10)).encode())  # all at once
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("job") / "script.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def alone(script: Path) -> dict[str, Any]:
    """What one process finds, without any launcher."""
    namespace: dict[str, Any] = {"__name__": "script"}
    argv, sys.argv = sys.argv, [str(script)]
    try:
        text = SCRIPT.partition('\nif "group" in how')[0]
        exec(compile(text, str(script), "exec"), namespace)
    finally:
        sys.argv = argv
    found: dict[str, Any] = namespace["train"]()
    assert found["threads"] == [2]
    return found


def check(ended: Ended, alone: dict[str, Any], size: int, group: str) -> None:
    """What each rank printed (in any order) is what one process finds."""
    assert ended.code == 0, ended.err
    found = sorted((json.loads(line) for line in ended.out.splitlines()), key=lambda record: record["rank"])
    expected = {**alone, "open_to_all": [], "size": size, "group": group}
    assert [{key: record[key] for key in expected} for record in found] == [
        {**expected, "rank": rank} for rank in range(size)
    ]


@pytest.mark.dist
@pytest.mark.parametrize("ranks", [2, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (1, 3, 4))])
def test_torchrun_gives_the_result_of_one_process(ranks: int, script: Path, alone: dict[str, Any]) -> None:
    ended = torchrun(ranks, str(script), *(("launch", str(ranks)) if ranks > 2 else ()))
    check(ended, alone, ranks, "SharedMemoryGroup" if ranks > 1 else "SoloGroup")
    assert "Traceback" not in ended.err


@pytest.mark.dist
@pytest.mark.parametrize(
    ("late", "how", "group"),
    [
        pytest.param(1, [], "SharedMemoryGroup", marks=pytest.mark.slow),
        pytest.param(0, [], "SharedMemoryGroup", marks=pytest.mark.slow),
        pytest.param(0, ["apart"], "ProcessGroup", marks=pytest.mark.slow),
        pytest.param(1, ["apart"], "ProcessGroup", marks=pytest.mark.slow),
    ],
)
def test_ranks_that_are_started_again_meet_each_other(
    late: int, how: list[str], group: str, script: Path, alone: dict[str, Any], tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    ended = torchrun(2, "--max-restarts=1", str(script), *how, "late", str(late), str(marker))
    check(ended, alone, 2, group)


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize(
    ("ranks", "how", "group"),
    [
        (2, ["apart", "launch", "cpu"], "ProcessGroup"),
        pytest.param(3, ["apart"], "ProcessGroup", marks=pytest.mark.slow),
        pytest.param(2, ["group"], "SharedMemoryGroup", marks=pytest.mark.slow),
        pytest.param(3, ["group", "apart"], "ProcessGroup", marks=pytest.mark.slow),
    ],
)
def test_variables_alone_are_enough(
    ranks: int, how: list[str], group: str, script: Path, alone: dict[str, Any]
) -> None:
    with start_ranks(script, ranks, *how) as processes:
        ended = wait_for(processes)
    assert [one.err for one in ended] == [""] * ranks
    check(Ended(max(one.code for one in ended), "".join(one.out for one in ended), ""), alone, ranks, group)
    if "group" in how:
        assert all(json.loads(one.out)["ones"] == ranks for one in ended)


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "said"),
    [
        (["die"], "waits for rank 1 at .* but rank 1 has ended"),
        (["die", "apart"], r"rank 1 \(on [^)]+\) has ended without a word: its process was killed"),
    ],
)
def test_the_others_name_a_rank_that_was_killed(how: list[str], said: str, script: Path) -> None:
    with start_ranks(script, 3, *how) as processes:
        processes[1].wait(timeout=PATIENCE_S)
        start = time.monotonic()
        ended = wait_for(processes)
    assert time.monotonic() - start < 20
    assert [one.code for one in ended] == [1, -9, 1]
    for rank in (0, 2):
        assert re.search(f"PeerFailed: rank {rank} .*{said}", ended[rank].err), ended[rank].err


@pytest.fixture
def rank_0_of_1(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the only rank of a job."""
    variables = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(sys.modules["samegrad.workers.context"], "_context", None)
    monkeypatch.setattr(joining, "prepare_process", lambda *_: None)
    monkeypatch.setattr("atexit.register", lambda *_: None)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)


def test_launch_runs_the_function_here_as_this_rank(rank_0_of_1: None) -> None:
    heard: list[Any] = []
    pid = os.getpid()

    def work() -> tuple[int, object]:
        worker = context()
        assert worker is not None
        worker.send_report({"a": (1, 2)})
        with pytest.raises(ConfigurationError, match="a record holds numbers"):
            worker.send_report({"a": {1}})
        assert worker.devices == ("cpu",)
        assert not worker.is_to_stop()
        return os.getpid(), work  # what could not be sent anywhere

    assert is_member()
    assert launch(work, on_report=heard.append) == (pid, work)
    assert heard == [{"a": [1, 2]}]
    assert join() is context()
    with pytest.raises(ZeroDivisionError):  # as it is
        launch(lambda: 1 // 0)


def test_a_rank_that_joins_makes_its_device_the_current_one(rank_0_of_1: None, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[str] = []
    monkeypatch.setattr(joining, "_device", lambda *_: ("cuda:3", "one"))
    monkeypatch.setattr("torch.cuda.set_device", chosen.append)
    for _ in range(2):
        join()
    assert chosen == ["cuda:3"]


def test_devices_that_contradict_the_job_are_refused(rank_0_of_1: None) -> None:
    with pytest.raises(ConfigurationError, match="'2' contradicts the launcher of this job, which has started 1 rank "):
        launch(print, devices=2)
    with pytest.raises(DeviceUnavailable, match="LOCAL_RANK is 0, but torch sees no CUDA device on this host"):
        launch(print, devices="cuda")
    launch(lambda: None, devices="cpu")
    with pytest.raises(ConfigurationError, match="'cuda' was asked for, but this process has joined its job with cpu"):
        launch(print, devices="cuda")


def test_a_local_rank_without_a_device_is_refused(rank_0_of_1: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.backends.cuda.is_built", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(DeviceUnavailable, match="LOCAL_RANK is 2, but torch sees 2 CUDA devices on this host"):
        joining._device("auto", Place(2, 4, 2, "127.0.0.1", 1))
    assert joining._device("cpu", Place(2, 4, 2, "127.0.0.1", 1))[0] == "cpu"


def test_a_process_group_that_contradicts_the_variables_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    assert membership.place_in_group(None) == Place(1, 2, 0, "", 0)
    assert membership.place_in_group(Place(1, 2, 1, "a", 5)) == Place(1, 2, 1, "", 0)
    with pytest.raises(ConfigurationError, match=r"RANK is 1 and WORLD_SIZE 4, but .* this process is rank 1 of 2"):
        membership.place_in_group(Place(1, 4, 1, "a", 5))


def meet_in_threads(monkeypatch: pytest.MonkeyPatch, change: dict[int, dict[str, Any]]) -> list[Any]:
    """What three ranks find, as threads; rank r says `change[r]` of itself instead of the truth. Exceptions too."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):  # which meeting sets, for this process and its children
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    port = free_port()
    own = threading.local()
    exchange = Meeting.exchange

    def lie(self: Any, name: str, record: Any) -> list[Any]:
        return exchange(self, name, {**record, **own.change} if name == "joining" else record)

    monkeypatch.setattr(Meeting, "exchange", lie)

    def meet(rank: int) -> Any:
        own.change = change.get(rank, {})
        try:
            return joining._meet(
                Place(rank, 3, rank, "127.0.0.1", port), Settings(devices=("cpu",), start_timeout_s=20)
            )
        except Exception as error:
            return error

    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(meet, range(3)))


def test_ranks_of_one_host_share_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    found = meet_in_threads(monkeypatch, {})
    os.write(found[0].memory_fd, b"here")
    assert [os.pread(worker.memory_fd, 4, 0) for worker in found] == [b"here"] * 3
    assert [worker.devices for worker in found] == [("cpu",) * 3] * 3
    assert not any(worker.has_left(rank) for worker in found for rank in range(3))
    for worker in found:
        os.close(worker.memory_fd)


@pytest.mark.parametrize(
    "change", [{2: {"host": "another"}}, {0: {"memory": [0, 0, 0]}}, {0: {"memory": "no"}}, {0: {"memory": None}}]
)
def test_ranks_that_cannot_share_memory_all_know_it(
    change: dict[int, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    found = meet_in_threads(monkeypatch, change)
    assert [worker.memory_fd for worker in found] == [-1] * 3
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    one_host = "host" not in change.get(2, {})
    assert os.environ.get("NCCL_SOCKET_IFNAME") == ("lo" if one_host else None)
    del found
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


def test_other_hosts_reach_a_rank_on_the_interface_of_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    found = meet_in_threads(monkeypatch, {2: {"host": "another"}})
    assert [worker.address for worker in found] == ["127.0.0.1"] * 3
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no such interface,lo")
    assert joining._address(found[0].store) == "127.0.0.1"  # the one that leads to the store
    assert joining._address(object()) == platform.node()


def test_different_versions_are_refused_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    found = meet_in_threads(monkeypatch, {1: {"versions": {"samegrad": "0", "torch": "1"}}})
    for error in found:
        assert isinstance(error, ConfigurationError)
        assert "but rank 1 has 0: with different versions" in str(error)


def test_listeners_are_put_back() -> None:
    first, heard = Listeners(), list[Any]()
    with first.replaced_by(Listeners(heard.append)):
        first.report({"a": 1})
    first.report({"a": 2})
    assert heard == [{"a": 1}]
