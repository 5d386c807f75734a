from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import samegrad as sg
from samegrad.trainer.shard_cost import shard_cost


def make_trainer(shards: int = 4) -> sg.Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    return sg.Trainer(
        model, F.cross_entropy, lambda p: torch.optim.SGD(p, lr=0.1), sg.Recipe(batch_size=20, shards=shards)
    )


def make_data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(50, 6, generator=generator), torch.randint(3, (50,), generator=generator))


@pytest.mark.parametrize("is_training", [True, False])
def test_measuring_leaves_no_trace(is_training: bool) -> None:
    trainer = make_trainer()
    trainer.model.train(is_training)
    before = trainer.fingerprint()
    cost = shard_cost(trainer, F.cross_entropy, make_data(), budget_s=10.0)
    assert cost is not None
    assert cost.ratio is not None
    assert cost.ratio > 0
    assert cost.seconds > 0
    assert trainer.fingerprint() == before
    assert trainer.model.training is is_training
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_training_has_the_same_bits_with_and_without_measuring() -> None:
    fingerprints = []
    for measured in (False, True):
        trainer = make_trainer()
        if measured:
            shard_cost(trainer, F.cross_entropy, make_data(), budget_s=10.0)
        trainer.fit(make_data(), 2)
        fingerprints.append(trainer.fingerprint())
    assert fingerprints[0] == fingerprints[1]


def test_where_nothing_is_cut_only_the_time_is_measured() -> None:
    sizes = []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        sizes.append(len(target))
        return F.cross_entropy(output, target)

    cost = shard_cost(make_trainer(shards=1), loss, make_data(), budget_s=10.0)
    assert cost is not None
    assert cost.ratio == 1.0
    assert cost.seconds > 0
    assert set(sizes[2:]) == {20}


def test_a_model_that_takes_long_is_computed_on_four_examples_only(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0

    def slow(output: Tensor, target: Tensor) -> Tensor:
        nonlocal clock
        assert len(target) <= 4
        clock += 1.0
        return F.cross_entropy(output, target)

    monkeypatch.setattr(time, "perf_counter", lambda: clock)
    assert shard_cost(make_trainer(), slow, make_data(), budget_s=0.3) is None
    assert clock == 2.0


def test_the_figure_is_the_ratio_of_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0

    def steady(output: Tensor, target: Tensor) -> Tensor:
        nonlocal clock
        clock += 3.0 if len(target) == 20 else 1.0
        return F.cross_entropy(output, target)

    monkeypatch.setattr(time, "perf_counter", lambda: clock)
    cost = shard_cost(make_trainer(), steady, make_data(), budget_s=1e6)
    assert cost == pytest.approx((4 / 3, 4.0))


def test_one_shard_stands_for_all_where_a_minibatch_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = 0.0
    sizes = []

    def steady(output: Tensor, target: Tensor) -> Tensor:
        nonlocal clock
        clock += 1.0
        sizes.append(len(target))
        return F.cross_entropy(output, target)

    monkeypatch.setattr(time, "perf_counter", lambda: clock)
    assert shard_cost(make_trainer(), steady, make_data(), budget_s=7.0) == (None, 4.0)
    assert sizes == [4, 4, 5, 5]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_what_does_not_fit_in_one_piece_is_not_measured(error: Exception) -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        if len(target) == 20:
            raise error
        return F.cross_entropy(output, target)

    trainer = make_trainer()
    before = trainer.fingerprint()
    assert shard_cost(trainer, loss, make_data(), budget_s=1e6) is None
    assert trainer.fingerprint() == before
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_another_failure_is_one() -> None:
    def loss(_: Tensor, __: Tensor) -> Tensor:
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        shard_cost(make_trainer(), loss, make_data())


@pytest.mark.parametrize(("available", "is_measured"), [(4 * 1000 - 1, False), (4 * 1000, True)])
def test_on_the_cpu_one_piece_is_computed_only_if_it_will_fit(
    available: int, is_measured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer()
    gradients = sum(parameter.nbytes for parameter in trainer.model.parameters())
    largest = 0

    def loss(output: Tensor, target: Tensor) -> Tensor:
        nonlocal largest
        largest = max(largest, len(target))
        return F.cross_entropy(output, target)

    # One of four shards has taken 1000 bytes, and the gradients.
    place = "samegrad.trainer.shard_cost"
    monkeypatch.setattr(f"{place}.memory_peak", lambda anew=False: 7 if anew else 7 + gradients + 1000)
    monkeypatch.setattr(f"{place}.available_memory", lambda: available)
    cost = shard_cost(trainer, loss, make_data(), budget_s=1e6)
    assert (cost is not None, largest) == (is_measured, 20 if is_measured else 5)
