"""Who may read when: random interleavings against the definitions, with clocks recorded."""

from __future__ import annotations

import random

import pytest

from samegrad.errors import ConfigurationError, RequestRefused
from samegrad.kvstore.consistency import AHEAD, Clocks, Consistency
from samegrad.recipe import Mode


def run(consistency: Consistency, workers: int, seed: int, pushes: int = 12) -> list[tuple[int, list[int]]]:
    """Workers push and pull in turns, in random order; (clock of the reader, all clocks) at each read."""
    random_, clocks = random.Random(seed), Clocks(consistency, workers)
    reads = []
    wants = [False] * workers
    pushed: dict[int, set[int]] = {}
    while any(count < pushes for count in clocks.counts) or any(wants):
        able = [
            worker
            for worker in range(workers)
            if (clocks.may_read(worker, clocks.counts[worker]) if wants[worker] else clocks.counts[worker] < pushes)
        ]
        assert able, f"nobody can go on at {clocks.counts}"
        worker = random_.choice(able)
        step = clocks.counts[worker] + (not wants[worker])
        if wants[worker]:
            reads.append((step, list(clocks.counts)))
            clocks.pull(worker, step)
        else:
            clocks.check_push(worker, step)
            assert clocks.push(worker, step)
            pushed.setdefault(step, set()).add(worker)
            if consistency.is_sync and len(pushed[step]) == workers:
                clocks.complete(step)
        wants[worker] = not wants[worker]
    return reads


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(5))
def test_in_sync_all_have_pushed_what_is_read(workers: int, seed: int) -> None:
    reads = run(Consistency("sync"), workers, seed)
    assert len(reads) == 12 * workers
    assert all(min(counts) >= clock for clock, counts in reads)
    assert all(max(counts) - min(counts) <= 1 for _, counts in reads)


@pytest.mark.parametrize("staleness", [0, 1, 3])
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(5))
def test_in_stale_nobody_reads_further_ahead_than_the_bound(workers: int, staleness: int, seed: int) -> None:
    reads = run(Consistency("stale", staleness), workers, seed)
    assert all(clock - min(counts) <= staleness for clock, counts in reads)


def test_the_bound_of_stale_is_reached() -> None:
    gaps = {clock - min(counts) for seed in range(20) for clock, counts in run(Consistency("stale", 2), 3, seed)}
    assert gaps == {0, 1, 2}


def test_in_async_nobody_waits() -> None:
    reads = [read for seed in range(20) for read in run(Consistency("async"), 3, seed)]
    assert max(clock - min(counts) for clock, counts in reads) > 3


@pytest.mark.parametrize("mode", ["stale", "async"])
def test_a_worker_reads_its_own_pushes(mode: Mode) -> None:
    clocks = Clocks(Consistency(mode, 5 if mode == "stale" else 0), 2)
    assert not clocks.may_read(0, 1)
    clocks.push(0, 1)
    assert clocks.may_read(0, 1)


def test_who_has_left_is_not_waited_for() -> None:
    clocks = Clocks(Consistency("stale", 1), 3)
    for step in (1, 2):
        clocks.push(0, step)
    clocks.push(1, 1)
    assert not clocks.may_read(0, 2)
    clocks.leave(2)
    assert clocks.may_read(0, 2)
    clocks.leave(1)
    clocks.leave(0)
    assert clocks.lag(0, 2) == 0


def test_who_waits_at_a_barrier_is_not_waited_for_and_behind_it_all_are_as_far() -> None:
    clocks = Clocks(Consistency("stale", 1), 2)
    for step in (1, 2, 3):
        clocks.push(0, step)
    assert not clocks.may_read(0, 3)
    assert clocks.late(0, 3) == [1]
    clocks.come(1)
    assert clocks.may_read(0, 3)
    assert clocks.late(0, 3) == []
    clocks.push(1, 1)  # it does not wait there
    assert not clocks.may_read(0, 3)
    clocks.push(1, 2)
    clocks.come(0)
    for worker in (0, 1):
        clocks.go(worker)
    assert clocks.lag(0, 3) == 0  # worker 1 has come with none, and pushed two since
    assert clocks.lag(1, 2) == 2
    clocks.push(0, 4)
    assert clocks.lag(1, 2) == 1


def test_a_push_that_comes_again_counts_once() -> None:
    for mode in ("stale", "async"):
        clocks = Clocks(Consistency(mode), 1)
        assert [clocks.push(0, step) for step in (1, 1, 2, 1, 2)] == [True, False, True, False, False]
    clocks = Clocks(Consistency("sync"), 2)
    assert clocks.push(0, 1)
    assert clocks.push(0, 1)  # another contribution to the same step
    clocks.push(1, 1)
    clocks.complete(1)
    assert not clocks.push(0, 1)


def test_what_cannot_be_is_refused() -> None:
    clocks = Clocks(Consistency("sync"), 2)
    with pytest.raises(RequestRefused, match="push 2 of worker 0 came, but its push 1 did not"):
        clocks.check_push(0, 2)
    for step in range(1, AHEAD + 1):
        clocks.check_push(0, step)
        clocks.push(0, step)
    with pytest.raises(RequestRefused, match=f"is {AHEAD + 1} ahead of the last one that all workers have made"):
        clocks.check_push(0, AHEAD + 1)
    clocks.pull(1, 3)
    with pytest.raises(RequestRefused, match="worker 1 pulls at clock 2 after it has pulled at clock 3"):
        clocks.check_pull(1, 2)


@pytest.mark.parametrize(
    ("mode", "staleness", "text"),
    [
        ("bsp", 0, "must be one of sync, stale, async; got 'bsp'"),
        ("stale", -1, "at least 0; got -1"),
        ("stale", True, "at least 0; got True"),
        ("sync", 2, "mode 'sync' takes none"),
    ],
)
def test_a_consistency_is_checked(mode: str, staleness: int, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Consistency(mode, staleness)  # type: ignore[arg-type]
