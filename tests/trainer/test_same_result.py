"""The promise: with an equal recipe, data, model and optimizer the result has the same bits for any number of devices.

Every training of `configurations` runs once for each number of workers, all in one launch; one worker is the measure.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.trainer.configurations import CONFIGURATIONS, train

from samegrad.parallel import current_world
from samegrad.workers import launch

pytestmark = pytest.mark.dist

Results = dict[str, dict[str, Any]]


def train_everything() -> Results:
    """Called on each rank: what every training gives, by name, optimizer and way of updating."""
    size = current_world().size
    found = {}
    for name, configuration in CONFIGURATIONS.items():
        if size <= configuration.most_ranks:
            for optimizer in configuration.optimizers:
                for update in configuration.updates:
                    if size > 1 or update == configuration.updates[0]:  # alone, both are the same
                        found[f"{name}, {optimizer}, {update}"] = train(configuration, optimizer, update)
    return found


@pytest.fixture(scope="module")
def alone() -> Results:
    """What one worker gives; both ways of updating are compared with it."""
    found = launch(train_everything, devices="cpu:1")
    for name, configuration in CONFIGURATIONS.items():
        for optimizer in configuration.optimizers:
            first = found[f"{name}, {optimizer}, {configuration.updates[0]}"]
            found |= {f"{name}, {optimizer}, {update}": first for update in configuration.updates}
    return found


@pytest.mark.parametrize("workers", [3, *(pytest.param(workers, marks=pytest.mark.slow) for workers in (2, 4, 5, 8))])
def test_any_number_of_workers_gives_the_result_of_one(workers: int, alone: Results) -> None:
    found = launch(train_everything, devices=f"cpu:{workers}", timeout_s=60)
    assert len(found) > 50
    differences = [
        f"{name}: {key} is {value} with one worker, {found[name][key]} with {workers}"
        for name in found
        for key, value in alone[name].items()
        if found[name][key] != value
    ]
    assert not differences, "\n" + "\n".join(differences)


def test_the_trainings_are_worth_comparing(alone: Results) -> None:
    """They train: losses are numbers, differ by step, and every training has a result of its own."""
    for name, found in alone.items():
        losses = [float.fromhex(loss) for loss in found["losses"]]
        assert all(0 < loss < 1e6 for loss in losses), name
        assert len(set(losses)) == len(losses), name
    fingerprints = {found["fingerprint"] for found in alone.values()}
    assert len(fingerprints) == sum(len(configuration.optimizers) for configuration in CONFIGURATIONS.values())
