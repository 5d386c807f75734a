"""Cuts that follow measured speeds, on made-up times."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import pytest

from samegrad.shards import shares, subtrees
from samegrad.trainer.balancing import Balance, StepTimes

Cut = Sequence[range]


def sizes(cut: Cut) -> list[int]:
    return [len(held) for held in cut]


def run(
    balance: Balance,
    steps: int,
    of_a_shard: Callable[[int], Sequence[float]],
    exchange: Callable[[Cut], float] = lambda _: 0.0,
    noise: float = 0.0,
) -> list[tuple[int, list[int]]]:
    """The changes of the cut, each with the step after which it came. of_a_shard: seconds by rank, in each step."""
    generator, changes = random.Random(0), []
    whole = 0.0
    for step in range(steps):
        computing = tuple(
            len(held) * seconds * (1 + noise * generator.random())
            for held, seconds in zip(balance.cut, of_a_shard(step), strict=True)
        )
        before, whole = whole, max(computing) + exchange(balance.cut)
        if balance.told(StepTimes(computing, before)):
            changes.append((step, sizes(balance.cut)))
    return changes


def test_ranks_get_shards_in_proportion_to_their_speed() -> None:
    balance = Balance(28, 3)
    assert sizes(balance.cut) == sizes(shares(28, 3))
    changes = run(balance, 500, lambda _: (0.1, 0.2, 0.4), noise=0.03)
    assert changes == [(4, [16, 8, 4])]


def test_equal_ranks_keep_equal_shares_whatever_the_noise() -> None:
    assert run(Balance(8, 2), 2000, lambda _: (0.1, 0.1), noise=0.3) == []
    assert run(Balance(28, 4), 2000, lambda _: (0.1,) * 4, noise=0.1) == []


def test_what_is_hardly_worth_it_is_left() -> None:
    """15 + 13 would be 4 % faster than 14 + 14."""
    assert run(Balance(28, 2), 500, lambda _: (0.1, 0.112)) == []
    assert run(Balance(28, 2), 500, lambda _: (0.1, 0.117)) == [(4, [15, 13])]


def test_of_cuts_that_are_nearly_as_fast_the_one_with_the_least_to_exchange_is_taken() -> None:
    """The fastest would be 171 + 85, of five subtrees and four; 172 + 84 are four and three."""
    balance = Balance(256, 2)
    run(balance, 100, lambda _: (0.1, 0.2))
    assert sum(len(subtrees(held, 256)) for held in balance.cut) < sum(
        len(subtrees(held, 256)) for held in shares(256, 2, (2, 1))
    )
    assert 168 <= len(balance.cut[0]) <= 176


def test_a_rank_that_becomes_slow_and_fast_again_is_followed() -> None:
    def of_a_shard(step: int) -> tuple[float, float]:
        return (0.1, 2.0) if 100 <= step < 400 else (0.1, 0.1)

    changes = run(Balance(16, 2), 1000, of_a_shard)
    assert [after for _, after in changes] == [[15, 1], [8, 8]]
    assert 100 <= changes[0][0] < 125
    assert 400 <= changes[1][0] < 425


def test_a_single_slow_step_is_not_followed() -> None:
    assert run(Balance(16, 2), 300, lambda step: (0.1, 5.0 if step % 40 == 7 else 0.1)) == []


def test_a_cut_that_has_too_much_to_exchange_is_given_up_and_tried_ever_more_seldom() -> None:
    equal = sizes(shares(16, 2))
    changes = run(Balance(16, 2), 3000, lambda _: (0.1, 0.15), exchange=lambda cut: 0.0 if sizes(cut) == equal else 3.0)
    assert [after for _, after in changes[:4]] == [[10, 6], [8, 8]] * 2
    spent = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(changes)]
    assert max(spent) >= 320
    assert len(changes) < 20


def test_all_times_may_be_zero() -> None:
    assert run(Balance(4, 2), 50, lambda _: (0.0, 0.0)) == []


def test_where_it_may_not_change_it_waits() -> None:
    balance = Balance(8, 2)
    times = StepTimes((1.0, 3.0), 3.0)
    assert not any(balance.told(times, may_change=False) for _ in range(1000))
    assert not balance.told(None, may_change=False)
    assert balance.told(None)
    assert sizes(balance.cut) == [6, 2]


def test_steps_without_whole_shards_count_for_nothing() -> None:
    balance = Balance(8, 2)
    assert not any(balance.told(None) for _ in range(100))
    assert [balance.told(StepTimes((1.0, 3.0), 3.0)) for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize("ranks", [1, 3, 8])
def test_every_rank_always_has_a_shard(ranks: int) -> None:
    balance = Balance(8, ranks)
    run(balance, 300, lambda step: [10.0 ** ((rank * 7 + step // 50) % 5) for rank in range(ranks)])
    assert all(balance.cut)
    assert [shard for held in balance.cut for shard in held] == list(range(8))
