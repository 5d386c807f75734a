"""The group of one rank, and the plain reference that all executors are compared with."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from tests.executors.conformance import bits, held_nodes, numbers

from samegrad.executors import SoloGroup, local_tree_sum
from samegrad.shards import Node, leaves_of, tree_sum


def test_alone_a_group_keeps_what_it_has() -> None:
    group = SoloGroup()
    tensor = torch.tensor([1.0, -0.0])
    assert (group.rank, group.size) == (0, 1)
    assert group.gather(b"record", "x") == [b"record"]
    group.broadcast([tensor], "x")
    assert bits(tensor) == bits(torch.tensor([1.0, -0.0]))


@pytest.mark.parametrize("leaves", [1, 2, 3, 5, 8, 9])
def test_the_reference_adds_along_the_tree_whatever_the_cut(leaves: int) -> None:
    """For every element what `shards.tree_sum` gives for the numbers of the leaves, from any cut, in any order."""
    draw = random.Random(leaves)
    values = [numbers(torch.float64, 10, seed) for seed in range(leaves)]
    expected = torch.tensor([tree_sum(column) for column in torch.stack(values).t().tolist()], dtype=torch.float64)
    for ranks in range(1, leaves + 1):
        bounds = (0, *sorted(draw.sample(range(1, leaves), ranks - 1)), leaves)
        nodes = held_nodes([range(a, b) for a, b in itertools.pairwise(bounds)], leaves)
        parts = [
            (node, local_tree_sum([(Node(0, leaf), values[leaf]) for leaf in leaves_of(node, leaves)], leaves))
            for node in nodes
        ]
        draw.shuffle(parts)
        assert bits(local_tree_sum(parts, leaves)) == bits(expected)


def test_the_reference_leaves_its_arguments_alone() -> None:
    values = [torch.ones(3) for _ in range(4)]
    total = local_tree_sum([(Node(0, leaf), value) for leaf, value in enumerate(values)], 4)
    assert total.tolist() == [4.0] * 3
    assert all(value.tolist() == [1.0] * 3 for value in values)
