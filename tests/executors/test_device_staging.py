"""Ranks that exchange through memory of the host: the same sums, in buffers of their own. Here their device is the CPU;
`test_cuda.py` has the same on CUDA."""

from __future__ import annotations

import pytest
import torch
from tests.executors.conformance import DTYPES, bits, check_sum, held_nodes

from samegrad.executors.device_staging import DeviceGroup
from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.shards import even, shares, subtrees
from samegrad.strategy import Strategy
from samegrad.testing import run_ranks

CPU = torch.device("cpu")


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_a_sum_equals_the_reference(ranks: int) -> None:
    sizes = [(dtype, 60 + place) for place, dtype in enumerate(DTYPES)] + [(torch.float32, 0)]
    absent: list[set[int]] = [set(), {0}, {2, 3, 7}, set(range(1, 8))]
    run_ranks(ranks, lambda group: check_sum(DeviceGroup(group, CPU), shares(8, ranks), 8, sizes, absent))


def test_a_sum_over_an_odd_number_of_shards() -> None:
    cut = even(13, 4)
    run_ranks(4, lambda group: check_sum(DeviceGroup(group, CPU), cut, 13, [(torch.float32, 1000)]))


def test_records_and_tensors_go_through_the_host() -> None:
    def run(host: SharedMemoryGroup) -> None:
        group = DeviceGroup(host, CPU)
        assert (group.rank, group.size) == (host.rank, 3)
        assert group.gather(b"%d" % group.rank, "x") == [b"0", b"1", b"2"]
        tensors = [torch.full((3,), float(group.rank)), torch.tensor(group.rank > 0)]
        group.broadcast(tensors, "x")
        assert [tensor.tolist() for tensor in tensors] == [[0.0, 0.0, 0.0], False]

    run_ranks(3, run)


def test_the_buffers_of_a_rank_are_its_own() -> None:
    """They lie on its device, where autograd and kernels reach them; no other rank sees them before `start`."""
    cut = shares(8, 3)

    def run(host: SharedMemoryGroup) -> None:
        out = torch.empty(4)
        schedule = Strategy("sharded").schedule(cut, 8)
        total = DeviceGroup(host, CPU).prepare(schedule, [(torch.float32, 4)], "x", [out])
        held = subtrees(cut[host.rank], 8)
        slots = [total.slot(position)[0] for position in range(len(held))]
        for slot in slots:
            slot.fill_(1.0)
        total.start().wait()
        assert bits(out) == bits(torch.full((4,), float(len(held_nodes(cut, 8)))))
        host.gather(b"", "x")
        out.add_(host.rank)  # nor is the sum shared
        host.gather(b"", "x")
        assert out.tolist() == [5.0 + host.rank] * 4
        assert all(slot.tolist() == [1.0] * 4 for slot in slots)

    run_ranks(3, run)
