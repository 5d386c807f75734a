"""Sums over a `torch.distributed` group equal the plain reference bit for bit; here over Gloo, on CUDA over NCCL."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.executors.conformance import DTYPES, check_exchange, check_sum
from torch.distributed import FileStore  # type: ignore[attr-defined]

from samegrad.errors import CallMismatch
from samegrad.executors import process_exchange
from samegrad.executors.link_rates import measure_links
from samegrad.executors.messages import rounds_of
from samegrad.executors.process_group import ProcessGroup
from samegrad.schedules import Cut, build_for
from samegrad.shards import even, shares
from samegrad.workers import context, launch

RANKS = 3


def check_everything(store: str) -> list[str]:
    """On each of three ranks: joins a Gloo group and checks it; returns the names of what was checked."""
    worker = context()
    assert worker is not None
    dist.init_process_group(
        "gloo",
        store=FileStore(store, RANKS),
        rank=worker.rank,
        world_size=RANKS,
        timeout=timedelta(seconds=60),
    )
    group = ProcessGroup(torch.device("cpu"))
    assert (group.rank, group.size) == (worker.rank, RANKS)
    checks = [check_gather, check_notes, check_broadcast, check_sums, check_pieces, check_operations, check_links]
    for check in checks:
        check(group)
    dist.destroy_process_group()
    return [check.__name__ for check in checks]


def check_links(group: ProcessGroup) -> None:
    """Ranks become devices in their order, whatever hosts they are on; all find the same."""
    for hosts, switches in ((["a", "a", "a"], 1), (["a", "b", "a"], 3), (["c", "b", "a"], 4)):
        found = measure_links(group, hosts)
        assert found.devices == ("rank0", "rank1", "rank2")
        assert len(found.nodes) == RANKS + switches
        assert [found.node(name).host for name in found.devices] == [
            f"host{'abc'.index(each)}" for each in _renamed(hosts)
        ]
        assert all(1e3 < link.bandwidth < 1e13 and 0 <= link.latency < 1 for link in found.links)
        assert set(group.gather(found.to_toml().encode(), "x")) == {found.to_toml().encode()}


def _renamed(hosts: list[str]) -> list[str]:
    """With a, b, c in the order of the ranks."""
    return ["abc"[list(dict.fromkeys(hosts)).index(each)] for each in hosts]


def check_gather(group: ProcessGroup) -> None:
    """Records of any lengths, different by rank."""
    lengths = [0, 1, 1000, 70_000]
    for turn in range(len(lengths)):
        found = group.gather(bytes([group.rank]) * lengths[(group.rank + turn) % 4], "x")
        assert found == [bytes([rank]) * lengths[(rank + turn) % 4] for rank in range(RANKS)]
    assert group.gather(b"", "x") == [b""] * RANKS


def check_notes(group: ProcessGroup) -> None:
    """Short records are asked for before they come: by whatever object, and beside messages of the user's own."""
    others = [ProcessGroup(torch.device("cpu")), group.twin("notes")]
    for turn in range(4):
        after = dist.isend(torch.tensor([turn]), (group.rank + 1) % RANKS)
        for each in (group, *others, *others):
            assert each.gather(b"%d %d" % (group.rank, turn), "notes") == [b"%d %d" % (r, turn) for r in range(RANKS)]
        received = torch.tensor([-1])
        dist.recv(received, (group.rank - 1) % RANKS)
        assert received.item() == turn
        assert after is not None
        after.wait()


def check_broadcast(group: ProcessGroup) -> None:
    """Any dtype, shape and strides."""
    rank = group.rank
    tensors = [
        torch.full((2, 3), float(rank)),
        torch.tensor(float(rank)),
        torch.empty(0, 3),
        torch.tensor([rank > 0, rank == 0]),
        torch.full((3,), rank).bfloat16(),
        torch.full((3,), complex(rank, 1)),
        torch.full((8, 6), rank).t(),
        torch.full((10,), rank, dtype=torch.uint8)[::2],
    ]
    strides = [tensor.stride() for tensor in tensors]
    group.broadcast(tensors, "x")
    assert [tensor.stride() for tensor in tensors] == strides
    sums = [complex(tensor.sum()) for tensor in tensors]
    assert sums == [0, 0, 0, 1, 0, 3j, 0, 0]
    group.broadcast([], "x")


def check_sums(group: ProcessGroup) -> None:
    """Even and uneven cuts, all dtypes at once, odd sizes, absent shards."""
    sizes = [(dtype, 60 + place) for place, dtype in enumerate(DTYPES)] + [(torch.float32, n) for n in (0, 1, 2, 3)]
    check_sum(group, shares(8, RANKS), 8, sizes, absent=[set(), {0, 1, 2}, {3, 6, 7}, set(range(7))])
    check_sum(group, [range(1), range(1, 7), range(7, 8)], 8, [(torch.float32, 1000)])
    check_sum(group, even(17, RANKS), 17, [(torch.float64, 100)])
    check_sum(group, even(3, RANKS), 3, [(torch.float32, 200_000)])


def check_pieces(group: ProcessGroup) -> None:
    """Long buffers, which go through the rounds in pieces, by schedules of many shapes."""
    sizes = [(torch.float32, 9000), (torch.complex64, 7001), (torch.int64, 5)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(process_exchange, "_PIECE", 1000)
        for cut in (shares(8, RANKS), [range(1), range(1, 7), range(7, 8)]):
            for name in ("sharded", "one-device", "halving-doubling", "binomial-tree"):
                schedule = build_for(name, Cut.of(cut, 8))
                check_exchange(group, schedule, sizes, [set(), {0, 3}])
        ring = build_for("two-way-ring", Cut.of(shares(RANKS, RANKS), RANKS))
        check_exchange(group, ring, sizes, follows_tree=False)


def check_operations(group: ProcessGroup) -> None:
    """Ranks that meet for different operations are told, all of them; sums are, where there is a way to meet before."""
    with pytest.raises(CallMismatch, match="ranks 0, 1 are at 'step', rank 2 is at 'evaluate'"):
        group.gather(b"abc", "evaluate" if group.rank == 2 else "step")
    call = group.broadcast if group.rank == 2 else lambda _, operation: group.gather(b"", operation)
    with pytest.raises(CallMismatch, match="ranks 0, 1 are at 'gather', rank 2 is at 'broadcast'"):
        call([torch.zeros(3)], "broadcast" if group.rank == 2 else "gather")
    met: list[str] = []
    meeting = ProcessGroup(torch.device("cpu"), met.append)
    check_sum(meeting, shares(8, RANKS), 8, [(torch.float32, 10)], absent=[set(), {0}])
    assert met == ["x"] * 4


@pytest.mark.dist
def test_a_gloo_group_conforms(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    checked = launch(lambda: check_everything(store), devices=f"cpu:{RANKS}", timeout_s=60)
    assert len(checked) == 7


def test_what_a_rank_does_by_itself_ends_the_round_before() -> None:
    rounds = build_for("sharded", Cut.of(shares(4, 4), 4)).rounds
    assert len(rounds) == 4
    scatter, gather = rounds_of(rounds, 0)
    assert (len(scatter.received), len(scatter.applied), len(gather.received), len(gather.applied)) == (3, 3, 3, 0)
