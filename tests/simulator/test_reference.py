"""The simulator finds what the slow and plain one finds, on topologies and schedules of all kinds."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tests.schedules.cuts import random_cut
from tests.simulator.nets import random_topology

from samegrad.schedules import ALGORITHMS, Cut, build_for, pipelined, striped
from samegrad.schedules.ir import Schedule
from samegrad.simulator import simulate
from samegrad.simulator.reference import reference_rounds, share_fairly
from samegrad.simulator.sharing import fair_rates


def random_schedule(chance: random.Random, name: str, ranks: int) -> Schedule:
    helpers = ALGORITHMS[name].helpers
    equal = chance.random() < 0.5
    cut = Cut.equal(ranks, helpers) if equal else random_cut(ranks, ranks + 4, chance.randrange(1000), helpers)
    schedule = build_for(name, cut)
    if chance.random() < 0.3:
        schedule = pipelined(schedule, chance.randint(2, 3))
    if chance.random() < 0.3 and not helpers:
        schedule = striped([schedule, build_for("ring", cut)], [chance.randint(1, 3), 1])
    return schedule


@pytest.mark.parametrize("barriers", [False, True])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_equals_the_reference(name: str, barriers: bool) -> None:
    for seed in range(4):
        chance = random.Random(f"{name} {seed}")
        ranks = chance.randint(2, 6)
        topology, schedule = random_topology(chance, ranks), random_schedule(chance, name, ranks)
        nbytes = chance.choice([1e3, 1e5, 1e7])
        found = simulate(schedule, topology, nbytes, barriers=barriers)
        expected = np.array(reference_rounds(schedule, topology, nbytes, barriers=barriers))
        np.testing.assert_allclose(found.rounds, expected, rtol=1e-9, atol=1e-15)
        assert found.seconds == pytest.approx(expected.max(), rel=1e-9)


def test_flows_share_as_in_the_reference() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        links = [f"{number}" for number in range(chance.randint(1, 8))]
        capacity = {name: chance.choice([1.0, 2.0, chance.uniform(0.1, 9.0)]) for name in links}
        flows = [chance.sample(links, chance.randint(1, len(links))) for _ in range(chance.randint(1, 12))]
        lengths = np.array([len(flow) for flow in flows])
        passed = np.array([int(name) for flow in flows for name in flow])
        weights = [chance.choice([1.0, chance.uniform(0.1, 9.0)]) for _ in flows]
        rates = fair_rates(lengths, passed, np.array(list(capacity.values())), np.array(weights))
        np.testing.assert_allclose(rates, share_fairly(flows, capacity, weights), rtol=1e-9)
        # Nobody can have more but at the cost of one that has no more for its weight: each passes a full link on which
        # no other one has more.
        levels = [rate / weight for rate, weight in zip(rates, weights, strict=True)]
        used = {name: sum(rate for flow, rate in zip(flows, rates, strict=True) if name in flow) for name in links}
        for flow, level in zip(flows, levels, strict=True):
            assert any(
                used[name] >= capacity[name] * (1 - 1e-9)
                and all(level >= other * (1 - 1e-9) for o, other in zip(flows, levels, strict=True) if name in o)
                for name in flow
            )
