"""The tree over the shards and its cut over ranks, against references that follow the definitions word by word."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction

import pytest

from samegrad.errors import ConfigurationError
from samegrad.shards import Node, additions, even, height, leaves_of, shares, subtrees, tree_sum

MOST = 17
"""Numbers of shards from 1 to this are tried exhaustively: powers of two, both neighbours of each, and odd ones."""


def all_nodes(leaves: int) -> list[Node]:
    """Every node of the tree, by its definition: halve the number of nodes, rounded up, until one is left."""
    nodes, level, count = [], 0, leaves
    while True:
        nodes += [Node(level, number) for number in range(count)]
        if count <= 1:
            return nodes
        level, count = level + 1, (count + 1) // 2


def all_ranges(leaves: int) -> Iterator[range]:
    return (range(start, stop) for start in range(leaves + 1) for stop in range(start, leaves + 1))


def all_cuts(leaves: int, ranks: int) -> Iterator[list[range]]:
    """Every way to give each rank, in order, at least one of the leaves."""
    for inner in itertools.combinations(range(1, leaves), ranks - 1):
        yield [range(a, b) for a, b in itertools.pairwise((0, *inner, leaves))]


def nested_sum(parts: dict[int, object], leaves: int, level: int, number: int) -> object:
    """The sum of node (level, number) as a nested pair, from the values `parts` of the leaves; None if all absent."""
    if number << level >= leaves:
        return None
    if level == 0:
        return parts.get(number)
    a = nested_sum(parts, leaves, level - 1, 2 * number)
    b = nested_sum(parts, leaves, level - 1, 2 * number + 1)
    return b if a is None else a if b is None else (a, b)


# even


@pytest.mark.parametrize("parts", range(1, 10))
@pytest.mark.parametrize("total", [0, 1, 2, 7, 8, 9, 63, 64, 65, 1000])
def test_even_parts_are_contiguous_and_differ_by_at_most_one(total: int, parts: int) -> None:
    ranges = even(total, parts)
    sizes = [len(part) for part in ranges]
    assert [x for part in ranges for x in part] == list(range(total))
    assert len(sizes) == parts
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


# The tree


@pytest.mark.parametrize("leaves", range(1, MOST + 1))
def test_the_root_is_the_only_node_of_its_level_and_covers_all(leaves: int) -> None:
    root = all_nodes(leaves)[-1]
    assert root == Node(height(leaves), 0)
    assert leaves_of(root, leaves) == range(leaves)


def test_the_height_is_the_number_of_halvings() -> None:
    assert [height(leaves) for leaves in range(10)] == [0, 0, 1, 2, 2, 3, 3, 3, 3, 4]
    assert height(1 << 20) == 20
    assert height((1 << 20) + 1) == 21


@pytest.mark.parametrize("leaves", range(1, MOST + 1))
def test_a_node_covers_what_its_children_cover(leaves: int) -> None:
    nodes = all_nodes(leaves)
    for node in nodes:
        if node.level == 0:
            assert list(leaves_of(node, leaves)) == [node.number]
        else:
            children = [Node(node.level - 1, 2 * node.number + side) for side in (0, 1)]
            covered = [leaf for child in children if child in nodes for leaf in leaves_of(child, leaves)]
            assert list(leaves_of(node, leaves)) == covered


def test_a_node_beyond_the_last_leaf_covers_nothing() -> None:
    assert not leaves_of(Node(0, 5), 5)
    assert not leaves_of(Node(1, 3), 5)


# subtrees


@pytest.mark.parametrize("leaves", range(1, MOST + 1))
def test_subtrees_cover_a_range_exactly_once_with_the_largest_nodes(leaves: int) -> None:
    nodes = all_nodes(leaves)
    for held in all_ranges(leaves):
        found = subtrees(held, leaves)
        assert [leaf for node in found for leaf in leaves_of(node, leaves)] == list(held)
        inside = [node for node in nodes if set(leaves_of(node, leaves)) <= set(held)]
        # The largest: nodes inside whose parent is not. A lone node and its parent cover the same leaves.
        parents = {Node(node.level + 1, node.number // 2) for node in nodes} & set(nodes)
        largest = [
            node
            for node in inside
            if (parent := Node(node.level + 1, node.number // 2)) not in parents or parent not in inside
        ]
        assert sorted(found) == sorted(largest), held


def test_a_rank_with_all_shards_holds_the_root() -> None:
    for leaves in range(1, MOST + 1):
        assert subtrees(range(leaves), leaves) == [Node(height(leaves), 0)]


def test_eight_shards_on_three_ranks_as_in_the_module() -> None:
    """8 shards on 3 ranks give {01}{2} | {3}{45} | {67}."""
    cut = shares(8, 3)
    assert cut == [range(3), range(3, 6), range(6, 8)]
    assert [[list(leaves_of(node, 8)) for node in subtrees(part, 8)] for part in cut] == [
        [[0, 1], [2]],
        [[3], [4, 5]],
        [[6, 7]],
    ]


# shares


@pytest.mark.parametrize("leaves", range(1, 10))
def test_equal_shares_are_the_fastest_with_the_fewest_subtrees(leaves: int) -> None:
    for ranks in range(1, leaves + 1):
        cut = shares(leaves, ranks)
        cuts = list(all_cuts(leaves, ranks))
        assert cut in cuts
        fastest = min(max(map(len, other)) for other in cuts)
        assert max(map(len, cut)) == fastest

        def count(other: list[range], leaves: int = leaves) -> int:
            return sum(len(subtrees(part, leaves)) for part in other)

        equally_fast = [other for other in cuts if max(map(len, other)) == fastest]
        assert count(cut) == min(map(count, equally_fast)), (leaves, ranks)
        fewest = [other for other in equally_fast if count(other) == count(cut)]
        assert cut == max(fewest, key=lambda other: [len(part) for part in other])  # the first ranks get the most


@pytest.mark.parametrize("leaves", [1, 2, 5, 8, 9])
def test_weighted_shares_let_the_slowest_rank_end_as_early_as_possible(leaves: int) -> None:
    draw = random.Random(leaves)
    for ranks in range(1, min(leaves, 5) + 1):
        for _ in range(20):
            speeds = [draw.choice([0.1, 0.5, 1.0, 1.5, 3.0, 7.0]) for _ in range(ranks)]

            def time(cut: Sequence[range], speeds: Sequence[float] = speeds) -> Fraction:
                return max(len(part) / Fraction(speed) for part, speed in zip(cut, speeds, strict=True))

            cut = shares(leaves, ranks, speeds)
            assert time(cut) == min(map(time, all_cuts(leaves, ranks))), (leaves, speeds, cut)


@pytest.mark.parametrize(
    ("speeds", "sizes"),
    [([1, 1], [4, 4]), ([3, 1], [6, 2]), ([1, 3], [2, 6]), ([1000, 1], [7, 1]), ([2, 1, 1], [4, 2, 2])],
)
def test_eight_shards_go_out_in_proportion_to_speed(speeds: list[float], sizes: list[int]) -> None:
    assert [len(part) for part in shares(8, len(speeds), speeds)] == sizes


def test_only_the_ratio_of_speeds_counts() -> None:
    draw = random.Random(0)
    for _ in range(50):
        speeds = [draw.randint(1, 9) for _ in range(draw.randint(1, 6))]
        assert shares(13, len(speeds), speeds) == shares(13, len(speeds), [speed * 1024.0 for speed in speeds])


@pytest.mark.parametrize("slack", [0.1, 0.5])
def test_with_slack_fewer_subtrees_count_more_than_a_little_time(slack: float) -> None:
    draw = random.Random(1)
    fewer = 0
    for _ in range(50):
        speeds = [draw.choice([0.5, 1.0, 1.1, 1.5, 3.0]) for _ in range(3)]

        def time(cut: Sequence[range], speeds: Sequence[float] = speeds) -> float:
            return max(len(part) / speed for part, speed in zip(cut, speeds, strict=True))

        def count(cut: Sequence[range]) -> int:
            return sum(len(subtrees(part, 11)) for part in cut)

        cuts = list(all_cuts(11, 3))
        fastest, cut = min(map(time, cuts)), shares(11, 3, speeds, slack)
        assert time(cut) <= fastest * (1 + slack)
        assert count(cut) == min(count(other) for other in cuts if time(other) <= fastest * (1 + slack))
        fewer += count(cut) < count(shares(11, 3, speeds))
    assert fewer


def test_many_shards_are_shared_out_quickly() -> None:
    cut = shares(256, 64)
    assert [len(part) for part in cut] == [4] * 64
    assert sum(len(subtrees(part, 256)) for part in cut) == 64


@pytest.mark.parametrize("leaves", [0, -3])
def test_a_minibatch_has_a_shard(leaves: int) -> None:
    with pytest.raises(ConfigurationError, match=f"at least one shard; got {leaves}"):
        shares(leaves, 2)
    with pytest.raises(ConfigurationError, match=f"at least one device; got {leaves}"):
        shares(2, leaves)


def test_more_ranks_than_shards_are_refused_with_the_option_that_helps() -> None:
    with pytest.raises(ConfigurationError, match="9 devices cannot share 8 shards") as caught:
        shares(8, 9)
    assert "--shards 9" in str(caught.value)
    assert "Recipe(shards=9)" in str(caught.value)


@pytest.mark.parametrize(
    "speeds", [[1.0], [1.0, 0.0], [1.0, -1.0], [1.0, float("inf")], [float("nan"), 1.0], [1, 2, 3]]
)
def test_speeds_that_cannot_be_are_refused(speeds: list[float]) -> None:
    with pytest.raises(ConfigurationError, match="2 positive numbers"):
        shares(8, 2, speeds)


# additions


@pytest.mark.parametrize("leaves", range(1, MOST + 1))
def test_additions_follow_the_tree_whatever_is_absent(leaves: int) -> None:
    """Random cuts into ranges, some of whose leaves are absent, give the nested sum that the definition gives."""
    draw = random.Random(leaves)
    for _ in range(60):
        absent = {leaf for leaf in range(leaves) if draw.random() < draw.choice([0, 0.3, 0.8])}
        parts: dict[int, object] = {leaf: leaf for leaf in range(leaves) if leaf not in absent}
        if not parts:
            continue
        ranks = draw.randint(1, leaves)
        inner = sorted(draw.sample(range(1, leaves), ranks - 1))
        cut = [range(a, b) for a, b in itertools.pairwise((0, *inner, leaves))]
        held = [node for part in cut for node in subtrees(part, leaves)]
        held = [node for node in held if any(leaf in parts for leaf in leaves_of(node, leaves))]
        values = [nested_sum(parts, leaves, node.level, node.number) for node in held]
        for i, j in additions(held, leaves):
            values[i] = (values[i], values[j])
        assert values[0] == nested_sum(parts, leaves, height(leaves), 0)


def test_additions_of_one_node_are_none() -> None:
    assert additions([Node(0, 4)], 8) == []
    assert additions([], 8) == []


def test_additions_use_each_position_once() -> None:
    for leaves in range(2, MOST + 1):
        steps = additions([Node(0, leaf) for leaf in range(leaves)], leaves)
        assert sorted(j for _, j in steps) == list(range(1, leaves))  # each is taken into another exactly once
        for at, (i, _) in enumerate(steps):
            assert i not in [j for _, j in steps[:at]]  # and not added to after that


# tree_sum


@pytest.mark.parametrize("leaves", range(MOST + 1))
def test_tree_sum_follows_the_tree(leaves: int) -> None:
    """Numbers of mixed size, so that another order of additions gives other bits."""

    def add(value: object) -> float:
        return add(value[0]) + add(value[1]) if isinstance(value, tuple) else float(str(value))

    draw = random.Random(leaves)
    for _ in range(50):
        numbers = [
            None if draw.random() < 0.2 else draw.uniform(-1, 1) * 10 ** draw.randint(0, 9) for _ in range(leaves)
        ]
        parts: dict[int, object] = {leaf: number for leaf, number in enumerate(numbers) if number is not None}
        expected = add(nested_sum(parts, leaves, height(leaves), 0)) if parts else 0.0
        assert tree_sum(numbers) == expected


def test_tree_sum_depends_on_the_order_that_the_tree_gives() -> None:
    """The check above can fail: from left to right the same numbers give something else."""
    a, b, c, d = 1e16, 1.0, -1e16, 1.0
    assert tree_sum([a, b, c, d]) == (a + b) + (c + d) == 0.0
    assert ((a + b) + c) + d == 1.0


def test_tree_sum_adds_no_zero() -> None:
    assert str(tree_sum([None, -0.0, None])) == "-0.0"
    assert str(tree_sum([-0.0, None, -0.0])) == "-0.0"
    assert tree_sum([]) == tree_sum([None, None]) == 0.0
    assert tree_sum(iter([1.0, 2.0])) == 3.0
