"""A job of torchrun in which the last ranks serve, and the others train as if there were no more."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from tests.workers.jobs import start_ranks, torchrun, wait_for

from samegrad.errors import ConfigurationError
from samegrad.kvstore import KVStore, work_or_serve
from samegrad.workers.variables import Place

# Trains with a Trainer whose gradients servers add up; and alone, without any, for comparison.
SCRIPT = """\
import os, sys
import samegrad as sg, torch
from torch.nn import functional as F

recipe = sg.Recipe(batch_size=8, shards=4)

def train(addresses=None):
    def fingerprint(store):
        torch.manual_seed(3)
        sgd = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)
        trainer = sg.Trainer(torch.nn.Linear(20, 5), F.cross_entropy, sgd, recipe, strategy=store)
        for number in range(3):
            trainer.step(torch.full((8, 20), number / 7), torch.zeros(8, dtype=torch.long))
        return f"{trainer.fingerprint()} {trainer.world.rank} of {trainer.world.size}"

    if addresses is None:
        return fingerprint(None)
    with sg.KVStore.connect(addresses, leaves=recipe.shards) as store:
        if "fails" in sys.argv:
            raise ZeroDivisionError
        return fingerprint(store)

if __name__ == "__main__":
    told = sg.work_or_serve(train, servers=int(sys.argv[1]))
    os.write(1, f"{told}\\n".encode())  # in one piece, beside what others write
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "job.py"
    path.write_text(SCRIPT)
    return path


def test_places_without_those_that_serve() -> None:
    places = [Place(rank, 4, rank, "127.0.0.1", 1) for rank in range(4)]
    assert [place.without_last(0) for place in places] == places
    left = [place.without_last(3) for place in places]
    assert left == [Place(0, 1, 0, "127.0.0.1", 1), None, None, None]
    for count in (4, -1):
        with pytest.raises(ConfigurationError, match=rf"^{count} of the 4 ranks of this job shall serve"):
            places[0].without_last(count)


def test_a_process_of_its_own_is_the_only_worker() -> None:
    def work(addresses: list[str]) -> int:
        with KVStore.connect(addresses) as store:
            return store.job.workers * 10 + len(addresses)

    assert work_or_serve(work, servers=2) == 12


@pytest.mark.slow
@pytest.mark.dist
def test_workers_do_not_see_the_ranks_that_serve(script: Path) -> None:
    ended = torchrun(4, str(script), "2")
    assert ended.code == 0, ended.err
    alone = str(runpy.run_path(str(script))["train"]()).split()[0]
    assert sorted(ended.out.splitlines()) == sorted(["None", "None", f"{alone} 0 of 2", f"{alone} 1 of 2"])


@pytest.mark.slow
@pytest.mark.dist
def test_a_worker_that_fails_ends_the_servers(script: Path) -> None:
    with start_ranks(script, 3, "1", "fails") as ranks:
        ended = wait_for(ranks)
    assert all(each.code == 1 for each in ended)
    assert "PeerFailed: worker" in ended[2].err
    assert "has failed: ZeroDivisionError" in ended[2].err


@pytest.mark.slow
@pytest.mark.dist
def test_ranks_that_disagree_and_a_job_without_workers_are_told(tmp_path: Path) -> None:
    path = tmp_path / "disagree.py"
    path.write_text(
        "import os, samegrad as sg\nsg.work_or_serve(print, servers=int(os.environ['RANK']), start_timeout_s=60)\n"
    )
    with start_ranks(path, 2) as ranks:
        for each in wait_for(ranks):
            assert each.code == 1
            assert "roles: all ranks must say alike" in each.err
            assert "rank 0 has servers 0, rank 1 has 1" in each.err


@pytest.mark.slow
@pytest.mark.dist
def test_samegrad_train_in_a_job_with_servers(tmp_path: Path) -> None:
    options = ["--data", "synthetic", "--model", "mlp", "--epochs", "1", "--json"]
    apart = torchrun(3, "-m", "samegrad", "train", *options, "--servers", "1")
    assert apart.code == 0, apart.err
    alone = torchrun(1, "-m", "samegrad", "train", *options)
    assert alone.code == 0, alone.err
    assert '"strategy": "servers"' in apart.out
    prints = [each.out.partition('"fingerprint": "')[2][:64] for each in (apart, alone)]
    assert len(prints[0]) == 64
    assert prints[0] == prints[1]
