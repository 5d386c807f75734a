"""Seeding reaches every generator that a model or a data set may draw from."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest
import torch

from samegrad.keys import generator_key
from samegrad.parallel.generators import seed_generators

CPU = torch.device("cpu")


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


@pytest.mark.parametrize("key", [0, 1, 2**31, 2**32, 2**63, 2**64 - 1, generator_key(0, "shard", 1)])
def test_the_key_alone_decides_what_is_drawn(key: int) -> None:
    seed_generators(key, CPU)
    first = draws()
    draws()
    seed_generators(key, CPU)
    assert draws() == first


def test_other_keys_draw_other_numbers_everywhere() -> None:
    found = []
    for key in (generator_key(0, "shard", step) for step in range(50)):
        seed_generators(key, CPU)
        found.append(draws())
    for column in zip(*found, strict=True):
        assert len(set(column)) == 50


def test_without_numpy_the_others_are_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numpy")
    seed_generators(5, CPU)
    first = random.random(), float(torch.rand(()))
    seed_generators(5, CPU)
    assert (random.random(), float(torch.rand(()))) == first


def test_a_generator_of_the_users_own_is_left_alone() -> None:
    own = torch.Generator().manual_seed(3)
    expected = torch.rand(2, generator=torch.Generator().manual_seed(3))
    seed_generators(5, CPU)
    assert torch.equal(torch.rand(2, generator=own), expected)
