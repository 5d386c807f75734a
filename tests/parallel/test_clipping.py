"""Clipping has the bits of torch's own, also where each rank has the gradients of its own parameters only."""

from __future__ import annotations

import copy
import struct

import pytest
import torch
from torch import nn

from samegrad.executors import SoloGroup
from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.parallel.clipping import clip_gradients
from samegrad.parallel.parameters import owners
from samegrad.testing import run_ranks


def parameters(dtype: torch.dtype = torch.float32, seed: int = 0) -> list[nn.Parameter]:
    """Parameters of several sizes with gradients, one of them without."""
    generator = torch.Generator().manual_seed(seed)
    made = [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in ((31, 7), (5,), (), (0,), (3, 3), (1000,))]
    for position, parameter in enumerate(made):
        if position != 4:
            parameter.grad = torch.randn(parameter.shape, dtype=dtype, generator=generator) * 10.0 ** (position - 2)
    return made


def gradient_bits(parameter: nn.Parameter) -> bytes | None:
    if parameter.grad is None:
        return None
    return bytes(parameter.grad.reshape(-1).view(torch.uint8).tolist()) if parameter.numel() else b""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("limit", [1e-3, 0.37, 1, 1e9])
def test_clipping_has_the_bits_of_torch(limit: float, dtype: torch.dtype) -> None:
    for seed in range(5):
        ours, theirs = parameters(dtype, seed), parameters(dtype, seed)
        norm = clip_gradients(ours, limit, SoloGroup())
        expected = nn.utils.clip_grad_norm_(theirs, limit)
        assert norm == float(expected)
        assert list(map(gradient_bits, ours)) == list(map(gradient_bits, theirs))


def test_what_is_within_the_limit_is_not_touched() -> None:
    ours = parameters()
    before = [gradient_bits(parameter) for parameter in ours]
    assert clip_gradients(ours, 1e9, SoloGroup()) > 0
    assert [gradient_bits(parameter) for parameter in ours] == before


def test_what_exceeds_the_limit_is_scaled_down_to_it() -> None:
    ours = parameters(torch.float64)
    assert clip_gradients(ours, 0.5, SoloGroup()) > 100
    assert abs(clip_gradients(ours, 1e9, SoloGroup()) - 0.5) < 1e-6


def test_without_gradients_the_norm_is_zero() -> None:
    assert clip_gradients([nn.Parameter(torch.ones(2))], 1.0, SoloGroup()) == 0.0
    assert clip_gradients([], 1.0, SoloGroup()) == 0.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_spreads_as_in_torch(bad: float) -> None:
    """An infinite norm makes the others 0, one that is NaN makes all NaN: nothing hides it."""
    ours, theirs = parameters(), parameters()
    for made in (ours, theirs):
        assert made[0].grad is not None
        made[0].grad[3, 3] = bad
    clip_gradients(ours, 1.0, SoloGroup())
    nn.utils.clip_grad_norm_(theirs, 1.0)
    for a, b in zip(ours, theirs, strict=True):
        if a.grad is not None and b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, rtol=0, atol=0, equal_nan=True)


def test_mixed_dtypes_are_clipped_together() -> None:
    ours = [*parameters(torch.float64), *parameters(torch.float32, seed=1)]
    theirs = copy.deepcopy(ours)
    for a, b in zip(ours, theirs, strict=True):
        b.grad = None if a.grad is None else a.grad.clone()
    assert clip_gradients(ours, 0.1, SoloGroup()) == pytest.approx(
        float(nn.utils.clip_grad_norm_(theirs, 0.1)), rel=1e-12
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_owners_of_some_gradients_clip_like_who_has_all(ranks: int, dtype: torch.dtype) -> None:
    whole = parameters(dtype)
    norm = clip_gradients(whole, 0.37, SoloGroup())
    owned_by = owners(whole, ranks)

    def run(group: SharedMemoryGroup) -> list[bytes | None]:
        own = parameters(dtype)
        for position, parameter in enumerate(own):
            if position not in owned_by[group.rank]:
                parameter.grad = None
        found = clip_gradients(own, 0.37, group, owned_by)
        assert struct.pack("<d", found) == struct.pack("<d", norm)
        return [gradient_bits(parameter) for parameter in own]

    for rank, found in enumerate(run_ranks(ranks, run)):
        expected = [gradient_bits(p) if place in owned_by[rank] else None for place, p in enumerate(whole)]
        assert found == expected
