"""What is pinned, and that it is all of a batch. What pinning needs is not here, so tensors only say that they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from samegrad.parallel.pinning import pinned, wants_pinning
from samegrad.trainer.descriptors import DescriptorPipe
from samegrad.trainer.handover import Handover
from samegrad.trainer.stream import StreamPortion

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


class Pinned(Tensor):
    """Host memory that says that it is pinned."""

    def is_pinned(self, device: Any = None) -> bool:
        return True


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tensor, "is_pinned", lambda _: False)
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor.clone().as_subclass(Pinned))


def test_only_host_memory_on_its_way_to_a_cuda_device_is_pinned(pretended: None) -> None:
    tensor = torch.arange(3)
    assert wants_pinning(tensor, CUDA)
    assert wants_pinning(tensor, torch.device("cuda:1"))
    assert not wants_pinning(tensor, CPU)
    assert not wants_pinning(torch.empty(3, device="meta"), CUDA)
    assert not wants_pinning(torch.eye(3).to_sparse(), CUDA)
    assert pinned(tensor, CPU) is tensor
    there = pinned(tensor, CUDA)
    assert isinstance(there, Pinned)
    assert there.tolist() == [0, 1, 2]
    assert pinned(there, CUDA) is there


@dataclass
class Inputs:
    pixels: Tensor
    names: list[str]


def test_loader_workers_results_are_pinned_whole(pretended: None) -> None:
    """As torch's thread does it: dataclasses, and what a stream gives, are."""
    from torch.utils.data._utils.pin_memory import pin_memory

    batch = ({"a": Inputs(torch.ones(2), ["x", "y"])}, (torch.zeros(2), 3))
    for value in ({0: batch}, StreamPortion(2, True, b"digest", {0: batch})):
        pipe = DescriptorPipe()
        read = pin_memory(Handover.of(value, pipe))
        pipe.close()
        assert isinstance(read, Handover)
        assert isinstance(read.memory, Pinned)  # all tensors of the value lie in there
        found = read.open()
        assert type(found) is type(value)
        X, y = (found.batches if isinstance(found, StreamPortion) else found)[0]
        assert X["a"].pixels.tolist() == [1, 1]
        assert y[0].untyped_storage().data_ptr() == read.memory.untyped_storage().data_ptr()
        assert X["a"].names == ["x", "y"]
        assert y[1] == 3
