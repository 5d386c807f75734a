"""Ranks of a process group that share a host read each other's memory; whoever else is there, the bits are the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.executors.conformance import check_exchange
from tests.executors.gloo_groups import CPU, roll_call_of

from samegrad.executors import neighbourhood, process_exchange
from samegrad.executors.neighbourhood import Neighbourhood, find_neighbourhood
from samegrad.executors.process_group import ProcessGroup
from samegrad.schedules import Cut, build, build_for
from samegrad.schedules.catalog import ALGORITHMS
from samegrad.workers import context, launch
from samegrad.workers.roll_call import RollCall

RANKS = 4
SIZES = [(torch.float32, 3000), (torch.complex64, 701), (torch.bfloat16, 0), (torch.int64, 5)]
TURNS: list[set[int]] = [set(), {1, 3}]  # absent leaves


def neighbours(hosts: Sequence[str | None], rank: int) -> Neighbourhood | None:
    """Found by `rank`, if ranks say that they are on `hosts`."""
    records = [json.dumps([host, 100 + number]).encode() for number, host in enumerate(hosts)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(neighbourhood, "host_identity", lambda: hosts[rank])
        return find_neighbourhood(rank, lambda _: records, 1.0, lambda: False)


def test_neighbours_are_the_ranks_of_one_host() -> None:
    found = neighbours(["a", "b", "a"], 0)
    assert found is not None
    assert dict(found.pids) == {0: 100, 2: 102}
    alone = neighbours(["a", "b", "a"], 1)  # takes part in what all have to be asked
    assert alone is not None
    assert dict(alone.pids) == {1: 101}


def test_there_are_none_where_every_host_has_one_rank_or_memory_cannot_be_shared() -> None:
    assert [neighbours(["a", "b"], rank) for rank in (0, 1)] == [None, None]
    assert neighbours([None, None], 0) is None


def mapped() -> int:
    """Memory files that this process maps."""
    return Path("/proc/self/maps").read_text().count("/memfd:samegrad")


def opened() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def check_hosts(roll_call: RollCall, hosts: str, expected: int, algorithms: Sequence[str]) -> None:
    """On each rank, if they are on `hosts` by their names: how many memory files it maps, and the bits."""
    group = ProcessGroup(CPU, roll_call=roll_call)
    group.gather(b"", "x")
    before = mapped()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(neighbourhood, "host_identity", lambda: hosts[group.rank])
        patched.setattr(process_exchange, "_PIECE", 1000)
        exchange = group.prepare(build("sharded", RANKS), SIZES, "x")
        assert mapped() - before == expected
        exchange.close()
        for name in algorithms:
            cut = Cut.of([range(2), range(2, 3), range(3, 7), range(7, 8)], 8)
            check_exchange(group, build_for(name, cut), SIZES, TURNS, ALGORITHMS[name].follows_tree, [False])
    assert mapped() == before


def check_all(store: str) -> bool:
    worker = context()
    assert worker is not None
    rank, roll_call = worker.rank, roll_call_of(store, RANKS)
    names = ("sharded", "ring", "hierarchical")
    check_hosts(roll_call, "abcd", 0, ())
    at_first = opened()
    check_hosts(roll_call, "aaaa", 4, ("halving-doubling",))
    check_hosts(roll_call, "aabb", 2, names)
    check_hosts(roll_call, "abab", 2, ("binomial-tree", "two-way-ring"))
    check_hosts(roll_call, "aaba", 0 if rank == 2 else 3, names[:2])
    with pytest.MonkeyPatch.context() as patched:
        if rank == 1:
            patched.setattr(neighbourhood, "open_offered", refused)
        check_hosts(roll_call, "aaaa", 1 if rank == 1 else 4, names[:2])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(process_exchange, "Outgoing", refused)
        check_hosts(roll_call, "aaaa", 0, ("sharded",))
    assert opened() <= at_first  # less, if connections were still being made
    dist.destroy_process_group()
    return True


def refused(*_: object) -> None:
    raise OSError("in another container, or without memory")


@pytest.mark.dist
def test_any_ranks_may_share_a_host(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    assert launch(lambda: check_all(store), devices=f"cpu:{RANKS}", timeout_s=60)
