"""The mean in shared memory is the sum along the tree divided by the weight, wherever contributions stand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from samegrad.executors.shared_mean import Segment
from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.shards import Node, additions
from samegrad.summation import as_real
from samegrad.testing import run_ranks

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.complex64]


def contribution(rank: int, numel: int, dtype: torch.dtype, step: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(numel, generator=generator, dtype=torch.complex128 if dtype.is_complex else torch.float64).to(
        dtype
    )


def expected(values: list[Tensor], weight: float) -> Tensor:
    parts = [as_real(value).clone() for value in values]
    for i, j in additions([Node(0, rank) for rank in range(len(parts))], len(parts)):
        parts[i] = parts[i] + parts[j]
    return parts[0] / weight


def halves(group: SharedMemoryGroup, numel: int, dtype: torch.dtype, weight: float, steps: int) -> list[list[Tensor]]:
    """The means of some steps: of the first half every rank but the first has its contribution in private memory."""
    mean = group.prepare_mean([(dtype, numel)], "x")
    found = []
    for step in range(steps):
        own = contribution(group.rank, numel, dtype, step)
        numbers = as_real(own).view(-1)
        half, slot = numbers.numel() // 2, as_real(mean.slot()[0]).view(-1)
        if group.rank == 0:
            slot.copy_(numbers)
            segments = [Segment(0, 0, torch.empty_like(numbers))]
        else:
            slot[half:].copy_(numbers[half:])
            segments = [Segment(0, 0, numbers[:half], 1.0), Segment(0, half, torch.empty_like(numbers[half:]))]
            mean.leave(segments[0])
        group.counters.barrier("filled")
        mean.add_up(segments, weight)
        assert mean.are_finite
        mean.take(segments)
        found.append(torch.cat([segment.target for segment in segments]))
    return [found]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("ranks", "numel"), [(1, 7), (2, 1), (2, 200_003), (3, 0), (3, 9_001), (5, 70_000)])
def test_bits_are_those_of_the_tree(ranks: int, numel: int, dtype: torch.dtype) -> None:
    found = run_ranks(ranks, lambda group: halves(group, numel, dtype, 3.0, 2)[0])
    for step in range(2):
        wanted = expected([contribution(rank, numel, dtype, step) for rank in range(ranks)], 3.0).view(-1)
        for rank in range(ranks):
            assert torch.equal(found[rank][step], wanted)


def one_segment(group: SharedMemoryGroup, own: Tensor, scale: float, weight: float) -> tuple[Tensor, Tensor, bool]:
    """The mean of contributions in private memory; what stood there once it was added up; whether it is finite."""
    mean = group.prepare_mean([(own.dtype, own.numel())], "x")
    segments = [Segment(0, 0, own, scale)]
    mean.leave(segments[0])
    group.counters.barrier("filled")
    mean.add_up(segments, weight)
    between = own.clone()
    group.counters.barrier("looked at")
    mean.take(segments)
    return own, between, mean.are_finite


def test_contributions_count_what_is_said() -> None:
    values = [contribution(rank, 5_000, torch.float32) for rank in range(3)]
    scales = [0.5, 3.0, 1.0]
    found = run_ranks(3, lambda group: one_segment(group, values[group.rank].clone(), scales[group.rank], 4.5))
    wanted = expected([value * scale for value, scale in zip(values, scales, strict=True)], 4.5)
    for mean, _, are_finite in found:
        assert torch.equal(mean, wanted)
        assert are_finite


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_not_finite_is_known_to_all_and_still_there(number: float) -> None:
    values = [contribution(rank, 200_000, torch.float32) for rank in range(2)]
    values[1][150_000] = number
    found = run_ranks(2, lambda group: one_segment(group, values[group.rank].clone(), 1.0, 2.0))
    wanted = expected(values, 2.0)
    assert not torch.isfinite(wanted[150_000])
    for rank, (mean, between, are_finite) in enumerate(found):
        assert torch.equal(mean.view(torch.int32), wanted.view(torch.int32))
        assert not are_finite
        assert torch.isfinite(between).all() == (rank == 0)


def test_a_sum_of_finite_numbers_may_overflow_when_it_is_looked_at() -> None:
    values = [torch.full((100_000,), 60_000.0, dtype=torch.float16), torch.zeros(100_000, dtype=torch.float16)]
    for _, _, are_finite in run_ranks(2, lambda group: one_segment(group, values[group.rank].clone(), 1.0, 2.0)):
        assert are_finite


def test_a_mean_may_overflow_where_the_sum_does_not() -> None:
    values = [torch.full((5_000,), 3e38 * (1 - rank)) for rank in range(2)]
    for rank, (mean, between, are_finite) in enumerate(
        run_ranks(2, lambda group: one_segment(group, values[group.rank].clone(), 1.0, 0.5))
    ):
        assert not are_finite
        assert torch.isinf(mean).all()
        assert torch.equal(between, values[rank])


def in_slots_after_all(group: SharedMemoryGroup, own: Tensor) -> Tensor:
    mean = group.prepare_mean([(own.dtype, own.numel())], "x")
    mean.leave(Segment(0, 0, own, 1.0))
    group.counters.barrier("filled")
    mean.leave_own(Segment(0, 0, own, 1.0))
    segments = [Segment(0, 0, torch.empty_like(own))]
    mean.add_up(segments, 2.0)
    mean.take(segments)
    return segments[0].target


def test_a_contribution_may_stay_as_it_is_after_all() -> None:
    values = [contribution(rank, 5_000, torch.float32) for rank in range(2)]
    kept = [value.clone() for value in values]
    found = run_ranks(2, lambda group: in_slots_after_all(group, values[group.rank]))
    for rank in range(2):
        assert torch.equal(found[rank], expected(kept, 2.0))
        assert torch.equal(values[rank], kept[rank])
