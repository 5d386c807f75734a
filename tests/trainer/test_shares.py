"""Shares that follow the speed of the workers: more steps in the same time, with the same bits."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from tests.trainer.configurations import Buffers, vectors
from torch import nn
from torch.distributed import FileStore  # type: ignore[attr-defined]
from torch.utils.data import IterableDataset

from samegrad.callbacks import Callback, StepReport
from samegrad.errors import ConfigurationError
from samegrad.executors.process_group import ProcessGroup
from samegrad.parallel import current_world
from samegrad.recipe import Recipe
from samegrad.testing import slowed
from samegrad.trainer import Loading, Trainer
from samegrad.trainer import trainer as trainer_module
from samegrad.workers import launch

pytestmark = pytest.mark.dist

F = nn.functional
SHARDS = 8
EXAMPLES = 10 * 2 * SHARDS + 5  # ten steps and one more, in which shards are empty
UNEQUAL = (0.0005, 0.01)  # seconds that two workers pause for each shard


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Buffers(), nn.Dropout(0.3))


def trainer_of(
    shares: Sequence[float] | Literal["auto", "equal"] | None,
    pauses: Sequence[float],
    update: Literal["replicated", "owner"] = "replicated",
    shards: int = SHARDS,
) -> Trainer:
    return Trainer(
        slowed(model(), pauses[current_world().rank]),
        F.cross_entropy,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        Recipe(batch_size=2 * shards, shards=shards),
        update=update,
        shares=shares,
    )


def results(trainer: Trainer, dataset: Any, epochs: int = 1, **options: Any) -> dict[str, Any]:
    """What a training gives that must be the same on all workers, and how it went."""
    reports: list[StepReport] = []
    found = trainer.fit(dataset, epochs, on_step=reports.append, **options)
    return {
        "result": (trainer.fingerprint(), [report.loss.hex() for report in reports]),
        "shards": [list(report.shards_by_rank) for report in found],
    }


def efficiencies() -> dict[str, Any]:
    """For each step of three workers with speeds as 4 : 2 : 1, what it achieves of the sum of their speeds."""
    shards, pauses = 28, (0.015, 0.03, 0.06)
    trainer = trainer_of("auto", pauses, shards=shards)
    X, y = vectors(2 * shards).tensors
    found, held = [], [0]
    for _ in range(12):
        held = [len(part) for part in trainer.cut]
        start = time.perf_counter()
        trainer.step(X, y)
        seconds = time.perf_counter() - start
        computing = trainer._step.times.computing  # pausing, and what there is to compute beside that
        found.append(shards / seconds / sum(n / own for n, own in zip(held, computing, strict=True)))
    return {"shards": held, "efficiencies": found}


def test_three_unequal_workers_are_as_fast_as_all_of_them_together() -> None:
    found = launch(efficiencies, devices="cpu:3")
    assert all(abs(held - best) <= 1 for held, best in zip(found["shards"], (16, 8, 4), strict=True))
    equal, measured = (statistics.median(found["efficiencies"][part]) for part in (slice(1, 5), slice(5, 12)))
    assert equal < 0.5  # the slowest has 9 of 28 shards, so 44 % at most
    assert measured > 0.9  # 99 % where nothing else runs


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(vectors(EXAMPLES))


def ways(pauses: Sequence[float]) -> dict[str, dict[str, Any]]:
    """Training in all ways of reading data, each with its result."""
    return {
        "owner": results(trainer_of("auto", pauses, "owner"), vectors(EXAMPLES)),
        "loader workers": results(trainer_of("auto", pauses), vectors(EXAMPLES), loading=Loading(workers=1)),
        "stream": results(trainer_of("auto", pauses), Stream()),
        "stream by a loader worker": results(trainer_of("auto", pauses), Stream(), 2, loading=Loading(workers=1)),
        "steps": steps(trainer_of("auto", pauses)),
    }


def steps(trainer: Trainer) -> dict[str, Any]:
    X, y = vectors(2 * SHARDS).tensors
    losses, memory = [], []
    for _ in range(6):
        memory.append(Path("/proc/self/maps").read_text(encoding="utf-8").count("/memfd:"))
        losses.append(trainer.step(X, y).hex())
    assert memory[1] >= memory[-1]  # that of the exchange before the change is free
    return {"result": (trainer.fingerprint(), losses), "shards": [[len(part) for part in trainer.cut]]}


@pytest.mark.slow
def test_shares_change_in_the_middle_of_every_way_to_read_data() -> None:
    found = launch(lambda: ways(UNEQUAL), devices="cpu:2")
    alone = ways((0.0,))
    assert {name: way["result"] for name, way in found.items()} == {name: way["result"] for name, way in alone.items()}
    for name, way in found.items():
        assert way["shards"][-1][0] > SHARDS // 2, name


def steps_over_gloo(store: str) -> dict[str, Any]:
    """As if the ranks were on several hosts."""
    world = current_world()
    dist.init_process_group("gloo", store=FileStore(store, world.size), rank=world.rank, world_size=world.size)
    changed = dataclasses.replace(world, group=ProcessGroup(world.device), host=None)
    vars(trainer_module)["current_world"] = lambda: changed
    found = steps(trainer_of("auto", UNEQUAL))
    dist.destroy_process_group()
    return found


@pytest.mark.slow
def test_shares_change_where_ranks_exchange_messages(tmp_path: Path) -> None:
    found = launch(lambda: steps_over_gloo(str(tmp_path / "store")), devices="cpu:2")
    assert found["result"] == steps(trainer_of("equal", (0.0,)))["result"]
    assert found["shards"][-1][0] > SHARDS // 2


def stopped_and_resumed(folder: str) -> list[Any]:
    trainer = trainer_of("auto", UNEQUAL)
    first = results(trainer, vectors(EXAMPLES), callbacks=[Stopping(trainer, 6)])
    trainer.save(folder)
    shards = [len(part) for part in trainer.cut]
    again = trainer_of("auto", UNEQUAL[::-1])
    again.resume(folder)
    start = [len(part) for part in again.cut]
    second = results(again, vectors(EXAMPLES), 2)
    losses = first["result"][1] + second["result"][1]
    return [(second["result"][0], losses), shards, start, second["shards"][-1]]


class Stopping(Callback):
    """Stops after so many steps."""

    def __init__(self, trainer: Trainer, steps: int) -> None:
        self._trainer, self._steps = trainer, steps

    def on_step(self, report: StepReport) -> None:
        if report.steps_done == self._steps:
            self._trainer.stop()


@pytest.mark.slow
def test_a_resumed_training_measures_anew(tmp_path: Path) -> None:
    result, *shards = launch(lambda: stopped_and_resumed(str(tmp_path)), devices="cpu:2")
    assert result == results(trainer_of("equal", (0.0,)), vectors(EXAMPLES), 2)["result"]
    assert shards[0][0] > 4 > shards[2][0]
    assert shards[1] == [4, 4]


def test_one_worker_has_nothing_to_share() -> None:
    trainer = trainer_of("auto", (0.0,))
    assert results(trainer, vectors(4 * SHARDS))["shards"] == [[SHARDS]]


def test_other_words_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="shares must be 'auto', 'equal' or one number for each rank; got 'x'"):
        trainer_of("x", (0.0,))  # type: ignore[arg-type]


def disagreeing() -> str:
    with pytest.raises(ConfigurationError) as caught:
        trainer_of("auto" if current_world().rank == 0 else "equal", (0.0, 0.0))
    return str(caught.value)


def test_ranks_that_do_not_agree_are_told() -> None:
    assert "rank 1 has shares equal" in launch(disagreeing, devices="cpu:2")
