"""Schedules on plain lists of tensors: every algorithm, cut, size and dtype gives the bits of the reference."""

from __future__ import annotations

import pytest
import torch
from tests.schedules.cuts import cuts_of
from torch import Tensor

from samegrad.errors import ConfigurationError
from samegrad.executors import local_tree_sum
from samegrad.executors.cells import run_on_tensors
from samegrad.schedules import ALGORITHMS, Collective, Cut, build, build_for, pipelined, striped

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int8,
    torch.complex64,
]


def drawn(cut: Cut, numel: int, dtype: torch.dtype = torch.float32) -> list[list[Tensor]]:
    """Buffers whose sum depends on the order of the additions."""
    generator = torch.Generator().manual_seed(numel + cut.ranks)
    return [
        [
            (torch.randn(numel, generator=generator) * 10 ** torch.randint(0, 4, (numel,), generator=generator)).to(
                dtype
            )
            for _ in nodes
        ]
        for nodes in cut.nodes
    ]


def reference(cut: Cut, held: list[list[Tensor]]) -> Tensor:
    return local_tree_sum([(node, held[rank][slot].clone()) for node, rank, slot in cut.contributions()], cut.leaves)


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("ranks", range(1, 10))
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_cut_and_size(name: str, ranks: int) -> None:
    follows = ALGORITHMS[name].follows_tree
    for cut in cuts_of(ranks, ALGORITHMS[name].helpers):
        schedule = build_for(name, cut)
        for numel in (0, 1, ranks - 1, 1000):
            held = drawn(cut, numel)
            total = reference(cut, held)
            run_on_tensors(schedule, held)
            results = [held[rank][0] for rank in cut.holders]
            assert len({bits(result) for result in results}) == 1
            if follows:
                assert bits(results[0]) == bits(total)
            else:
                torch.testing.assert_close(results[0], total, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [name for name, each in ALGORITHMS.items() if each.follows_tree])
def test_every_dtype(name: str, dtype: torch.dtype) -> None:
    cut = cuts_of(5, ALGORITHMS[name].helpers)[2]
    held = drawn(cut, 37, dtype)
    total = reference(cut, held)
    run_on_tensors(build_for(name, cut), held)
    assert {bits(held[rank][0]) for rank in cut.holders} == {bits(total)}


def test_zeros_keep_their_sign() -> None:
    for name in ALGORITHMS:
        schedule = build(name, 5)
        held = [[torch.full((7,), -0.0)] if nodes else [] for nodes in schedule.cut.nodes]
        run_on_tensors(schedule, held)
        assert all(torch.signbit(held[rank][0]).all() for rank in schedule.cut.holders)


def test_composed_schedules() -> None:
    for ranks in range(1, 10):
        cut = Cut.equal(ranks)
        for schedule in (
            pipelined(build("halving-doubling", ranks), 3),
            striped([build("sharded", ranks), build("binomial-tree", ranks)], [2, 1]),
        ):
            held = drawn(cut, 101)
            total = reference(cut, held)
            run_on_tensors(schedule, held)
            assert {bits(buffers[0]) for buffers in held} == {bits(total)}


@pytest.mark.parametrize("name", ["sharded", "ring", "halving-doubling"])
def test_halves(name: str) -> None:
    cut = Cut.equal(4)
    held = drawn(cut, 103)
    total = sum(buffers[0].double() for buffers in held)
    scatter = build(name, 4, collective=Collective.REDUCE_SCATTER)
    run_on_tensors(scatter, held)
    assert scatter.owners is not None
    for owner, part in zip(scatter.owners, scatter.ranges(103), strict=True):
        own = held[owner][0][part.start : part.stop]
        torch.testing.assert_close(own.double(), total[part.start : part.stop], rtol=1e-4, atol=1e-2)  # type: ignore[index]
    run_on_tensors(build(name, 4, collective=Collective.ALL_GATHER), held)
    assert len({bits(buffers[0]) for buffers in held}) == 1


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ([[torch.ones(2)]], r"ring: ranks hold \[1, 1\] buffers by its cut; got \[1\]"),
        (
            [[torch.ones(2)], [torch.ones(3)]],
            r"all buffers must be flat and of one size and dtype; got \[2\] .*, \[3\]",
        ),
        ([[torch.ones(2)], [torch.ones(2).double()]], "of one size and dtype; got .*float32, .*float64"),
        ([[torch.ones(2, 2)], [torch.ones(2, 2)]], r"all buffers must be flat .* got \[2, 2\]"),
    ],
)
def test_buffers_that_do_not_fit(held: list[list[Tensor]], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run_on_tensors(build("ring", 2), held)
