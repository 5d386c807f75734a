"""The sampler: every example on one rank, nothing twice, the order of the Trainer, arguments checked one by one."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from samegrad.errors import ConfigurationError
from samegrad.parallel import current_world
from samegrad.recipe import Recipe
from samegrad.trainer import DistributedSampler
from samegrad.trainer.examples import epoch_order
from samegrad.workers import launch


def parts(length: int, ranks: int, epoch: int = 0, **options: Any) -> list[list[int]]:
    found = []
    for rank in range(ranks):
        sampler = DistributedSampler(length, ranks, rank, **options)
        sampler.set_epoch(epoch)
        found.append(list(sampler))
        assert len(sampler) == len(found[-1])
    return found


@pytest.mark.parametrize("ranks", range(1, 10))
@pytest.mark.parametrize("length", [9, 10, 17, 22, 100])
@pytest.mark.parametrize("shuffle", [True, False])
def test_each_example_is_given_to_one_rank(length: int, ranks: int, shuffle: bool) -> None:
    found = parts(length, ranks, shuffle=shuffle)
    assert sorted(itertools.chain(*found)) == list(range(length))
    assert max(map(len, found)) - min(map(len, found)) <= 1
    dropped = parts(length, ranks, shuffle=shuffle, drop_last=True)
    assert {len(part) for part in dropped} == {length // ranks}
    assert all(part[: len(fewer)] == fewer for part, fewer in zip(found, dropped, strict=True))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_minibatches_of_all_ranks_together_are_those_of_the_trainer(ranks: int) -> None:
    order = epoch_order(Recipe(seed=7), 50, 2).tolist()
    found = parts(50, ranks, epoch=2, seed=7)
    for start in range(0, -(-50 // ranks), 4):
        together = [index for part in found for index in part[start : start + 4]]
        assert sorted(together) == sorted(order[start * ranks : (start + 4) * ranks])


def test_epochs_have_orders_of_their_own_which_repeat() -> None:
    """Two ranks, 22 examples, three epochs."""
    epochs = [parts(22, 2, epoch) for epoch in range(3)]
    for first, second in epochs:
        assert not set(first) & set(second)
    assert len({tuple(first) for first, _ in epochs}) == 3
    assert [parts(22, 2, epoch) for epoch in range(3)] == epochs
    assert parts(22, 2, 0, seed=1) != epochs[0]


def test_who_forgets_set_epoch_is_told() -> None:
    sampler = DistributedSampler(22, 2, 0)
    first = list(sampler)
    with pytest.warns(UserWarning, match=r"the order of the one before; call sampler\.set_epoch\(epoch\)"):
        assert list(sampler) == first
    assert list(sampler) == first  # and is told once
    told = DistributedSampler(22, 2, 0)
    told.set_epoch(0)
    assert list(told) == list(told) == first
    in_order = DistributedSampler(22, 2, 0, shuffle=False)
    assert list(in_order) == list(in_order) == list(range(0, 22, 2))


def test_fewer_examples_than_ranks_is_said_when_it_is_made() -> None:
    """Three examples and seven ranks."""
    found = []
    for rank in range(7):
        with pytest.warns(UserWarning, match="3 examples for 7 ranks: ranks 3 to 6 get none"):
            found.append(list(DistributedSampler(3, 7, rank)))
    assert sorted(itertools.chain(*found)) == [0, 1, 2]
    assert [len(part) for part in found] == [1, 1, 1, 0, 0, 0, 0]
    with pytest.raises(ConfigurationError, match="3 examples for 7 ranks: with drop_last no rank gets any"):
        DistributedSampler(3, 7, 0, drop_last=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset": 0}, "at least 1 example is needed; got 0 examples"),
        ({"dataset": -1}, "got -1 examples"),
        ({"dataset": True}, "got True examples"),
        ({"dataset": []}, "has no examples"),
        ({"dataset": 1.5}, "float has no __getitem__"),
        ({"dataset": iter([1])}, "list_iterator has no __getitem__"),
        ({"num_replicas": 0}, "num_replicas must be a whole number of at least 1; got 0"),
        ({"num_replicas": 2.0}, "num_replicas must be .* got 2.0"),
        ({"rank": 2}, r"rank must be a whole number in 0\.\.1, as num_replicas is 2; got 2"),
        ({"rank": -1}, r"rank must be .* got -1"),
        ({"rank": True}, r"rank must be .* got True"),
        ({"shuffle": 1}, "shuffle must be True or False; got 1"),
        ({"drop_last": None}, "drop_last must be True or False; got None"),
        ({"seed": -1}, "seed must be a whole number of at least 0; got -1"),
        ({"seed": 0.5}, "seed must be"),
    ],
)
def test_arguments_are_checked_one_by_one(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        DistributedSampler(**{"dataset": 22, "num_replicas": 2, "rank": 0, **arguments})


@pytest.mark.parametrize("epoch", [-1, 1.0, None, True])
def test_an_epoch_that_is_no_number_is_refused(epoch: Any) -> None:
    with pytest.raises(ConfigurationError, match="epoch must be a whole number of at least 0"):
        DistributedSampler(5).set_epoch(epoch)


def test_in_a_data_loader() -> None:
    data = TensorDataset(torch.arange(22))
    assert list(DistributedSampler(data)) == epoch_order(Recipe(), 22, 0).tolist()  # one process: all of them
    seen: list[int] = []
    for rank in range(2):
        sampler = DistributedSampler(data, 2, rank)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            batches = [batch[0].tolist() for batch in DataLoader(data, batch_size=4, sampler=sampler)]
            assert [len(batch) for batch in batches] == [4, 4, 3]
            seen += itertools.chain(*batches)
    assert sorted(seen) == sorted([*range(22), *range(22)])


@pytest.mark.dist
def test_ranks_are_those_of_the_launch() -> None:
    def run() -> Any:
        sampler = DistributedSampler(22, shuffle=False)
        records = current_world().group.gather(",".join(map(str, sampler)).encode(), "test")
        return [[int(word) for word in record.split(b",")] for record in records]

    assert launch(run, devices="cpu:3") == [list(range(rank, 22, 3)) for rank in range(3)]
