"""The shared-memory group: gather, broadcast, share, and sums that equal the plain reference bit for bit."""

from __future__ import annotations

import functools
import gc
import itertools
import random
import resource
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from tests.executors.conformance import DTYPES, bits, check_pieces, check_sum, held_nodes, numbers
from torch import Tensor

from samegrad.errors import CallMismatch, GroupError, PeerFailed, PeerTimeout
from samegrad.executors import local_tree_sum
from samegrad.executors.base import FlatSizes, Piece
from samegrad.executors.shared_exchange import SharedExchange
from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.shards import even, shares, subtrees
from samegrad.strategy import Strategy, default_strategy
from samegrad.testing import run_ranks

BOARD = (1 << 16) - 8
"""Bytes of a record that one round of a gather carries."""
BLOCK = 1 << 16
"""Elements of a sum that are added up together."""


# gather


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_gather_brings_everyone_the_records_of_all(size: int) -> None:
    lengths = [0, 1, BOARD - 1, BOARD, BOARD + 1, 3 * BOARD]

    def record(rank: int, turn: int) -> bytes:
        length = lengths[(rank + turn) % len(lengths)]
        return bytes((rank + turn + i) % 251 for i in range(min(length, 300))) * (length // 300 + 1)

    def run(group: SharedMemoryGroup) -> list[list[bytes]]:
        turns = range(len(lengths))
        return [group.gather(record(group.rank, turn)[: lengths[(group.rank + turn) % 6]], "x") for turn in turns]

    for found in run_ranks(size, run):
        for turn, records in enumerate(found):
            expected = [record(rank, turn)[: lengths[(rank + turn) % 6]] for rank in range(size)]
            assert records == expected, turn


@pytest.mark.parametrize("length", [0, 1, BOARD - 1, BOARD, BOARD + 1, 3 * BOARD])
def test_gather_of_equal_lengths(length: int) -> None:
    for found in run_ranks(3, lambda group: group.gather(bytes([group.rank]) * length, "x")):
        assert found == [bytes([rank]) * length for rank in range(3)]


def test_many_small_gathers_do_not_mix() -> None:
    def run(group: SharedMemoryGroup) -> None:
        for turn in range(200):
            records = group.gather(b"%d of %d" % (turn, group.rank), "x")
            assert records == [b"%d of %d" % (turn, rank) for rank in range(group.size)]

    run_ranks(4, run)


# broadcast


def test_broadcast_gives_all_what_rank_0_has() -> None:
    """Any dtype, shape and strides; what is empty stays so, and each rank keeps its own memory."""

    def tensors(rank: int) -> list[Tensor]:
        generator = torch.Generator().manual_seed(rank)
        plain = torch.randn(4, 6, generator=generator)
        return [
            plain,
            torch.tensor(float(rank)),
            torch.empty(0, 3),
            torch.rand(5, generator=generator) > 0.5,
            torch.randn(3, 5, generator=generator).bfloat16(),
            torch.randn(7, dtype=torch.complex64, generator=generator),
            torch.randn(2, 3, 4, 5, generator=generator).contiguous(memory_format=torch.channels_last),
            torch.randn(8, 6, generator=generator).t(),
            torch.randn(10, generator=generator)[::2],
            torch.randint(0, 99, (3,), generator=generator),
            torch.tensor([float("nan"), -0.0, float("-inf")]),
        ]

    def run(group: SharedMemoryGroup) -> list[Tensor]:
        own = tensors(group.rank)
        places = [tensor.data_ptr() for tensor in own]
        group.broadcast(own, "x")
        assert [tensor.data_ptr() for tensor in own] == places
        group.gather(b"", "x")  # all have read before anyone writes
        own[0].add_(group.rank)
        group.gather(b"", "x")
        return own

    for rank, found in enumerate(run_ranks(3, run)):
        expected = tensors(0)
        expected[0] += rank  # what one rank did to its copy, no other sees
        for place, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride()), place
            assert bits(a) == bits(b), place


@pytest.mark.parametrize("tensors", [[], [torch.empty(0)]])
def test_broadcast_of_nothing(tensors: list[Tensor]) -> None:
    run_ranks(2, lambda group: group.broadcast(tensors, "x"))


# share


def test_shared_memory_is_one_and_starts_at_zero() -> None:
    def run(group: SharedMemoryGroup) -> bytes:
        memory = group.share(1000, "x")
        assert memory.dtype == torch.uint8
        assert not memory.any()
        group.gather(b"", "x")
        memory[group.rank :: group.size] = group.rank + 1
        group.gather(b"", "x")
        return bytes(memory.tolist())

    assert set(run_ranks(3, run)) == {bytes(i % 3 + 1 for i in range(1000))}


def test_nothing_is_left_open_or_mapped() -> None:
    """A summing group that is gone holds no file descriptor and no memory."""

    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def mapped() -> int:
        return Path("/proc/self/maps").read_text(encoding="utf-8").count("memfd:samegrad")

    def run(group: SharedMemoryGroup) -> None:
        for _ in range(5):
            group.share(5000, "x")
        total = group.prepare(Strategy("sharded").schedule(shares(8, 2), 8), [(torch.float32, 100)], "x")
        total.slot(0)[0].zero_()
        total.start().wait()

    gc.collect()
    before = open_files(), mapped()
    run_ranks(2, run)
    gc.collect()
    assert (open_files(), mapped()) == before


@pytest.mark.parametrize(
    ("nbytes", "reason"),
    [(1 << 62, "of shared memory .*are available"), (1 << 24, r"larger than files may be; .*ulimit -f")],
)
def test_memory_that_is_refused_is_an_error_on_all_ranks(nbytes: int, reason: str) -> None:
    """More than there is, or more than the system gives: here the limit on the size of files stands for any reason."""

    def run(group: SharedMemoryGroup) -> None:
        with pytest.raises(GroupError, match=reason):
            group.share(nbytes, "x")
        group.gather(b"", "x")  # the group is still of use

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 23, limits[1]))
    try:
        run_ranks(3, run)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


# Sums


def check(
    cut: Sequence[range],
    leaves: int,
    sizes: FlatSizes,
    absent: Sequence[set[int]] = (set(),),
) -> None:
    run_ranks(len(cut), lambda group: check_sum(group, cut, leaves, sizes, absent))


@pytest.mark.parametrize("ranks", range(2, 10))
def test_a_sum_equals_the_reference_for_any_number_of_ranks_and_shards(ranks: int) -> None:
    sizes = [(torch.float32, 65), (torch.float64, 63)]
    for leaves in sorted({ranks, *range(max(ranks, 8), 14), 17}):
        check(shares(leaves, ranks), leaves, sizes)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_sum_equals_the_reference_for_any_dtype_and_size(dtype: torch.dtype) -> None:
    for ranks in (2, 3, 4):
        sizes = [(dtype, numel) for numel in (0, 1, 63, 64, 65, 1000)]
        check(shares(8, ranks), 8, sizes)


@pytest.mark.parametrize("numel", [BLOCK - 1, BLOCK, BLOCK + 1, 200_000])
def test_a_sum_over_several_blocks_equals_the_reference(numel: int) -> None:
    check(shares(8, 2), 8, [(torch.float32, numel)])
    check(even(8, 3), 8, [(torch.float32, 3 * numel)])  # each rank sums a third


def test_several_dtypes_go_together() -> None:
    for ranks in (2, 3, 5):
        check(shares(8, ranks), 8, [(dtype, 10 + 3 * place) for place, dtype in enumerate(DTYPES)])


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_any_cut_gives_the_same_sum(ranks: int) -> None:
    """Ranges that are not subtrees, and very unequal ones."""
    cuts = [(0, *inner, 8) for inner in itertools.combinations(range(1, 8), ranks - 1)]
    for bounds in random.Random(ranks).sample(cuts, min(len(cuts), 7)):
        check([range(a, b) for a, b in itertools.pairwise(bounds)], 8, [(torch.float32, 130)])


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_absent_shards_are_left_out_and_slots_are_used_again(ranks: int) -> None:
    """What stands in the slot of an absent subtree (numbers of the step before) is not looked at."""
    draw = random.Random(ranks)
    absent = [set(draw.sample(range(8), draw.randint(0, 7))) for _ in range(6)]
    check(shares(8, ranks), 8, [(torch.float32, 100), (torch.float64, 10)], absent=[set(), *absent, set(range(7))])


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_with_pieces_a_rank_gets_only_those(ranks: int) -> None:
    sizes = [(torch.float32, 200), (torch.float64, 100), (torch.float32, 0)]
    bounds = even(200, ranks)
    pieces: list[list[Piece]] = [
        [(0, bounds[rank].start, bounds[rank].stop), *([(1, 16, 48), (1, 64, 100)] if rank == ranks - 1 else [])]
        for rank in range(ranks)
    ]
    pieces[0] = []  # a rank may own nothing
    absent = [set[int](), {0, 1, 2, 3}, set[int]()]
    run_ranks(ranks, lambda group: check_pieces(group, shares(8, ranks), 8, sizes, pieces, absent))


def test_pieces_longer_than_a_block() -> None:
    pieces: list[list[Piece]] = [[(0, 0, 100_000)], [(0, 100_000, 100_064)], [(0, 100_064, 200_000)]]
    run_ranks(3, lambda group: check_pieces(group, even(8, 3), 8, [(torch.float32, 200_000)], pieces))


@pytest.mark.parametrize("ranks", [2, 3])
def test_two_sums_are_alive_at_once(ranks: int) -> None:
    """Gradients and buffers have one each, written and run in turn."""
    cut = shares(8, ranks)
    nodes = held_nodes(cut, 8)

    def run(group: SharedMemoryGroup) -> None:
        schedule = default_strategy(ranks).schedule(cut, 8)
        sums = [group.prepare(schedule, [(torch.float32, 100)], "x") for _ in range(2)]
        for turn in range(5):
            for position, node in enumerate(subtrees(cut[group.rank], 8)):
                for which, total in enumerate(sums):
                    total.slot(position)[0].copy_(numbers(torch.float32, 100, nodes.index(node) + 50 * which + turn))
            for which, total in enumerate(sums):
                (out,) = total.start().wait()
                parts = [
                    (node, numbers(torch.float32, 100, place + 50 * which + turn)) for place, node in enumerate(nodes)
                ]
                assert bits(out) == bits(local_tree_sum(parts, 8))

    run_ranks(ranks, run)


def test_buffers_start_at_aligned_places() -> None:
    def run(group: SharedMemoryGroup) -> None:
        sizes = [(torch.float32, 5), (torch.bfloat16, 33), (torch.float64, 1)]
        total = group.prepare(Strategy("sharded").schedule(even(8, 3), 8), sizes, "x")
        for position in range(len(subtrees(even(8, 3)[group.rank], 8))):
            assert all(flat.data_ptr() % 64 == 0 for flat in total.slot(position))

    run_ranks(3, run)


# Operations


def test_different_exchanges_do_not_meet() -> None:
    """Every pair of different calls on two of three ranks: an error on all of them, never another's data."""
    cut = shares(8, 3)

    def summed(group: SharedMemoryGroup, total: SharedExchange) -> None:
        for position in range(len(subtrees(cut[group.rank], 8))):
            total.slot(position)[0].zero_()
        total.start().wait()

    calls: dict[str, Callable[[SharedMemoryGroup, SharedExchange], object]] = {
        "gather": lambda group, _: group.gather(b"", "one"),
        "other gather": lambda group, _: group.gather(b"", "other"),
        "broadcast": lambda group, _: group.broadcast([torch.zeros(3)], "broadcast"),
        "share": lambda group, _: group.share(100, "share"),
        "sum": summed,
    }

    def run(group: SharedMemoryGroup, name: str, other: str) -> None:
        total = group.prepare(Strategy("sharded").schedule(cut, 8), [(torch.float32, 10)], "sum")
        with pytest.raises(CallMismatch, match=r"ranks 0, 2 are at '.*', rank 1 is at '.*'\. All ranks must make"):
            calls[other if group.rank == 1 else name](group, total)

    for name, other in itertools.permutations(calls, 2):
        run_ranks(3, functools.partial(run, name=name, other=other))


# Ranks as threads


def test_values_come_by_rank() -> None:
    assert run_ranks(4, lambda group: (group.rank, group.size)) == [(rank, 4) for rank in range(4)]
    assert run_ranks(1, lambda group: group.gather(b"x", "x")) == [[b"x"]]


def test_the_first_failure_is_raised_and_ends_the_waits_of_the_others() -> None:
    seen: list[BaseException] = []

    def run(group: SharedMemoryGroup) -> None:
        if group.rank == 2:
            raise ValueError("rank 2 had enough")
        try:
            group.gather(b"", "x")
        except PeerFailed as error:
            seen.append(error)
            raise

    with pytest.raises(ValueError, match="rank 2 had enough"):
        run_ranks(4, run)
    assert len(seen) == 3


def test_a_rank_that_returns_early_fails_the_others() -> None:
    with pytest.raises(PeerFailed, match="rank 0 has ended"):
        run_ranks(2, lambda group: group.rank and group.gather(b"", "x"))


def test_a_rank_that_does_not_come_is_named() -> None:
    release = threading.Event()

    def run(group: SharedMemoryGroup) -> None:
        if group.rank == 1:
            release.wait(20)
        else:
            try:
                group.gather(b"", "x")
            finally:
                release.set()

    with pytest.raises(PeerTimeout, match=r"rank 0 waited 0\.05 s at 'x' .*, but rank 1 was last seen before"):
        run_ranks(2, run, timeout_s=0.05)


def test_a_rank_that_never_returns_is_named() -> None:
    release = threading.Event()
    try:
        with pytest.raises(PeerTimeout, match=r"rank 1 of 3 did not return within 0\.1 s"):
            run_ranks(3, lambda group: group.rank != 1 or release.wait(20), timeout_s=0.05)
    finally:
        release.set()
