"""One test for all: executor x algorithm x world size x cut x size and dtype, bit for bit what `run_on_tensors` gives.

The ranks are forked processes, started once for each world size; there everything runs, one exchange after the other,
in memory that all map, over Gloo, and in a Gloo group whose ranks read each other's memory.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.executors.conformance import DTYPES, bits, check_exchange, numbers
from tests.executors.gloo_groups import joined
from tests.schedules.cuts import cuts_of

from samegrad.errors import ConfigurationError
from samegrad.executors import Group
from samegrad.executors.process_group import ProcessGroup
from samegrad.parallel import current_world
from samegrad.schedules import Cut, Schedule, build, build_for, co_located, pipelined, striped
from samegrad.schedules.catalog import ALGORITHMS
from samegrad.workers import launch


def schedules(ranks: int) -> list[tuple[Schedule, bool]]:
    """Every algorithm with all kinds of cut (of more than 4 ranks, two of them), and whether it is of the tree; a host
    and servers are played by the ranks."""
    found = []
    for number, (name, each) in enumerate(ALGORITHMS.items()):
        helpers = 2 if name == "servers" else each.helpers
        cuts = cuts_of(ranks, helpers)
        for cut in (
            cuts if ranks <= 4 else [cuts[number % 2], cuts[2 + number % 2]]
        ):  # the more ranks, the longer it takes
            schedule = build_for(name, cut)
            found.append((co_located(schedule, [number % ranks for number in range(helpers)]), each.follows_tree))
    ring, sharded = build("ring", ranks), build("sharded", ranks)
    for name in ("ring", "sharded", "halving-doubling", "one-device"):
        found.append((build(name, ranks, collective="reduce-scatter"), False))
    found.append((build("binomial-tree", ranks, collective="reduce"), False))
    found += [(pipelined(ring, 3), False), (striped([sharded, ring], [3, 2]), False)]
    return found


def conform(store: str) -> int:
    """On each rank: all schedules in all executors; returns how many there were."""
    world = current_world()
    assert world.host is not None
    groups: list[Group] = [world.host, *joined(store, world.size)]
    sizes = [(torch.float32, 1000), (torch.float32, 0), (torch.bfloat16, 1), (torch.float64, max(world.size - 1, 1))]
    found = schedules(world.size)
    for number, (schedule, follows_tree) in enumerate(found):
        for group in groups:
            check_exchange(group, schedule, sizes, follows_tree=follows_tree, private=[number % 2 == 0])
    dist.destroy_process_group()
    return len(found)


def conform_in_kind(store: str) -> int:
    """On each of three ranks: all dtypes, sizes around blocks, and absent contributions; and the backend's own sum."""
    world = current_world()
    assert world.host is not None
    over_torch = joined(store, world.size)
    groups: list[Group] = [world.host, *over_torch]
    sizes = [(dtype, 60 + place) for place, dtype in enumerate([*DTYPES, torch.int32, torch.uint8, torch.complex128])]
    sizes += [(torch.float32, (1 << 16) * 3 + 5), (torch.float32, 2), (torch.float32, 3)]
    names = ("one-shot", "sharded", "ring", "recursive-doubling", "hierarchical")
    cut = Cut.of([range(1), range(1, 6), range(6, 8)], 8)
    for name in names:
        schedule, of_tree = build_for(name, cut), ALGORITHMS[name].follows_tree
        for group in groups:
            check_exchange(group, schedule, sizes, [set(), {0, 6}, set(range(7))] if of_tree else [set()], of_tree)
    check_native(over_torch[0], cut)
    dist.destroy_process_group()
    return len(names)


def check_native(group: ProcessGroup, cut: Cut) -> None:
    """The same on all ranks and each time, and nearly the sum."""
    sizes = [(torch.float32, 1001), (torch.float64, 0), (torch.float64, 7)]
    held = cut.nodes[group.rank]
    found = []
    for out in (None, [torch.empty(numel, dtype=dtype) for dtype, numel in sizes]):
        exchange = group.prepare_native(cut, sizes, "x", out)
        for _ in range(2):
            for position in range(len(held)):
                for flat, slot in enumerate(exchange.slot(position)):
                    slot.copy_(numbers(*sizes[flat], seed=100 * group.rank + 10 * position + flat))
            found.append([bits(total) for total in exchange.start().wait()])
    assert found == [found[0]] * 4
    with pytest.raises(ConfigurationError, match="every rank of the group; rank 1 holds none"):
        group.prepare_native(Cut.of([range(4), range(0), range(4, 8)], 8), sizes, "x")
    with pytest.raises(ConfigurationError, match="do not agree on the buffers"):
        group.prepare_native(cut, [(torch.float32, group.rank)], "x")
    everyone = group.gather(b"".join(found[0]), "x")
    assert everyone == [everyone[0]] * group.size
    for flat, (dtype, numel) in enumerate(sizes):
        parts = [
            numbers(dtype, numel, seed=100 * rank + 10 * position + flat)
            for rank, nodes in enumerate(cut.nodes)
            for position in range(len(nodes))
        ]
        total = torch.frombuffer(bytearray(found[0][flat] or b"\0" * 8), dtype=dtype)[:numel]
        torch.testing.assert_close(total, torch.stack(parts).sum(0), rtol=1e-4, atol=1e-2)


@pytest.mark.dist
@pytest.mark.parametrize("size", range(2, 10))
def test_every_executor_gives_the_bits_of_plain_tensors(size: int, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    assert launch(lambda: conform(store), devices=f"cpu:{size}", timeout_s=100) == (
        (4 if size <= 4 else 2) * len(ALGORITHMS) + 7
    )


@pytest.mark.dist
def test_every_dtype_and_absent_contributions(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    assert launch(lambda: conform_in_kind(store), devices="cpu:3", timeout_s=100) == 5


def disagree(store: str, kind: str, what: str) -> str:
    """On each of three ranks: the last one prepares another exchange; returns the message of the error."""
    world = current_world()
    group = world.group if kind == "shared memory" else joined(store, world.size)[0]
    schedule, sizes = build("ring", 3), [(torch.float32, 10)]
    if world.rank == 2:
        schedule = build("sharded", 3) if what == "schedule" else schedule
        sizes = {"dtype": [(torch.float64, 10)], "size": [(torch.float32, 11)]}.get(what, sizes)
    try:
        group.prepare(schedule, sizes, "my sum")
    except ConfigurationError as error:
        return str(error)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return ""


@pytest.mark.dist
@pytest.mark.parametrize("kind", ["shared memory", "process group"])
def test_ranks_that_disagree_are_told_before_anything_is_exchanged(kind: str, tmp_path: Path) -> None:
    expected = {
        "schedule": "Rank 0 has ring, all-reduce over 3 ranks, .*; rank 2 has sharded, all-reduce over 3 ranks",
        "dtype": "Rank 0 has 10 x float32; rank 2 has 10 x float64",
        "size": "Rank 0 has 10 x float32; rank 2 has 11 x float32",
    }
    for number, (what, text) in enumerate(expected.items()):
        store = str(tmp_path / str(number))
        message = launch(functools.partial(disagree, store, kind, what), devices="cpu:3", timeout_s=60)
        assert message.startswith("my sum: the ranks do not agree on the")
        with pytest.raises(AssertionError, match=text):
            raise AssertionError(message)
