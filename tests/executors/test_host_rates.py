from __future__ import annotations

import time
from typing import Any

import pytest

from samegrad.errors import GroupError
from samegrad.executors import host_memory
from samegrad.executors.host_rates import _LEAST_ADDITION, _host, measure_host
from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.schedules import ALGORITHMS, Cut, build_for
from samegrad.simulator.shared_host import Addition, SharedHost, SharedWork
from samegrad.testing import run_ranks


def works(ranks: int, nbytes: float) -> list[SharedWork]:
    """What all algorithms make ranks do that hold two leaves each, or three."""
    cuts = [
        Cut.of([range(each * rank, each * (rank + 1)) for rank in range(ranks)], each * ranks, 0) for each in (2, 3)
    ]
    return [
        SharedWork.of(build_for(name, cut), nbytes)
        for name in ALGORITHMS
        if ALGORITHMS[name].helpers == 0
        for cut in cuts
    ]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("nbytes", [4, 5000, 600_000])
def test_all_ranks_find_the_same_times_of_all_additions(ranks: int, nbytes: int) -> None:
    wanted = works(ranks, nbytes)

    def measured(group: SharedMemoryGroup) -> SharedHost:
        return measure_host(group, wanted, nbytes)

    found = run_ranks(ranks, measured)
    for _ in range(4):
        if max(found[0].together.values()) > 0:
            break
        # Something else has computed, and ranks had to wait for each other longer than they have added.
        found = run_ranks(ranks, measured)
    first, *others = found
    assert all(other == first for other in others)
    assert (first.ranks, first.meeting_s > 0, first.starting_s >= 0) == (ranks, True, True)
    for work in wanted:
        assert work.together <= set(first.together)
        assert work.alone <= set(first.alone)
        assert 0 < first.seconds(work) < 1
    assert all(seconds >= 0 for times in (first.alone, first.together) for seconds in times.values())
    if nbytes > 100_000:
        assert max(first.together.values()) > 1e-6


def test_large_buffers_are_measured_in_part_and_scaled() -> None:
    wanted = works(2, 1e9)[:1]
    start = time.perf_counter()
    run_ranks(2, lambda group: measure_host(group, wanted, 1e9))
    assert time.perf_counter() - start < 20


def test_times_are_those_of_the_last_rank_without_the_meeting_and_scaled() -> None:
    addition = Addition("own + peer > shared", 1000)
    wanted = [(None, True), (_LEAST_ADDITION, True), (addition, True), (addition, False)]

    def record(rank: int, cores: int) -> dict[str, Any]:
        """Rank 1 comes a second later to each meeting and takes a second more."""
        ends = [(rank, 3.0), (rank, 4.0), (rank, 9.0 + rank), (rank, 5.0 + 50 * rank)]
        return {"times": [[pair] * 4 for pair in ends], "starting": [10.0 + rank], "cores": cores}

    found = _host([record(rank, 2) for rank in range(2)], wanted, 3.0)
    assert (found.meeting_s, found.starting_s) == (2.0, 11.0 - 3.0)
    assert found.together[addition] == (10.0 - 1.0 - 2.0) * 3
    assert found.alone[addition] == (5.0 - 1.0 - 2.0) * 3
    assert _host([record(rank, 1) for rank in range(2)], wanted, 3.0).together[addition] == 7.0 * 3 / 2


def test_without_memory_all_ranks_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "available_memory", lambda: 1000)

    def measured(group: SharedMemoryGroup) -> str:
        with pytest.raises(GroupError) as raised:
            measure_host(group, works(2, 1e6), 1e6)
        return str(raised.value)

    first, second = run_ranks(2, measured)
    assert first == second
    assert "of shared memory cannot be had" in first
