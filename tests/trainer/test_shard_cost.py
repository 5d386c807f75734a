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
    assert cost > 0
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


def test_nothing_is_measured_where_nothing_is_cut() -> None:
    def loss(_: Tensor, __: Tensor) -> Tensor:
        raise AssertionError("it is called")

    assert shard_cost(make_trainer(shards=1), loss, make_data()) == 1.0


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
    assert shard_cost(make_trainer(), steady, make_data(), budget_s=1e6) == pytest.approx(4 / 3)
