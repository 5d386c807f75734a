"""Contributions to a sum: any order, any cut, any repetition; always the bits of the tree, each leaf once."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from samegrad.errors import RequestRefused
from samegrad.kvstore.contributions import Contributions
from samegrad.shards import Node, height, leaves_of, shares, subtrees


def leaf_values(leaves: int, seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(17, generator=generator, dtype=torch.float32).to(dtype) for _ in range(leaves)]


def node_value(values: list[Tensor], node: Node, absent: frozenset[int] = frozenset()) -> Tensor | None:
    """The value of a node, by its definition."""
    held = leaves_of(node, len(values))
    if not held or set(held) <= absent:
        return None
    if node.level == 0:
        return values[node.number].clone()
    left = node_value(values, Node(node.level - 1, 2 * node.number), absent)
    right = node_value(values, Node(node.level - 1, 2 * node.number + 1), absent)
    return right if left is None else left if right is None else left + right


def root_value(values: list[Tensor], absent: frozenset[int] = frozenset()) -> Tensor:
    root = node_value(values, Node(height(len(values)), 0), absent)
    assert root is not None
    return root


def value_of(values: list[Tensor], node: Node) -> Tensor:
    value = node_value(values, node)
    assert value is not None
    return value


@pytest.mark.parametrize("leaves", [*range(1, 10), 16, 23])
@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_any_nodes_gives_the_bits_of_the_tree(leaves: int, seed: int) -> None:
    """Cuts over different numbers of workers, mixed: as when a worker's shards are taken over by others."""
    random_, values = random.Random(f"{leaves} {seed}"), leaf_values(leaves, seed)
    nodes = [
        node
        for _ in range(3)
        for held in shares(leaves, random_.randrange(1, leaves + 1))
        for node in subtrees(held, leaves)
    ]
    random_.shuffle(nodes)
    total, covered = Contributions(leaves), set[int]()
    for node in nodes:
        inside = set(leaves_of(node, leaves))
        accepted = total.accept(node, value_of(values, node))
        assert accepted or inside <= covered
        covered |= inside
        assert total.is_complete() == (len(covered) == leaves)
    assert torch.equal(total.total(), root_value(values))


def test_sent_twice_counts_once() -> None:
    values = leaf_values(3, 0)
    total = Contributions(3)
    assert [total.accept(Node(0, leaf), values[leaf].clone()) for leaf in (1, 1, 0, 1, 0)] == [
        *(True, False, True, False, False)
    ]
    assert not total.is_complete()
    total.accept(Node(0, 2), values[2].clone())
    assert total.is_complete()
    assert torch.equal(total.total(), root_value(values))


def test_an_accepted_node_absorbs_its_children_and_replaces_them() -> None:
    values = leaf_values(4, 1)
    for order in ([Node(1, 0), Node(0, 0)], [Node(0, 0), Node(1, 0)]):
        total = Contributions(4)
        for node in order:
            total.accept(node, value_of(values, node))
        assert not total.accept(Node(0, 1), values[1].clone())
        total.accept(Node(1, 1), value_of(values, Node(1, 1)))
        assert torch.equal(total.total(), root_value(values))


@pytest.mark.parametrize("leaves", [2, 3, 5, 8])
def test_absent_leaves_move_their_siblings_up(leaves: int) -> None:
    values = leaf_values(leaves, 2)
    for gone in range(leaves):
        absent = frozenset({gone})
        total = Contributions(leaves)
        for leaf in reversed([leaf for leaf in range(leaves) if leaf != gone]):
            assert not total.is_complete(absent)
            total.accept(Node(0, leaf), values[leaf].clone())
        assert not total.is_complete()
        assert total.is_complete(absent)
        assert torch.equal(total.total(), root_value(values, absent))


def test_nothing_is_added_to_zero() -> None:
    total = Contributions(3)
    total.accept(Node(0, 2), torch.tensor([-0.0]))
    assert not total.is_complete()
    assert total.is_complete(frozenset({0, 1}))
    assert torch.signbit(total.total()).item()


def test_complex_numbers_are_added_as_pairs() -> None:
    total = Contributions(2)
    total.accept(Node(0, 0), torch.tensor([complex(float("inf"), 1)]))
    total.accept(Node(0, 1), torch.tensor([complex(1, 2)]))
    assert total.total().tolist() == [complex(float("inf"), 3)]


@pytest.mark.parametrize("node", [Node(0, 3), Node(3, 0), Node(1, 2), Node(-1, 0), Node(0, -1), Node(60, 0)])
def test_a_node_that_is_not_in_the_tree_is_refused(node: Node) -> None:
    with pytest.raises(RequestRefused, match="is not in the tree over 3 shards"):
        Contributions(3).accept(node, torch.zeros(1))
