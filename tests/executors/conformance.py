"""What every executor must do: sums that equal the plain reference bit for bit. Shared by the tests of executors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from samegrad.executors import Group, local_tree_sum
from samegrad.executors.base import FlatSizes, Piece, fill_absent
from samegrad.executors.cells import run_on_tensors
from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.schedules import Schedule
from samegrad.shards import Node, leaves_of, subtrees
from samegrad.strategy import Strategy, default_strategy

__all__ = ["DTYPES", "bits", "check_exchange", "check_pieces", "check_sum", "held_nodes", "numbers"]

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.complex64]


def bits(tensor: Tensor) -> bytes:
    """The bytes of `tensor`, row by row."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def numbers(dtype: torch.dtype, numel: int, seed: int) -> Tensor:
    """Numbers of mixed size, so that another order of additions gives other bits, with zeros of both signs."""
    generator = torch.Generator().manual_seed(seed)
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(-(2**40), 2**40, (numel,), generator=generator).to(dtype)
    powers = torch.randint(-3, 4, (numel,), generator=generator)
    values = torch.randn(numel, dtype=dtype, generator=generator) * (10.0**powers).to(dtype)
    values[::7] *= -0.0
    return values


def held_nodes(cut: Sequence[range], leaves: int) -> list[Node]:
    """The subtrees of all ranks, from left to right."""
    return [node for part in cut for node in subtrees(part, leaves)]


def _contribution(nodes: Sequence[Node], node: Node, sizes: FlatSizes, flat: int, turn: int) -> Tensor:
    return numbers(*sizes[flat], seed=1000 * turn + 100 * flat + nodes.index(node))


def check_exchange(
    group: Group,
    schedule: Schedule,
    sizes: FlatSizes,
    absent: Sequence[set[int]] = (set(),),
    follows_tree: bool = True,
    private: Sequence[bool] = (True, False),
) -> None:
    """Called by every rank: runs `schedule`, a sum of any kind, once for each of `absent` (the leaves that are), with
    the result in memory of its own (`private`), and left where it is. Compares with the sum along the tree if the
    schedule `follows_tree`, else with the schedule on plain tensors.
    """
    cut, device = schedule.cut, getattr(group, "device", torch.device("cpu"))
    nodes = [each.node for each in cut.contributions()]
    out = [torch.full((numel,), 77, dtype=dtype, device=device) for dtype, numel in sizes]
    for is_private in private:
        own = out if is_private else None
        exchange = group.prepare(schedule, sizes, "x", own)
        for turn, missing in enumerate(absent):
            present = {node for node in nodes if set(leaves_of(node, cut.leaves)) - missing}
            for position, node in enumerate(cut.nodes[group.rank]):
                slot = exchange.slot(position)
                if node not in present:
                    fill_absent(slot)
                    continue
                for flat, place in enumerate(slot):
                    place.copy_(_contribution(nodes, node, sizes, flat, turn))
            found = exchange.start().wait()
            if not own_parts(schedule, group.rank, 1 << 20):
                assert found == []
                continue
            assert own is None or all(a is b for a, b in zip(found, own, strict=True))
            for flat, (dtype, numel) in enumerate(sizes):
                where = (schedule.name, schedule.ranks, group.rank, turn, flat, dtype, numel)
                values = {node: _contribution(nodes, node, sizes, flat, turn) for node in present}
                if follows_tree and schedule.owners is None:  # as `run_on_tensors` is shown to be where it is tested
                    total = local_tree_sum(list(values.items()), cut.leaves)
                    assert bits(found[flat].cpu()) == bits(total), where
                    continue
                plain = [
                    [values[node].clone() if node in present else absent_like(dtype, numel) for node in held]
                    for held in cut.nodes
                ]
                run_on_tensors(schedule, plain)
                result = plain[group.rank][0]
                for part in own_parts(schedule, group.rank, numel):
                    assert bits(found[flat].cpu()[part]) == bits(result[part]), where
        exchange.close()


def own_parts(schedule: Schedule, rank: int, numel: int) -> list[slice]:
    """The elements of the result that `rank` gets."""
    if schedule.owners is None:
        return [slice(0, numel)]
    ranges = schedule.ranges(numel)
    return [slice(ranges[c].start, ranges[c].stop) for c, owner in enumerate(schedule.owners) if owner == rank]


def absent_like(dtype: torch.dtype, numel: int) -> Tensor:
    """What stands for an absent contribution."""
    value = torch.empty(numel, dtype=dtype)
    fill_absent([value])
    return value


def check_sum(
    group: Group,
    cut: Sequence[range],
    leaves: int,
    sizes: FlatSizes,
    absent: Sequence[set[int]] = (set(),),
    strategy: Strategy | None = None,
) -> None:
    """`check_exchange` for ranks that hold these ranges of the leaves."""
    strategy = strategy or default_strategy(len(cut))
    check_exchange(group, strategy.schedule(cut, leaves), sizes, absent, strategy.follows_tree)


def check_pieces(
    group: SharedMemoryGroup,
    cut: Sequence[range],
    leaves: int,
    sizes: FlatSizes,
    pieces: Sequence[Sequence[Piece]],
    absent: Sequence[set[int]] = (set(),),
) -> None:
    """Called by every rank: gets the pieces that it needs, once for each of `absent`, and compares."""
    nodes = held_nodes(cut, leaves)
    own_pieces = pieces[group.rank]
    total = group.prepare_pieces(cut, leaves, sizes, "x")
    for turn, missing in enumerate(absent):
        present = {node for node in nodes if set(leaves_of(node, leaves)) - missing}
        own = [node for node in subtrees(cut[group.rank], leaves) if node in present]
        for position, node in enumerate(subtrees(cut[group.rank], leaves)):
            if node in present:
                for flat, slot in enumerate(total.slot(position)):
                    slot.copy_(_contribution(nodes, node, sizes, flat, turn))
                    for _, start, stop in (piece for piece in own_pieces if piece[0] == flat):
                        slot[start:stop] = 55  # kept elsewhere
        kept = {
            node: [
                _contribution(nodes, node, sizes, flat, turn)[start:stop].clone() for flat, start, stop in own_pieces
            ]
            for node in own
        }
        room = [torch.full((stop - start,), 77, dtype=sizes[flat][0]) for flat, start, stop in own_pieces]
        found = total.run(present, own_pieces, kept, room)
        for (flat, start, stop), piece in zip(own_pieces, found, strict=True):
            parts = [(node, _contribution(nodes, node, sizes, flat, turn)) for node in present]
            expected = local_tree_sum(parts, leaves)[start:stop]
            assert bits(piece) == bits(expected), (group.rank, turn, flat, start, stop)
