"""The running sum of one rank equals, bit for bit, the obvious recursive one: for every range, absence and place."""

from __future__ import annotations

import random
import weakref
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from samegrad.shards import Node, leaves_of, subtrees
from samegrad.summation import RunningSum, Value

MOST = 17
SHAPES = ((3,), (), (2, 2), (0,))


def equal_bits(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether both are absent, or have the same dtype, shape and bits."""
    if a is None or b is None:
        return a is b
    same_kind = a.dtype == b.dtype and a.shape == b.shape
    return same_kind and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def minus_zeros(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.full(tuple(shape), complex(-0.0, -0.0) if dtype.is_complex else -0.0, dtype=dtype)


def plus(a: Tensor, b: Tensor) -> Tensor:
    """Complex numbers as pairs."""
    return torch.view_as_complex(torch.view_as_real(a) + torch.view_as_real(b)) if a.is_complex() else a + b


def reference(values: Sequence[Value | None], node: Node) -> Value | None:
    """The value of `node`, by the definition: left plus right, where what is absent is left out."""
    level, number = node
    if number << level >= len(values):
        return None
    if level == 0:
        return values[number]
    left = reference(values, Node(level - 1, 2 * number))
    right = reference(values, Node(level - 1, 2 * number + 1))
    if left is None or right is None:
        return right if left is None else left
    return [b if a is None else a if b is None else plus(a, b) for a, b in zip(left, right, strict=True)]


def random_values(leaves: int, draw: random.Random, dtype: torch.dtype = torch.float32) -> list[Value | None]:
    """One value per leaf with numbers of mixed size, zeros of both signs, parameters not used, and absent leaves."""
    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    lonely, rare = draw.choice([0, 0.3, 0.7]), draw.choice([0, 0.3, 0.7])

    def part(shape: tuple[int, ...]) -> Tensor | None:
        if draw.random() < rare:
            return None
        scale = 0.0 if draw.random() < 0.3 else 10.0 ** draw.randint(-3, 3)  # times 0 leaves zeros of both signs
        return torch.randn(shape, dtype=dtype, generator=generator) * scale

    return [None if draw.random() < lonely else [part(shape) for shape in SHAPES] for _ in range(leaves)]


def copied(value: Value | None) -> Value | None:
    return None if value is None else [None if part is None else part.clone() for part in value]


def summed(
    values: Sequence[Value | None], held: range, places: list[list[Tensor]] | None = None, siblings: bool = False
) -> list[tuple[Node, Value]]:
    """What a `RunningSum` makes of the `held` ones of `values`; with `siblings`, a right one is added by us."""
    running = RunningSum(held, len(values), None if places is None else places.__getitem__)
    for shard in held:
        sibling = running.take_sibling(shard) if siblings else None
        value = copied(values[shard])
        if sibling is None:
            running.add(shard, value)
        elif value is None:
            running.add(shard, sibling, with_sibling=True)
        else:  # what autograd does when `.grad` holds the sibling's gradient
            both = [b if a is None else a if b is None else a.add_(b) for a, b in zip(sibling, value, strict=True)]
            running.add(shard, both, with_sibling=True)
    return running.values()


def check(values: Sequence[Value | None], held: range, dtype: torch.dtype = torch.float32) -> None:
    nodes = subtrees(held, len(values))
    expected = [(node, value) for node in nodes if (value := reference(values, node)) is not None]
    for siblings in (False, True):
        # A place starts with what must not be seen.
        places = [[torch.full(shape, float("nan"), dtype=dtype) for shape in SHAPES] for _ in nodes]
        for given in (None, places):
            found = summed(values, held, given, siblings)
            assert [node for node, _ in found] == [node for node, _ in expected]
            for (node, value), (_, wanted) in zip(found, expected, strict=True):
                where = (len(values), held, node, siblings, given is not None)
                assert all(map(equal_bits, value, wanted)), where
                if given is not None:
                    place = given[nodes.index(node)]
                    written = [minus_zeros(s, dtype) if w is None else w for s, w in zip(SHAPES, wanted, strict=True)]
                    assert all(map(equal_bits, place, written)), where
                    assert all(part is None or part is home for part, home in zip(value, place, strict=True)), where


@pytest.mark.parametrize("leaves", range(1, MOST + 1))
def test_every_range_of_shards_gives_the_sums_of_its_subtrees(leaves: int) -> None:
    draw = random.Random(leaves)
    values = random_values(leaves, draw)
    for start in range(leaves):
        for stop in range(start + 1, leaves + 1):
            check(values, range(start, stop))


@pytest.mark.parametrize("leaves", [1, 2, 3, 5, 8, 11, 16, 17])
def test_absent_shards_and_unused_parameters_add_nothing(leaves: int) -> None:
    draw = random.Random(100 + leaves)
    for _ in range(30):
        start = draw.randrange(leaves)
        check(random_values(leaves, draw), range(start, draw.randint(start + 1, leaves)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.complex64])
def test_every_kind_of_number(dtype: torch.dtype) -> None:
    draw = random.Random(3)
    for leaves in (1, 3, 8):
        check(random_values(leaves, draw, dtype), range(leaves), dtype)


def test_the_order_of_additions_matters_and_is_that_of_the_tree() -> None:
    """The checks above can fail: adding the same numbers from left to right gives other bits."""
    values: list[Value | None] = [[torch.tensor([x])] for x in (1e8, 1.0, -1e8, 1.0)]
    ((_, total),) = summed(values, range(4))
    (
        (
            _,
            first,
        ),
        (_, second),
    ) = summed(values, range(3))
    assert equal_bits(total[0], torch.tensor([0.0]))
    assert equal_bits(first[0], torch.tensor([1e8]))
    assert equal_bits(second[0], torch.tensor([-1e8]))


def test_a_negative_zero_stays_negative_beside_what_is_absent() -> None:
    minus = torch.tensor([-0.0])
    cases: list[list[Value | None]] = [
        [[minus], None],
        [None, [minus]],
        [[minus], [None]],
        [[None], [minus]],
        [[minus], [minus]],
    ]
    for values in cases:
        for places in (None, [[torch.tensor([7.0])]]):
            for siblings in (False, True):
                ((_, total),) = summed(values, range(2), places, siblings)
                assert equal_bits(total[0], minus)


def test_without_a_present_shard_there_is_no_value() -> None:
    place = [torch.tensor([7.0])]
    assert summed([None] * 5, range(5)) == []
    assert summed([None] * 5, range(5), [place]) == []
    assert place[0].item() == 7.0  # nor is anything written
    ((node, value),) = summed([[None], None, [None]], range(3))
    assert (node, value) == (Node(2, 0), [None])


def test_a_sibling_is_lent_to_the_shard_that_it_is_added_to_and_to_no_other() -> None:
    running = RunningSum(range(1, 6), 8)  # {1} | {2 3} | {4 5}
    lent = []
    for shard in range(1, 6):
        sibling = running.take_sibling(shard)
        lent.append(sibling is not None)
        running.add(shard, sibling or [torch.tensor([float(shard)])], with_sibling=sibling is not None)
    assert lent == [False, False, True, False, True]


def test_a_sum_that_has_a_place_of_its_own_is_not_made_elsewhere() -> None:
    places = [[torch.empty(1)], [torch.empty(1)]]
    running = RunningSum(range(6), 8, places.__getitem__)  # {0 1 2 3} | {4 5}
    lent = []
    for shard in range(6):
        sibling = running.take_sibling(shard)
        lent.append(sibling is not None)
        running.add(shard, sibling or [torch.tensor([float(shard)])], with_sibling=sibling is not None)
    assert lent == [False, True, False, True, False, False]
    assert [leaves_of(node, 8) for node, _ in running.values()] == [range(4), range(4, 6)]


def test_an_absent_sibling_is_not_lent() -> None:
    running = RunningSum(range(2), 2)
    running.add(0, None)
    assert running.take_sibling(1) is None


def test_at_most_one_value_for_each_level_is_alive() -> None:
    """What the sum holds on to is bounded by the height of the tree, not by the number of shards."""
    running = RunningSum(range(64), 64)
    tensors: list[weakref.ref[Tensor]] = []
    for shard in range(64):
        tensor = torch.ones(1)
        tensors.append(weakref.ref(tensor))
        running.add(shard, [tensor])
        del tensor
        assert sum(ref() is not None for ref in tensors) <= 7


def test_complex_numbers_are_pairs() -> None:
    """torch's own addition multiplies one operand by 1 first, which spoils infinities and signs of zeros."""
    spoilt = [complex(-0.0, 0.0), complex(1, float("inf")), complex(0.0, -0.0), complex(-0.0, -1)]
    for place in (None, lambda _: [torch.empty(4, dtype=torch.complex64)]):
        for order in ((0, 1), (1, 0)):
            running = RunningSum(range(2), 2, place)
            parts = [torch.tensor(spoilt, dtype=torch.complex64), minus_zeros((4,), torch.complex64)]
            for shard, which in enumerate(order):
                running.add(shard, [parts[which].clone()])
            ((_, (total,)),) = running.values()
            assert equal_bits(total, parts[0])
