from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict
from typing import Any

import pytest
import torch

from samegrad.errors import ConfigurationError
from samegrad.storing.packing import pack, unpack
from samegrad.storing.tensor_file import putting

VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1 << 70, "", "text \u00e4", 0.1, -0.0, 1e-320, 1e308),
    *([], (), {}, [1, [2.5]], (0.9, 0.999), ((1,), [None])),
    {"a": (1, 2), 3: {"b": [True]}, (1, "x"): None, 2.5: -1, True: 0},
    {"tuple": [1]},  # as a user may call a key what we call a kind
    Counter({3: 2, 7: 1}),
    [math.inf, -math.inf],
]


def through_json(value: Any) -> Any:
    return unpack(json.loads(json.dumps(pack(value, "it"), allow_nan=False)))


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_come_back_exactly_with_their_types(value: Any) -> None:
    assert repr(through_json(value)) == repr(value)


def test_nan_and_ordered_dicts_come_back() -> None:
    assert math.isnan(through_json({"a": math.nan})["a"])
    assert list(through_json(OrderedDict([("b", 1), ("a", 2)]))) == ["b", "a"]


def test_tensors_go_elsewhere_and_each_has_a_name() -> None:
    tensors: dict[str, torch.Tensor] = {}
    value = {"a": {"b": torch.tensor(1)}, "a.b": torch.tensor(2)}
    packed = pack(value, "o", putting(tensors))
    assert len(tensors) == 2
    back = unpack(json.loads(json.dumps(packed)), tensors.__getitem__)
    assert (int(back["a"]["b"]), int(back["a.b"])) == (1, 2)


@pytest.mark.parametrize("value", [{1}, b"x", 1j, torch.float32, object, torch.Size([1])], ids=repr)
def test_what_cannot_be_held_is_named(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot hold optimizer\.a\.1, which is of type "):
        pack({"a": [0, value]}, "optimizer")
