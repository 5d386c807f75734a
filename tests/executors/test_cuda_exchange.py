"""Sums of ranks on CUDA devices equal the plain reference bit for bit, through the host and over NCCL."""

from __future__ import annotations

import pytest
import torch
from tests.executors.conformance import DTYPES, bits, held_nodes, numbers

from samegrad.executors import local_tree_sum
from samegrad.executors.base import fill_absent
from samegrad.executors.device_staging import DeviceGroup
from samegrad.executors.process_group import ProcessGroup
from samegrad.parallel import current_world
from samegrad.shards import shares, subtrees
from samegrad.strategy import Strategy
from samegrad.workers import launch

CUDA_DEVICES = torch.cuda.device_count()

pytestmark = [pytest.mark.gpu, pytest.mark.dist, pytest.mark.skipif(not CUDA_DEVICES, reason="needs CUDA")]


def check_sums() -> str:
    """On each rank: several dtypes and sizes, some shards absent; returns the kind of the group."""
    world = current_world()
    cut = shares(8, world.size)
    nodes = held_nodes(cut, 8)
    sizes = [(dtype, 100 + place) for place, dtype in enumerate(DTYPES)] + [
        (torch.float32, 0),
        (torch.float32, 200_000),
    ]
    out = [torch.empty(numel, dtype=dtype, device=world.device) for dtype, numel in sizes]
    total = world.group.prepare(Strategy("sharded").schedule(cut, 8), sizes, "x", out)
    for turn, present in enumerate([set(nodes), set(nodes[1:]), {nodes[-1]}]):
        for position, node in enumerate(subtrees(cut[world.rank], 8)):
            for flat, slot in enumerate(total.slot(position)):
                slot.copy_(numbers(*sizes[flat], seed=100 * turn + 10 * flat + nodes.index(node)))
            if node not in present:
                fill_absent(total.slot(position))
        total.start().wait()
        for flat, (dtype, numel) in enumerate(sizes):
            parts = [
                (node, numbers(dtype, numel, seed=100 * turn + 10 * flat + nodes.index(node)).to(world.device))
                for node in present
            ]
            assert bits(out[flat].cpu()) == bits(local_tree_sum(parts, 8).cpu()), (world.rank, turn, dtype, numel)
    assert world.group.gather(b"%d" % world.rank, "x") == [b"%d" % rank for rank in range(world.size)]
    tensors = [torch.full((3,), float(world.rank), device=world.device), torch.tensor(world.rank > 0)]
    world.group.broadcast(tensors, "x")
    assert [tensor.tolist() for tensor in tensors] == [[0.0] * 3, False]
    return type(world.group).__name__


@pytest.mark.parametrize("devices", ["cuda:0,cuda:0", "cuda:0,cuda:0,cuda:0", "cuda:0,cpu"])
def test_ranks_that_cannot_exchange_directly_go_through_the_host(devices: str) -> None:
    assert launch(check_sums, devices=devices, timeout_s=100) == DeviceGroup.__name__


@pytest.mark.skipif(CUDA_DEVICES < 2, reason="needs two CUDA devices")
def test_a_device_for_each_rank_exchanges_over_nccl() -> None:
    devices = ",".join(f"cuda:{index}" for index in range(min(CUDA_DEVICES, 4)))
    assert launch(check_sums, devices=devices, timeout_s=100) == ProcessGroup.__name__
