"""The binary tree over the shards of a minibatch, and the cut of the shards over ranks. Pure: no torch, no I/O.

A minibatch is cut into `leaves` shards, numbered 0..leaves-1. Their gradients are added along one binary tree, which
depends on the number of shards alone: neighbours in pairs, then pairs of pairs; a lone last node moves up unchanged.
Node (level h, number i) covers the leaves [i * 2^h, (i + 1) * 2^h) that exist. With five shards:

    level 3  (root)               [0 1 2 3 4]
    level 2              [0 1 2 3]           [4]        <- moves up unchanged
    level 1         [0 1]       [2 3]        [4]        <- moves up unchanged
    level 0        [0] [1]     [2] [3]       [4]

A leaf without examples is absent: its sibling moves up unchanged, exactly as a lone node does. So absent leaves and
leaves that do not exist are the same thing, and nothing is ever added to a zero (which would turn -0.0 into 0.0).

Ranks hold contiguous ranges of shards, which need not be subtrees. A rank adds up the whole subtrees inside its range
and contributes those: 8 shards on 3 ranks give {01}{2} | {3}{45} | {67}.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from samegrad.errors import ConfigurationError

__all__ = ["Node", "additions", "even", "height", "leaves_of", "shares", "subtrees", "tree_sum"]


class Node(NamedTuple):
    """A node of the tree: `number` from the left (from 0) on its `level`, where leaves are level 0."""

    level: int
    number: int


def height(leaves: int) -> int:
    """Level of the root of the tree over `leaves` leaves."""
    return max(leaves - 1, 0).bit_length()


def leaves_of(node: Node, leaves: int) -> range:
    """The leaves that `node` covers in the tree over `leaves` leaves."""
    start = node.number << node.level
    return range(min(start, leaves), min(start + (1 << node.level), leaves))


def even(total: int, parts: int) -> list[range]:
    """Cuts `total` things into `parts` contiguous ranges whose sizes differ by at most one, larger ones first."""
    size, longer = divmod(total, parts)
    starts = [part * size + min(part, longer) for part in range(parts + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(starts)]


def subtrees(held: range, leaves: int) -> list[Node]:
    """The largest nodes whose leaves all lie in `held`, from left to right; together they cover it exactly once."""
    nodes, start, top = [], held.start, height(leaves)
    while start < held.stop:
        node = Node(0, start)
        while node.level < top:
            parent = Node(node.level + 1, node.number // 2)
            covered = leaves_of(parent, leaves)
            if covered.start < start or covered.stop > held.stop:
                break
            node = parent
        nodes.append(node)
        start = leaves_of(node, leaves).stop
    return nodes


def shares(leaves: int, ranks: int, speeds: Sequence[float] | None = None, slack: float = 0.0) -> list[range]:
    """Cuts the leaves over the ranks in proportion to their `speeds` (equal when None), at least one leaf each.

    The slowest rank ends as early as possible; of the cuts that are equally fast, the one with the fewest subtrees is
    taken, since every subtree is exchanged; of those, the one that gives the first ranks the most leaves.
    slack: how much longer than the fastest cut takes, as a part of that, still counts as equally fast.

    Raises ConfigurationError for no leaves or ranks, more ranks than leaves, or speeds that are not positive.
    """
    if leaves < 1:
        raise ConfigurationError(f"a minibatch is cut into at least one shard; got {leaves}")
    if ranks < 1:
        raise ConfigurationError(f"shards are shared out over at least one device; got {ranks}")
    if ranks > leaves:
        raise ConfigurationError(
            f"{ranks} devices cannot share {leaves} shards: a device needs at least one. Use at most {leaves} "
            f"devices, or cut the minibatch finer with --shards {ranks} (Recipe(shards={ranks})); that is another "
            f"recipe, with another result"
        )
    rates = [1.0] * ranks if speeds is None else [float(speed) for speed in speeds]
    if len(rates) != ranks or not all(0 < rate < float("inf") for rate in rates):
        raise ConfigurationError(f"shares need {ranks} positive numbers, one for each device; got {speeds}")
    most = _largest_sizes(leaves, rates, slack)
    count_subtrees = functools.cache(lambda start, stop: len(subtrees(range(start, stop), leaves)))
    spare = sum(most) - leaves
    # best[stop]: (subtrees, negated sizes) of the best way to give the leaves before `stop` to the ranks so far.
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, ())}
    for limit in most:
        following: dict[int, tuple[int, tuple[int, ...]]] = {}
        for start, (count, sizes) in best.items():
            for size in range(max(1, limit - spare), limit + 1):
                stop = start + size
                if stop <= leaves:
                    way = (count + count_subtrees(start, stop), (*sizes, -size))
                    following[stop] = min(way, following.get(stop, way))
        best = following
    ranges, start = [], 0
    for size in best[leaves][1]:
        ranges.append(range(start, start - size))
        start -= size
    return ranges


def _largest_sizes(leaves: int, rates: Sequence[float], slack: float) -> list[int]:
    """How many leaves each rank may hold without ending later than the best possible time for all `leaves`, but for
    `slack` times that time."""
    times = sorted({size / rate for rate in rates for size in range(1, leaves + 1)})
    first, last = 0, len(times) - 1
    while first < last:
        middle = (first + last) // 2
        if sum(_sizes_within(times[middle], leaves, rates)) >= leaves:
            last = middle
        else:
            first = middle + 1
    return _sizes_within(times[first] * (1 + slack), leaves, rates)


def _sizes_within(time: float, leaves: int, rates: Sequence[float]) -> list[int]:
    sizes = []
    for rate in rates:
        size = min(int(time * rate) + 1, leaves)
        while size > 1 and size / rate > time:  # the very division that made `times`, so that rounding cannot matter
            size -= 1
        sizes.append(size)
    return sizes


def additions(held: Sequence[Node], leaves: int) -> list[tuple[int, int]]:
    """The additions that turn the values of `held` into the value of the root, in order.

    (i, j) means: the value at position i becomes itself plus the value at position j. The root's value ends at
    position 0. `held` lists disjoint nodes from left to right; what they do not cover is absent.
    """
    steps: list[tuple[int, int]] = []
    alive: dict[int, int] = {}  # number of a node on the current level -> position that holds its value
    for level in range(height(leaves) + 1):
        alive |= {node.number: position for position, node in enumerate(held) if node.level == level}
        if level < height(leaves):
            above: dict[int, int] = {}
            for number in sorted(alive):
                if number // 2 in above:
                    steps.append((above[number // 2], alive[number]))
                else:
                    above[number // 2] = alive[number]
            alive = above
    return steps


def tree_sum(values: Iterable[float | None]) -> float:
    """The sum of one number per leaf along the tree (None is absent); 0.0 if all are absent."""
    level: list[float | None] = list(values)
    while len(level) > 1:
        pairs = zip(level[::2], [*level[1::2], None], strict=False)
        level = [b if a is None else a if b is None else a + b for a, b in pairs]
    return level[0] if level and level[0] is not None else 0.0
