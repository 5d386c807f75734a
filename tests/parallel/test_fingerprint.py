"""The fingerprint: computed by hand, equal for equal bits, different for everything else."""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from samegrad.parallel import fingerprint


def test_by_hand() -> None:
    """Name, dtype, shape, and the bytes row by row, little-endian, of every tensor in order."""
    state = {
        "layer.weight": torch.tensor([[1.0, -0.0], [2.5, 3.0]]),
        "steps": torch.tensor(258),
        "mask": torch.tensor([True, False]),
    }
    text = b"layer.weight\nfloat32\n[2, 2]\n" + struct.pack("<4f", 1.0, -0.0, 2.5, 3.0)
    text += b"steps\nint64\n[]\n" + struct.pack("<q", 258)
    text += b"mask\nbool\n[2]\n" + b"\x01\x00"
    assert fingerprint(state) == hashlib.sha256(text).hexdigest()


def test_of_a_model_is_that_of_its_state() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    assert fingerprint(model) == fingerprint(model.state_dict())
    assert len(fingerprint(model)) == 64


def test_of_nothing_is_that_of_no_bytes() -> None:
    assert fingerprint({}) == fingerprint(nn.ReLU()) == hashlib.sha256(b"").hexdigest()


def base() -> dict[str, Tensor]:
    return {"a": torch.tensor([1.0, 2.0, 0.0, 4.0]), "b": torch.tensor([[1, 2], [3, 4]])}


CHANGES: dict[str, Any] = {
    "name": lambda state: {"A": state["a"], "b": state["b"]},
    "order": lambda state: dict(reversed(state.items())),
    "dtype": lambda state: state | {"a": state["a"].view(torch.int32)},
    "shape": lambda state: state | {"a": state["a"].view(2, 2)},
    "one bit": lambda state: state | {"a": torch.nextafter(state["a"], torch.tensor(9.0))},
    "sign of zero": lambda state: state | {"a": torch.tensor([1.0, 2.0, -0.0, 4.0])},
    "rows and columns": lambda state: state | {"b": state["b"].t()},
    "one more": lambda state: state | {"c": torch.empty(0)},
    "one less": lambda state: {"a": state["a"]},
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_changes_it(change: str) -> None:
    assert fingerprint(CHANGES[change](base())) != fingerprint(base())


def test_what_is_no_tensor_does_not_count() -> None:
    assert fingerprint(base() | {"note": "text", "extra": None}) == fingerprint(base())


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(1.5),
        torch.empty(0, 3),
        torch.linspace(-1, 1, 12).view(3, 4).bfloat16(),
        torch.tensor([[1 + 2j, -0.5j]]),
        torch.tensor([1, 2], dtype=torch.uint8),
        torch.tensor(True),
        torch.tensor([float("nan"), float("-inf")]),
        nn.Parameter(torch.ones(2)),
    ],
)
def test_every_kind_of_tensor(tensor: Tensor) -> None:
    assert fingerprint({"x": tensor}) == fingerprint({"x": tensor.detach().clone()})
    assert fingerprint({"x": tensor}) != fingerprint({"y": tensor})


def test_how_a_tensor_lies_in_memory_does_not_count() -> None:
    dense = torch.arange(24.0).view(2, 3, 2, 2)
    layouts = [
        dense,
        dense.to(memory_format=torch.channels_last),
        torch.empty(2, 3, 4, 2)[:, :, ::2].copy_(dense),
        torch.empty(25)[1:].view(2, 3, 2, 2).copy_(dense),
        dense.transpose(0, 1).contiguous().transpose(0, 1),
    ]
    assert len({fingerprint({"x": layout}) for layout in layouts}) == 1
    complex_numbers = torch.tensor([1 + 2j, 3 - 4j])
    assert fingerprint({"x": complex_numbers.conj()}) == fingerprint(
        {"x": complex_numbers.conj().clone().resolve_conj()}
    )
    assert fingerprint({"x": complex_numbers.conj()}) != fingerprint({"x": complex_numbers})


def test_every_bit_of_a_half_counts() -> None:
    one = torch.tensor([1.0], dtype=torch.bfloat16)
    next_one = (one.view(torch.int16) + 1).view(torch.bfloat16)
    assert fingerprint({"x": one}) != fingerprint({"x": next_one})
