"""What every executor must do: sums that equal the plain reference bit for bit. Shared by the tests of executors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from samegrad.executors import Group, local_tree_sum
from samegrad.executors.base import FlatSizes, Piece
from samegrad.executors.shared_memory import SharedTreeSum
from samegrad.shards import Node, leaves_of, subtrees

__all__ = ["DTYPES", "bits", "check_sum", "held_nodes", "numbers"]

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.complex64]


def bits(tensor: Tensor) -> bytes:
    """The bytes of `tensor`, row by row."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def numbers(dtype: torch.dtype, numel: int, seed: int) -> Tensor:
    """Numbers of mixed size, so that another order of additions gives other bits, with zeros of both signs."""
    generator = torch.Generator().manual_seed(seed)
    if not dtype.is_floating_point and not dtype.is_complex:
        return torch.randint(-(2**40), 2**40, (numel,), dtype=dtype, generator=generator)
    powers = torch.randint(-3, 4, (numel,), generator=generator)
    values = torch.randn(numel, dtype=dtype, generator=generator) * (10.0**powers).to(dtype)
    values[::7] *= -0.0
    return values


def held_nodes(cut: Sequence[range], leaves: int) -> list[Node]:
    """The subtrees of all ranks, from left to right."""
    return [node for part in cut for node in subtrees(part, leaves)]


def check_sum(
    group: Group,
    cut: Sequence[range],
    leaves: int,
    sizes: FlatSizes,
    absent: Sequence[set[int]] = (set(),),
    pieces: Sequence[Sequence[Piece]] | None = None,
) -> None:
    """Called by every rank: sums once for each of `absent` (the leaves that are), reusing the slots, and compares.

    pieces: what each rank needs, by rank; None for everything.
    """
    nodes = held_nodes(cut, leaves)

    def contribution(node: Node, flat: int, turn: int) -> Tensor:
        dtype, numel = sizes[flat]
        return numbers(dtype, numel, 1000 * turn + 100 * flat + nodes.index(node))

    own_pieces: Sequence[Piece] = [] if pieces is None else pieces[group.rank]
    total = group.tree_sum(cut, leaves, sizes, "x")
    for turn, missing in enumerate(absent):
        present = {node for node in nodes if set(leaves_of(node, leaves)) - missing}
        own = [node for node in subtrees(cut[group.rank], leaves) if node in present]
        for position, node in enumerate(subtrees(cut[group.rank], leaves)):
            if node in present:
                for flat, slot in enumerate(total.slot(position)):
                    slot.copy_(contribution(node, flat, turn))
                    for _, start, stop in (piece for piece in own_pieces if piece[0] == flat):
                        slot[start:stop] = 55  # kept elsewhere
        out = [torch.full((numel,), 77, dtype=dtype) for dtype, numel in sizes]
        if pieces is None:
            total.run(present, out)
        else:
            assert isinstance(total, SharedTreeSum)
            kept = {
                node: [contribution(node, flat, turn)[start:stop].clone() for flat, start, stop in own_pieces]
                for node in own
            }
            room = [out[flat][start:stop] for flat, start, stop in own_pieces]
            for place, found in zip(room, total.run_pieces(present, own_pieces, kept, room), strict=True):
                place.copy_(found)
        for flat, (dtype, numel) in enumerate(sizes):
            wanted = [(flat, 0, numel)] if pieces is None else pieces[group.rank]
            reference = local_tree_sum([(node, contribution(node, flat, turn)) for node in present], leaves)
            expected = torch.full((numel,), 77, dtype=dtype)
            for _, start, stop in (piece for piece in wanted if piece[0] == flat):
                expected[start:stop] = reference[start:stop]
            assert bits(out[flat]) == bits(expected), (group.rank, turn, flat, dtype, numel)
