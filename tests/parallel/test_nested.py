"""Batches of any structure: counted, cut and mapped without a change of their kind."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from samegrad.errors import ConfigurationError
from samegrad.parallel.nested import count_examples, cut, leaves, map_tensors


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclass
class Record:
    a: Any
    b: Any = None
    made: str = field(default="here", init=False)


@dataclass(frozen=True, slots=True)
class Frozen:
    a: Any


class Opaque:
    pass


def rows(total: int, *shape: int) -> Tensor:
    return torch.arange(total).reshape(-1, *(1 for _ in shape)).expand(total, *shape)


# Structures whose tensors have 6 rows


def as_list_dict(x: Tensor) -> Any:
    return [x, {"k": x}]


STRUCTURES: dict[str, Any] = {
    "tensor": lambda x: x,
    "tuple": lambda x: (x, 3, x),
    "list": lambda x: [x, "text", x],
    "dict": lambda x: {"b": x, "a": 1},
    "OrderedDict": lambda x: OrderedDict(b=x, a=x),
    "defaultdict": lambda x: defaultdict(list, b=x, a=x),
    "UserDict": lambda x: UserDict(b=x, a=x),
    "namedtuple": lambda x: Pair(x, Pair(None, x)),
    "dataclass": lambda x: Record(x, "name"),
    "frozen dataclass": lambda x: Frozen([x]),
    "deep": lambda x: {"loss": x, "aux": [x, (x, {"more": Record(x)})]},
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_cut_keeps_types_and_order_and_takes_the_rows(name: str) -> None:
    make = STRUCTURES[name]
    found = cut(make(rows(6, 2)), range(2, 5), 6)
    expected = make(rows(6, 2)[2:5])
    assert flatten(found) == flatten(expected)


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_map_reaches_every_tensor_and_keeps_the_rest(name: str) -> None:
    make = STRUCTURES[name]
    before = make(rows(6))
    assert flatten(map_tensors(lambda tensor: tensor + 10, before)) == flatten(make(rows(6) + 10))
    assert flatten(before) == flatten(make(rows(6)))  # which it did not touch


@pytest.mark.parametrize("name", STRUCTURES)
def test_examples_are_counted_in_any_structure(name: str) -> None:
    assert count_examples(STRUCTURES[name](rows(6, 2))) == 6


def flatten(value: Any) -> Any:
    """`value` as something that can be compared: types, keys in order, tensors as lists."""
    if isinstance(value, Tensor):
        return ("tensor", value.tolist())
    if isinstance(value, dict | UserDict):
        return (type(value), [(key, flatten(part)) for key, part in value.items()])
    if isinstance(value, list | tuple):
        return (type(value), [flatten(part) for part in value])
    if isinstance(value, Record):
        return (Record, flatten(value.a), flatten(value.b), value.made)
    if isinstance(value, Frozen):
        return (Frozen, flatten(value.a))
    return value


def test_a_default_dict_keeps_its_default() -> None:
    found = cut(defaultdict(list, a=rows(4)), range(2), 4)
    assert found["absent"] == []


def test_a_mapping_that_cannot_be_made_anew_becomes_a_dict() -> None:
    found = cut(MappingProxyType({"a": rows(4)}), range(2), 4)
    assert found["a"].tolist() == [0, 1]


def test_a_cut_of_a_tensor_is_a_view() -> None:
    x = rows(6).clone()
    assert cut(x, range(2, 4), 6).data_ptr() == x[2:].data_ptr()


def test_what_is_no_tensor_is_passed_on_as_it_is() -> None:
    opaque, number, text, kind = Opaque(), 2**70, "six by six", Opaque
    values = {"opaque": opaque, "number": number, "text": text, "none": None, "kind": kind, "bytes": b"123456"}
    found = cut([rows(6), values], range(1), 6)[1]
    assert all(found[key] is value for key, value in values.items())


def test_tensors_without_dimensions_belong_to_every_example() -> None:
    scale = torch.tensor(2.0)
    assert cut((rows(6), scale), range(3), 6)[1] is scale
    assert count_examples((rows(6), scale)) == 6


def test_a_list_as_long_as_the_batch_has_one_value_per_example() -> None:
    names = ["a", "b", "c", "d"]
    batch = {
        "x": rows(4),
        "names": names,
        "ragged": [[1], [2, 2], [], [4]],
        "labels": ["cat", "dog"],
        "pair": (1, 2, 3, 4),
    }
    found = cut(batch, range(1, 3), 4)
    assert found["names"] == ["b", "c"]
    assert found["ragged"] == [[2, 2], []]
    assert found["labels"] == ["cat", "dog"]  # not one per example
    assert found["pair"] == (1, 2, 3, 4)  # nor is a tuple
    assert names == ["a", "b", "c", "d"]


def test_a_list_of_tensors_is_a_list_of_columns() -> None:
    found = cut([rows(2), rows(2), ["a", "b"]], range(1), 2)
    assert flatten(found) == flatten([rows(2)[:1], rows(2)[:1], ["a"]])


@pytest.mark.parametrize("total", [0, 1, 5])
def test_an_empty_range_has_no_rows(total: int) -> None:
    X, names = cut((rows(total, 3), ["n"] * total), range(total, total), total)
    assert X.shape == (0, 3)
    assert names == []


def test_no_examples_are_counted_too() -> None:
    assert count_examples(torch.empty(0, 3)) == 0


def test_lengths_that_disagree_are_refused_with_their_paths() -> None:
    batch = ({"image": rows(6), "mask": [rows(6), Record(rows(5))]}, rows(6))
    with pytest.raises(ConfigurationError, match="one row per example") as caught:
        count_examples(batch)
    assert "5 in [0]['mask'][1].a" in str(caught.value)
    assert "6 in [1]" in str(caught.value)


@pytest.mark.parametrize("batch", [(), ("text", 3), (torch.tensor(1.0), None), {}])
def test_a_batch_without_rows_is_refused(batch: Any) -> None:
    with pytest.raises(ConfigurationError, match="no tensor with rows"):
        count_examples(batch)


def test_leaves_of_what_contains_itself_or_is_not_complete() -> None:
    @dataclass
    class Partial:
        a: Any
        unset: Any = field(init=False)

    shared = [1]
    loop: dict[str, Any] = {"first": shared, "again": shared, "partial": Partial(2)}
    loop["self"] = [loop]
    assert dict(leaves(loop)) == {"['first'][0]": 1, "['again'][0]": 1, "['partial'].a": 2}
