"""Updates on a server: the bits of torch.optim on the whole value, and nothing that is not in the lists."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from samegrad.errors import ConfigurationError, RequestRefused
from samegrad.kvstore.consistency import Consistency
from samegrad.kvstore.job import Job
from samegrad.kvstore.placement import UNIT_BYTES
from samegrad.kvstore.updaters import OPTIMIZERS, SCHEDULES, Updater

SCHEDULE_OPTIONS: dict[str, dict[str, Any]] = {
    "StepLR": {"step_size": 2, "gamma": 0.5},
    "MultiStepLR": {"milestones": [1, 3]},
    "ExponentialLR": {"gamma": 0.9},
    "CosineAnnealingLR": {"T_max": 5},
    "CosineAnnealingWarmRestarts": {"T_0": 3},
}


def gradients(numel: int, steps: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(numel)
    return [torch.randn(numel, generator=generator) for _ in range(steps)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_slices_give_the_bits_of_the_whole_value(name: str) -> None:
    numel, unit = 5 * UNIT_BYTES // 4 + 77, UNIT_BYTES // 4
    first = torch.randn(numel, generator=torch.Generator().manual_seed(0))
    whole = torch.nn.Parameter(first.clone())
    optimizer = getattr(torch.optim, name)([whole])
    bounds = [(0, unit), (unit, 3 * unit), (3 * unit, numel)]
    rules = [Updater(name).rule(first[start:stop].clone()) for start, stop in bounds]
    for gradient in gradients(numel, 4):
        whole.grad = gradient.clone()
        optimizer.step()
        for rule, (start, stop) in zip(rules, bounds, strict=True):
            rule.apply(gradient[start:stop].clone())
    assert torch.equal(torch.cat([rule.value for rule in rules]), whole.detach())
    assert not torch.equal(whole.detach(), first)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_stepped_after_each_update(name: str) -> None:
    options = SCHEDULE_OPTIONS.get(name, {})
    whole = torch.nn.Parameter(torch.ones(10))
    optimizer = torch.optim.SGD([whole], lr=0.1, momentum=0.9)
    schedule = getattr(torch.optim.lr_scheduler, name)(optimizer, **options)
    rule = Updater("SGD", {"lr": 0.1, "momentum": 0.9}, name, options).rule(torch.ones(10))
    for gradient in gradients(10, 6):
        whole.grad = gradient.clone()
        optimizer.step()
        schedule.step()
        rule.apply(gradient)
    assert torch.equal(rule.value, whole.detach())


def test_the_state_goes_along_when_the_value_moves() -> None:
    updater = Updater("Adam", {"lr": 0.01, "betas": [0.8, 0.9]})
    staying, moving = updater.rule(torch.ones(10)), updater.rule(torch.ones(10))
    for gradient in gradients(10, 4):
        before, copy = moving.value, moving.value.clone()
        moving.move_to(moving.value.clone())
        moving.apply(gradient.clone())
        assert torch.equal(before, copy)
        staying.apply(gradient.clone())
    assert torch.equal(moving.value, staying.value)


def test_sum_and_assign() -> None:
    added, assigned = Updater("sum").rule(torch.ones(2)), Updater("assign").rule(torch.ones(2))
    for rule in (added, assigned):
        rule.apply(torch.tensor([1.0, 2.0]))
        rule.apply(torch.tensor([3.0, 4.0]))
    assert added.value.tolist() == [5.0, 7.0]
    assert assigned.value.tolist() == [3.0, 4.0]


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ({"name": "eval"}, "there is no 'eval'; there are sum, assign, SGD"),
        ({"name": "LBFGS"}, "there is no 'LBFGS'"),
        ({"name": "SGD", "options": {"lr": 0.1, "params": [1]}}, "SGD takes no params"),
        ({"name": "SGD", "options": {"fused": True}}, "SGD takes no fused"),
        ({"name": "SGD", "options": {"lr": "__import__('os')"}}, "lr must be a number or numbers"),
        ({"name": "SGD", "options": {"lr": -1.0}}, "SGD of torch refuses its options"),
        ({"name": "SGD", "options": [1]}, "updater: "),
        ({"name": "sum", "options": {"lr": 0.1}}, "sum takes no options"),
        ({"name": "SGD", "schedule": "LambdaLR"}, "there is no schedule 'LambdaLR'"),
        ({"name": "SGD", "schedule": "StepLR"}, "SGD of torch refuses its options"),
        ({"name": "SGD", "schedule_options": {"gamma": 1}}, "schedule_options without a schedule"),
        ({"name": "SGD", "schedule": "StepLR", "schedule_options": {"optimizer": 1}}, "StepLR takes no optimizer"),
        ({"nam": "SGD"}, "updater: "),
        ({"name": ["SGD"]}, "there is no"),
    ],
)
def test_what_is_not_in_the_lists_is_refused(record: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Updater.from_json(record)


def test_json_comes_back() -> None:
    updater = Updater("AdamW", {"lr": 0.1, "betas": (0.9, 0.99)}, "StepLR", {"step_size": 3})
    record = json.loads(json.dumps(updater.to_json()))
    assert Updater.from_json(record).to_json() == record


# The terms of a store


def test_asynchronous_modes_without_an_updater_are_refused() -> None:
    for consistency in (Consistency("async"), Consistency("stale", 2)):
        with pytest.raises(ConfigurationError, match="needs an updater"):
            Job(2, consistency=consistency)


def test_terms_come_back_as_json() -> None:
    for job in (
        Job(3),
        Job(3, 8, updater=Updater("sum")),
        Job(2, consistency=Consistency("stale", 4), updater=Updater("SGD", {"lr": 0.1})),
    ):
        assert Job.from_json(json.loads(json.dumps(job.to_json()))).to_json() == job.to_json()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"workers": 0}, "workers must be a whole number from 1"),
        ({"workers": "2"}, "workers must be a whole number"),
        ({"leaves": -1}, "leaves must be a whole number"),
        ({"mode": ["sync"]}, "mode must be one of"),
        ({"mode": "async"}, "needs an updater"),
        ({"updater": 3}, "expected a record as updater"),
        ({"version": "0.0.1"}, "the worker has samegrad 0.0.1, the server"),
        ({"more": 1}, "store: expected"),
    ],
)
def test_terms_that_cannot_be_are_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Job.from_json({**Job(2).to_json(), **change})


@pytest.mark.parametrize("schedule", [None, *SCHEDULES])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_an_updater_knows_goes_on_elsewhere(name: str, schedule: str | None) -> None:
    options = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {}
    chosen = {} if schedule is None else SCHEDULE_OPTIONS.get(schedule, {})
    updater = Updater(name, options, schedule, chosen)
    rule, steps = updater.rule(torch.ones(33)), gradients(33, 6)
    fresh = updater.rule(torch.ones(33))
    assert json.dumps(fresh.described()[0]) == json.dumps(rule.described()[0])
    for gradient in steps[:3]:
        rule.apply(gradient.clone())
    record, tensors = rule.described()
    other = updater.rule(rule.value.clone())
    other.restore(json.loads(json.dumps(record)), {key: tensor.clone() for key, tensor in tensors.items()})
    for gradient in steps[3:]:
        rule.apply(gradient.clone())
        other.apply(gradient.clone())
    assert torch.equal(rule.value, other.value)
    fresh.apply(steps[0].clone())
    assert not torch.equal(rule.value, fresh.value)


def test_an_updater_takes_up_no_state_of_another() -> None:
    rule = Updater("SGD", {"lr": 0.1}).rule(torch.ones(3))
    other, _ = Updater("Adam").rule(torch.ones(3)).described()
    for wrong in (None, other, {"dict": [["state", 1]]}, {"tensor": "x"}, [1], {"lambda": 1}, {}):
        with pytest.raises(RequestRefused, match="updater: "):
            rule.restore(wrong, {})
    with pytest.raises(RequestRefused, match="updater: "):
        Updater("sum").rule(torch.ones(3)).restore(other, {})
