"""Values come out of a loader worker as they were, however many tensors they have, in a few file descriptors."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tests.trainer.loading_cases import Drawing, DrawingStream
from torch import Tensor, nn

from samegrad.errors import DataError
from samegrad.parallel.layout import ALIGNMENT
from samegrad.recipe import Recipe
from samegrad.trainer import Loading, Trainer
from samegrad.trainer.descriptors import DescriptorPipe
from samegrad.trainer.handover import Handover


class Named(NamedTuple):
    x: Tensor
    words: list[str]


@dataclass
class Checked:
    """Would not be made of anything but a tensor."""

    x: Tensor

    def __post_init__(self) -> None:
        assert self.x.dim() == 1


def descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


@contextlib.contextmanager
def few_descriptors(more: int) -> Iterator[None]:
    """So many more than are in use, or a few more than that."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + more, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.fixture
def pipe() -> Iterator[DescriptorPipe]:
    pipe = DescriptorPipe()
    yield pipe
    pipe.close()


TENSORS = {
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "transposed": torch.randn(3, 5).T,
    "expanded": torch.randn(3, 1).expand(3, 4),
    "cropped": torch.randn(4, 9, 9)[:, 1:8, 1:8],
    "few of many": torch.randn(4, 900)[:, 3:5],
    "rows from the middle": torch.arange(20).view(10, 2)[3:7],
    "no rows": torch.empty(0, 3),
    "no dimensions": torch.tensor(7, dtype=torch.int8),
    "bool": torch.tensor([True, False, True]),
    "complex": torch.randn(3, dtype=torch.complex64),
    "conjugated": torch.randn(3, dtype=torch.complex64).conj(),
    "bfloat16": torch.randn(3).bfloat16(),
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_keeps_type_shape_strides_and_values(name: str, pipe: DescriptorPipe) -> None:
    value = TENSORS[name]
    before = [torch.ones(1), value]  # the one before it takes less than a boundary's worth
    found = Handover.of(before, pipe).open()[1]
    assert (found.dtype, found.shape, found.stride()) == (value.dtype, value.shape, value.stride())
    assert torch.equal(found, value)
    assert found.data_ptr() % ALIGNMENT == 0


def test_values_of_any_structure_come_out_as_they_were(pipe: DescriptorPipe) -> None:
    x = torch.arange(3.0)
    value = {0: (Named(x, ["a", "b"]), [None, 2, "é"]), 1: Checked(x), 2: {"nested": [(x + 1,)]}}
    found = Handover.of(value, pipe).open()
    assert type(found[0][0]) is Named
    assert found[0][0].words == ["a", "b"]
    assert found[0][1] == [None, 2, "é"]
    assert found[0][0].x is found[1].x  # as it was
    assert torch.equal(found[1].x, x)
    assert torch.equal(found[2]["nested"][0][0], x + 1)
    assert Handover.of({"nothing": ()}, pipe).open() == {"nothing": ()}


def test_what_is_done_to_one_in_place_leaves_the_others_to_autograd(pipe: DescriptorPipe) -> None:
    a, b = Handover.of([torch.ones(2), torch.ones(2)], pipe).open()
    weight = torch.ones(2, requires_grad=True)
    product = (weight * a).sum()
    b.mul_(2)
    product.backward()
    assert a.tolist() == [1, 1]


def test_many_tensors_take_few_file_descriptors(pipe: DescriptorPipe) -> None:
    before = descriptors()
    handed = Handover.of([torch.ones(3) for _ in range(500)], pipe)
    assert descriptors() - before <= 4
    assert len(handed.open()) == 500


def test_what_cannot_be_handed_over_is_said_where_it_is_read(pipe: DescriptorPipe) -> None:
    with pytest.raises(DataError, match=r"cannot be handed to its rank: TypeError: .*lock.*must consist of tensors"):
        Handover.of([threading.Lock()], pipe)


def test_without_file_descriptors_the_limit_is_named(pipe: DescriptorPipe) -> None:
    said = r"Too many open files.*a process may have \d+ \(ulimit -n; it may be raised to -?\d+\)\. Raise the limit"
    handed = Handover.of([torch.ones(3)], pipe)
    with few_descriptors(0), contextlib.ExitStack() as files:
        with contextlib.suppress(OSError):
            while True:
                files.enter_context(Path(os.devnull).open())
        with pytest.raises(DataError, match=f"cannot be handed to its rank: .*{said}"):
            Handover.of([torch.ones(3)], pipe)
        with pytest.raises(DataError, match=f"did not reach its rank: .*{said}"):
            handed.open()


@pytest.mark.parametrize("kind", [Drawing, DrawingStream])
def test_many_shards_are_read_with_few_file_descriptors(kind: type[Any]) -> None:
    def fit(loading: Loading | None) -> str:
        torch.manual_seed(0)
        recipe = Recipe(batch_size=128, shards=128)
        trainer = Trainer(nn.Linear(6, 3), nn.functional.cross_entropy, lambda p: torch.optim.SGD(p, lr=0.1), recipe)
        trainer.fit(kind(130), loading=loading)
        return trainer.fingerprint()

    expected = fit(None)
    with few_descriptors(100):
        assert fit(Loading(2, timeout_s=20)) == expected
