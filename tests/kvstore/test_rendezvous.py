"""Servers and workers that find each other in a store of torch.distributed; also as ranks of one torchrun job."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from tests.workers.jobs import torchrun
from torch.distributed import HashStore  # type: ignore[attr-defined]

from samegrad.errors import ConfigurationError, PeerFailed, PeerTimeout
from samegrad.kvstore import KVStore, Server
from samegrad.kvstore.rendezvous import find_servers

# Two workers and two servers, "apart" as four ranks, or "together" as two.
SCRIPT = """\
import contextlib, os, sys
import samegrad as sg, torch
from torch.nn import functional as F

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
meeting = torch.distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
together = sys.argv[1] == "together"
fails = "fails" in sys.argv

with contextlib.ExitStack() as stack:
    server = None
    if together or rank >= 2:
        server = stack.enter_context(sg.Server())
        server.offer(meeting, rank % 2)
    if together or rank < 2:
        with sg.KVStore.connect(meeting, servers=2, worker=(rank, 2), leaves=4, timeout_s=60) as store:
            store.init({"w": torch.zeros(100_000), "v": torch.zeros(3)})
            store.pull("v").wait()
            if fails and rank == 1:
                raise ZeroDivisionError
            if together:
                torch.manual_seed(3)
                net, recipe = torch.nn.Linear(20, 5), sg.Recipe(batch_size=8, shards=4)
                sgd = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)
                trainer = sg.Trainer(net, F.cross_entropy, sgd, recipe, strategy=store)
                for _ in range(3):
                    trainer.step(torch.ones(8, 20), torch.zeros(8, dtype=torch.long))
                found = trainer.fingerprint()
            else:
                out = torch.empty(100_000)
                from samegrad.shards import Node
                store.contribute(["w"], [(Node(1, rank), [torch.full((100_000,), rank + 1.0)])], [out]).wait()
                found = str(out.unique().tolist())
            os.write(1, f"worker {found}\\n".encode())  # in one piece, beside what others write
    if server is not None:
        server.wait()
        os.write(1, f"server {rank % 2} served\\n".encode())
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "job.py"
    path.write_text(SCRIPT)
    return str(path)


def test_workers_wait_for_servers_which_come_in_any_order() -> None:
    meeting, found = HashStore(), list[list[str]]()
    finder = threading.Thread(target=lambda: found.append(find_servers(meeting, 2, 20.0)), daemon=True)
    with Server() as first, Server() as second:
        second.offer(meeting, 1)
        finder.start()
        first.offer(meeting, 0)
        finder.join(20.0)
        assert found == [[first.address, second.address]]
        with KVStore.connect(meeting, servers=2, worker=(0, 1)) as store:
            store.init("w", torch.ones(3))
        first.wait()
        second.wait()


def test_what_does_not_come_is_named() -> None:
    meeting = HashStore()
    with Server() as server:
        server.offer(meeting, 1)
        with pytest.raises(PeerTimeout, match=r"waited 0\.2 s for 3 servers, but 0, 2 did not come"):
            KVStore.connect(meeting, servers=3, timeout_s=0.2)
        with pytest.raises(PeerTimeout, match="waited 0 s, but no worker has come"):
            server.wait(0.0)
        with pytest.raises(ConfigurationError, match="expected a number of servers"):
            KVStore.connect(meeting)
        with pytest.raises(ConfigurationError, match="addresses say how many"):
            KVStore.connect(server.address, servers=1)
        with pytest.raises(ConfigurationError, match="numbered from 0; got -1"):
            server.offer(meeting, -1)
        with pytest.raises(ZeroDivisionError), KVStore.connect(server.address, worker=(0, 1)):
            raise ZeroDivisionError
        with pytest.raises(PeerFailed, match="worker 0 has failed: ZeroDivisionError"):
            server.wait()


def test_a_server_that_listens_everywhere_must_say_where_it_is() -> None:
    meeting = HashStore()
    with Server("0.0.0.0", secret="a long secret") as server:
        with pytest.raises(ConfigurationError, match="say by which one workers reach it"):
            server.offer(meeting, 0)
        server.offer(meeting, 0, f"127.0.0.1:{server.port}")
        with KVStore.connect(meeting, servers=1, worker=(0, 1), secret="a long secret") as store:
            store.init("w", torch.ones(3))


@pytest.mark.slow
@pytest.mark.dist
def test_two_workers_and_two_servers_of_a_torchrun_job(script: str) -> None:
    apart = torchrun(4, script, "apart")
    assert apart.code == 0, apart.err
    lines = sorted(apart.out.splitlines())
    assert lines == ["server 0 served", "server 1 served", "worker [3.0]", "worker [3.0]"]
    together = torchrun(2, script, "together")
    assert together.code == 0, together.err
    fingerprints = {line for line in together.out.splitlines() if line.startswith("worker ")}
    assert len(fingerprints) == 1
    assert together.out.count("served") == 2


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("way", ["apart", "together"])
def test_a_worker_that_fails_ends_the_torchrun_job(script: str, way: str) -> None:
    ended = torchrun(4 if way == "apart" else 2, script, way, "fails")
    assert ended.code == 1
    assert "ZeroDivisionError" in ended.err
    assert "served" not in ended.out
