from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ConstantLR, LRScheduler, SequentialLR

from samegrad.errors import ConfigurationError
from samegrad.trainer import warmup


def sgd(*rates: float) -> torch.optim.Optimizer:
    parameters = [nn.Parameter(torch.ones(())) for _ in rates]
    groups: list[dict[str, Any]] = [
        {"params": [parameter], "lr": rate} for parameter, rate in zip(parameters, rates, strict=True)
    ]
    return torch.optim.SGD(groups)


def rates(optimizer: torch.optim.Optimizer, scheduler: LRScheduler, steps: int) -> list[list[float]]:
    """Those of so many steps, group by group."""
    found = []
    for _ in range(steps):
        found.append([group["lr"] for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    return found


def test_rates_grow_by_equal_amounts_from_the_start_to_the_full_ones() -> None:
    optimizer = sgd(0.8, 0.08)
    found = rates(optimizer, warmup(optimizer, 4, 0.25), 7)
    assert [row[0] for row in found] == pytest.approx([0.2, 0.35, 0.5, 0.65, 0.8, 0.8, 0.8])
    assert [row[1] for row in found] == pytest.approx([0.02, 0.035, 0.05, 0.065, 0.08, 0.08, 0.08])
    assert found[4:] == [[0.8, 0.08]] * 3  # to the last bit


@pytest.mark.parametrize(("steps", "start_factor"), [(0, 0.1), (3, 1.0), (3, 1)])
def test_none_where_there_is_nothing_to_warm_up(steps: int, start_factor: float) -> None:
    optimizer = sgd(0.3)
    assert rates(optimizer, warmup(optimizer, steps, start_factor), 4) == [[0.3]] * 4


@pytest.mark.parametrize("steps", [1, 3, 10, 49, 1000])
def test_the_full_rate_is_reached_to_the_last_bit(steps: int) -> None:
    optimizer = sgd(0.1)
    (last,) = rates(optimizer, warmup(optimizer, steps, 1 / 3), steps + 1)[-1]
    assert last == 0.1


def test_another_scheduler_may_follow() -> None:
    optimizer = sgd(0.4)
    parts: list[LRScheduler] = [warmup(optimizer, 2, 0.5), ConstantLR(optimizer, 0.1, 2)]
    found = rates(optimizer, SequentialLR(optimizer, parts, [2]), 5)
    assert [row[0] for row in found] == pytest.approx([0.2, 0.3, 0.04, 0.04, 0.4])


@pytest.mark.parametrize(
    ("steps", "start_factor", "message"),
    [
        (-1, 0.5, "steps must be a whole number of at least 0; got -1"),
        (1.5, 0.5, r"steps must be a whole number of at least 0; got 1\.5"),
        (True, 0.5, "steps must be a whole number of at least 0; got True"),
        (3, 0, "start_factor must be above 0 and at most 1, since it is a part of the full rate; got 0"),
        (3, 4.0, r"start_factor must be above 0 and at most 1, .*; got 4\.0"),
        (3, float("nan"), "start_factor must be above 0"),
        (3, "0.5", "start_factor must be above 0"),
    ],
)
def test_what_makes_no_sense_is_refused(steps: Any, start_factor: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"warmup: {message}"):
        warmup(sgd(0.1), steps, start_factor)
