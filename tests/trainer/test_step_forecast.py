from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from samegrad import Recipe, Trainer, launch
from samegrad.trainer.shard_cost import ShardCost
from samegrad.trainer.step_forecast import StepForecast, StepTimes, forecast_step


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def make_trainer(**options: object) -> Trainer:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 60), nn.BatchNorm1d(60), nn.Linear(60, 2))
    return Trainer(model, F.mse_loss, optimizer, Recipe(12, 6, exact=options.get("strategy") != "native"), **options)  # type: ignore[arg-type]


def test_one_rank_computes_and_updates() -> None:
    trainer = make_trainer()
    before = trainer.fingerprint()
    found = forecast_step(trainer, ShardCost(1.0, 0.25), optimizer)
    assert (found.computing_s, found.exchange_s) == (0.25, 0.0)
    assert found.update_s is not None
    assert found.step_s == 0.25 + found.update_s
    assert 0 < found.update_s < 1
    assert trainer.fingerprint() == before
    assert not trainer.optimizer.state


def test_without_a_part_there_is_no_whole() -> None:
    found = forecast_step(make_trainer(), None, optimizer)
    assert (found.computing_s, found.step_s) == (None, None)
    assert found.to_json() == {
        "predicted_step_seconds": None,
        "predicted_computing_seconds": None,
        "predicted_exchange_seconds": 0.0,
        "predicted_update_seconds": found.update_s,
    }


def test_a_model_that_is_frozen_has_nothing_to_update() -> None:
    trainer = make_trainer()
    for parameter in trainer.model.parameters():
        parameter.requires_grad_(False)
    assert forecast_step(trainer, ShardCost(1.0, 1.0), optimizer).step_s == 1.0


def forecasts() -> list[StepForecast]:
    cases: list[dict[str, object]] = [{}, {"update": "owner"}, {"strategy": "one-device"}]
    trainers = [*(make_trainer(**each) for each in cases), make_trainer(strategy="native")]
    return [forecast_step(each, ShardCost(1.0, 1.0 + each.world.rank), optimizer) for each in trainers]


@pytest.mark.dist
def test_the_slowest_rank_counts_and_the_exchange_of_whatever_is_taken() -> None:
    *known, native = launch(forecasts, devices="cpu:2")
    assert all(each.computing_s == 2.0 for each in (*known, native))
    assert all(each.exchange_s is not None and 0 < each.exchange_s < 1 for each in known)
    assert (native.exchange_s, native.step_s) == (None, None)


def test_the_median_of_the_steps() -> None:
    assert StepTimes().median_s is None
    times = StepTimes()
    make_trainer().fit(TensorDataset(torch.ones(60, 40), torch.ones(60, 2)), callbacks=[times])
    assert times.median_s is not None
    assert 0 < times.median_s < 10
