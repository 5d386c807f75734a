"""Where values lie: the same for all who ask, everything exactly once, balanced within the stated bound."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest

from samegrad.errors import ConfigurationError
from samegrad.kvstore.placement import (
    LINK_SLICE_BYTES,
    SLICE_BYTES,
    UNIT_BYTES,
    WHOLE_BYTES,
    Extent,
    Key,
    Slice,
    imbalance,
    place,
)

SIZES = [0, 1, 3, WHOLE_BYTES // 4, WHOLE_BYTES // 4 + 1, 1 << 18, (1 << 18) + 1, 1 << 20, 3_000_000]


def loads(placed: dict[Key, list[Slice]], values: Sequence[Extent], servers: int) -> list[int]:
    itemsizes = {value.key: value.itemsize for value in values}
    found = [0] * servers
    for each in itertools.chain(*placed.values()):
        (server,) = each.servers
        found[server] += (each.stop - each.start) * itemsizes[each.key]
    return found


def random_values(random_: random.Random) -> list[Extent]:
    count = random_.randrange(1, 40)
    keys: list[Key] = [key if random_.random() < 0.5 else f"layer{key}.weight" for key in range(count)]
    return [
        Extent(key, random_.choice([*SIZES, random_.randrange(200_000)]), random_.choice([1, 4, 8])) for key in keys
    ]


@pytest.mark.parametrize("servers", range(1, 10))
@pytest.mark.parametrize("longest", [SLICE_BYTES, LINK_SLICE_BYTES, WHOLE_BYTES])
@pytest.mark.parametrize("numel", SIZES)
def test_slices_are_contiguous_and_cover_the_value(numel: int, servers: int, longest: int) -> None:
    slices = place([Extent("w", numel, 4)], servers, longest)["w"]
    assert slices[0].start == 0
    assert slices[-1].stop == numel
    assert all(a.stop == b.start for a, b in itertools.pairwise(slices))
    assert all((each.stop - each.start) * 4 <= longest for each in slices)
    assert all(each.start * 4 % UNIT_BYTES == 0 for each in slices)
    if 0 < numel * 4 <= WHOLE_BYTES:
        assert len(slices) == 1
    if numel * 4 > WHOLE_BYTES:
        assert {each.servers for each in slices} == {(server,) for server in range(servers)}


@pytest.mark.parametrize("servers", range(1, 10))
@pytest.mark.parametrize("seed", range(8))
def test_servers_are_balanced_within_the_bound(seed: int, servers: int) -> None:
    values = random_values(random.Random(f"{seed} {servers}"))
    found = loads(place(values, servers), values, servers)
    assert sum(found) == sum(value.nbytes for value in values)
    assert max(found) - min(found) <= imbalance(values) <= WHOLE_BYTES


@pytest.mark.parametrize("seed", range(5))
def test_the_order_in_which_values_are_listed_does_not_matter(seed: int) -> None:
    random_ = random.Random(seed)
    values = random_values(random_)
    placed = place(values, 3)
    random_.shuffle(values)
    assert place(values, 3) == placed
    assert list(place(values, 3)) == [value.key for value in values]


def test_small_values_that_come_alone_are_spread_over_servers() -> None:
    servers = {place([Extent(f"bias{number}", 10, 4)], 4)[f"bias{number}"][0].servers for number in range(60)}
    assert servers == {(0,), (1,), (2,), (3,)}


def test_on_a_link_the_ends_of_a_long_part_are_cut_shorter() -> None:
    lengths = [
        4 * (each.stop - each.start) >> 10 for each in place([Extent("w", 2_000_000, 4)], 1, LINK_SLICE_BYTES)["w"]
    ]
    assert lengths == [128, 256, 512, 1024, 1024, 1024, 1024, 1024, 900, 512, 256, 128]
    of_two = place([Extent("w", 2_000_000, 4)], 2, LINK_SLICE_BYTES)["w"]
    assert {4 * (of_two[at].stop - of_two[at].start) for at in (0, 8, 9)} == {128 << 10}
    short = place([Extent("w", 900_000, 4)], 1, LINK_SLICE_BYTES)["w"]
    assert {4 * (each.stop - each.start) for each in short[:-1]} == {LINK_SLICE_BYTES}


def test_the_place_is_what_it_was() -> None:
    """Workers of different processes and machines must agree: nothing may depend on Python's own hashes."""
    placed = place([Extent("w", 40_000, 4), Extent("v", 20_000, 4), Extent(3, 5, 4), Extent("3", 5, 4)], 2)
    assert placed["w"] == [Slice("w", 0, 20_480, (1,)), Slice("w", 20_480, 40_000, (0,))]
    assert placed["v"] == [Slice("v", 0, 10_240, (0,)), Slice("v", 10_240, 20_000, (1,))]
    assert placed[3] == [Slice(3, 0, 5, (0,))]
    assert placed["3"] == [Slice("3", 0, 5, (0,))]


def test_a_value_of_more_than_two_to_the_31_elements_is_placed_without_allocating() -> None:
    numel = (1 << 31) + 12_345
    for servers in (1, 2, 3):
        slices = place([Extent("huge", numel, 1)], servers)["huge"]
        assert slices[-1].stop == numel
        assert sum(each.stop - each.start for each in slices) == numel


@pytest.mark.parametrize("key", [None, 1.5, True, "x" * 513, 1 << 63, b"x"])
def test_a_key_is_text_or_a_number(key: object) -> None:
    with pytest.raises(ConfigurationError, match="a key is text"):
        Extent(key, 1, 4)  # type: ignore[arg-type]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one server; got 0"):
        place([], 0)
    for length in (0, -UNIT_BYTES, UNIT_BYTES + 1):
        with pytest.raises(ConfigurationError, match=f"whole units of 4096 bytes; got {length} bytes"):
            place([Extent("w", 1, 4)], 1, length)
    with pytest.raises(ConfigurationError, match="'w' is listed twice"):
        place([Extent("w", 1, 4), Extent("w", 2, 4)], 1)
    with pytest.raises(ConfigurationError, match="of 3 bytes cannot be"):
        Extent("w", 1, 3)
