"""`batches`: this rank's part of each global minibatch, as the Trainer has them, without padding."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from samegrad.errors import CallMismatch, ConfigurationError, DataError
from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.parallel.world import World
from samegrad.recipe import Recipe
from samegrad.shards import even
from samegrad.testing import run_ranks
from samegrad.trainer import Loading, batches, rank_batches
from samegrad.trainer.examples import epoch_order

_here = threading.local()


@pytest.fixture
def _ranks_are_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def world() -> World:
        group: SharedMemoryGroup = _here.group
        return World(group.rank, group.size, torch.device("cpu"), ("cpu",) * group.size, group, group)

    monkeypatch.setattr(rank_batches, "current_world", world)


def on_ranks(ranks: int, dataset: Any, **options: Any) -> list[list[list[int]]]:
    """For each rank and minibatch: the numbers of the examples in it."""

    def run(group: SharedMemoryGroup) -> list[list[int]]:
        _here.group = group
        found = []
        for X, y in batches(dataset, **options):
            assert X.dtype == y.dtype == torch.int64
            assert (y == X[:, 0] * 2).all()
            found.append(X[:, 0].tolist())
        return found

    return run_ranks(ranks, run)


def numbers(examples: int) -> TensorDataset:
    X = torch.arange(examples).view(-1, 1)
    return TensorDataset(X, 2 * X[:, 0])


class OneByOne:
    def __init__(self, examples: int) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return self.examples

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index]), 2 * index


class Stream:
    """Iterable, and nothing else."""

    def __init__(self, examples: int) -> None:
        self.examples = examples

    def __iter__(self) -> Iterator[Any]:
        return ((torch.tensor([index]), 2 * index) for index in range(self.examples))


@pytest.mark.usefixtures("_ranks_are_threads")
@pytest.mark.parametrize("ranks", range(1, 9))
@pytest.mark.parametrize("examples", [1, 7, 8, 9, 16, 21])
@pytest.mark.parametrize("kind", [numbers, OneByOne, Stream])
def test_parts_are_contiguous_in_the_minibatches_of_the_trainer(kind: Any, examples: int, ranks: int) -> None:
    found = on_ranks(ranks, kind(examples), batch_size=8, epoch=2, seed=5)
    order = epoch_order(Recipe(seed=5, shuffle=kind is not Stream), examples, 2).tolist()
    minibatches = [order[start : start + 8] for start in range(0, examples, 8)]
    for step, minibatch in enumerate(minibatches):
        parts = [minibatch[part.start : part.stop] for part in even(len(minibatch), ranks)]
        assert [found[rank][step] for rank in range(ranks)] == parts
    assert {len(steps) for steps in found} == {len(minibatches)}, "all ranks make the same number of steps"


@pytest.mark.usefixtures("_ranks_are_threads")
def test_without_shuffling_and_with_an_order_for_each_epoch() -> None:
    assert on_ranks(2, numbers(7), batch_size=4, shuffle=False) == [[[0, 1], [4, 5]], [[2, 3], [6]]]
    epochs = [on_ranks(2, numbers(32), batch_size=16, epoch=epoch) for epoch in (0, 1)]
    assert epochs[0] != epochs[1]
    assert on_ranks(2, numbers(32), batch_size=16, epoch=1) == epochs[1]


@pytest.mark.usefixtures("_ranks_are_threads")
def test_an_empty_part_has_the_structure_of_the_others() -> None:
    data = [({"pixels": torch.ones(2, 3), "name": "a"}, torch.tensor(1.0))]

    def run(group: SharedMemoryGroup) -> Any:
        _here.group = group
        ((X, y),) = batches(data, 8)
        return X["pixels"].shape, X["name"], y.shape

    assert run_ranks(2, run) == [((1, 2, 3), ["a"], (1,)), ((0, 2, 3), [], (0,))]


@pytest.mark.usefixtures("_ranks_are_threads")
@pytest.mark.parametrize("kind", [OneByOne, Stream])
def test_other_data_on_another_rank_is_noticed(kind: Any) -> None:
    def run(group: SharedMemoryGroup) -> None:
        _here.group = group
        for _ in batches(kind(20 + group.rank), 8):
            pass

    with pytest.raises((DataError, CallMismatch), match=r"batches on 2[01] examples|gives [45] more"):
        run_ranks(2, run)


@pytest.mark.usefixtures("_ranks_are_threads")
def test_a_stream_that_is_split_by_rank_is_noticed() -> None:
    """As one does it for other libraries: every rank would train on parts of other minibatches."""

    def run(group: SharedMemoryGroup) -> None:
        _here.group = group
        split = [(torch.tensor([index]), 2 * index) for index in range(group.rank, 32, 2)]
        for _ in batches(Given(split), 8):
            pass

    with pytest.raises(DataError, match=r"gives others, or in another order.*must not be split by rank"):
        run_ranks(2, run)


class Given:
    def __init__(self, examples: list[Any]) -> None:
        self.examples = examples

    def __iter__(self) -> Iterator[Any]:
        return iter(self.examples)


class Draws:
    """Random numbers of all kinds."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[Tensor, float]:
        return torch.rand(2), random.random()


@pytest.mark.parametrize("loading", [None, Loading(2)], ids=["itself", "loader workers"])
def test_what_examples_draw_repeats_and_the_generators_of_the_caller_are_left_alone(loading: Loading | None) -> None:
    torch.manual_seed(3)
    random.seed(3)
    undisturbed = [float(torch.rand(())), random.random(), float(torch.rand(())), random.random()]
    torch.manual_seed(3)
    random.seed(3)
    drawn, found = [], []
    for X, y in batches(Draws(), 6, loading=loading):
        found.append((X.tolist(), y.tolist()))
        drawn += [float(torch.rand(())), random.random()]
    assert drawn == undisturbed
    assert found == [(X.tolist(), y.tolist()) for X, y in batches(Draws(), 6)]
    assert found != [(X.tolist(), y.tolist()) for X, y in batches(Draws(), 6, epoch=1)]
    rows = [row for X, _ in found for row in map(tuple, X)]
    assert len(set(rows)) == 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batches: batch_size must be a whole number of at least 1; got 0"),
        ({"batch_size": True}, "batch_size must be"),
        ({"epoch": -1}, "batches: epoch must be a whole number of at least 0; got -1"),
        ({"seed": 1.5}, r"batches: seed must be a whole number of at least 0; got 1\.5"),
        ({"shuffle": None}, "shuffle must be True or False; got None"),
    ],
)
def test_arguments_are_checked_when_it_is_called(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        batches(numbers(5), **options)


@pytest.mark.parametrize("loading", [None, Loading(1)], ids=["itself", "loader worker"])
@pytest.mark.parametrize("dataset", [[], Given([])], ids=["map-style", "iterable"])
def test_a_data_set_without_examples_is_refused(dataset: Any, loading: Loading | None) -> None:
    with pytest.raises(ConfigurationError, match="has no examples"):
        next(batches(dataset, loading=loading))
