"""Inputs and targets of any structure: dicts, lists, tuples, dataclasses of tensors and of anything else.

A tensor holds one example per row of its first dimension. A list without tensors that is as long as the batch (of
strings, say) holds one value per example. Tensors without dimensions and all other values belong to every example.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

from samegrad.errors import ConfigurationError

__all__ = ["count_examples", "cut", "leaves", "map_tensors", "replace_rows", "rows"]


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """`value` with every tensor in it replaced by `function(tensor)`; containers keep their type."""
    return _map(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, value)


def count_examples(value: Any) -> int:
    """The number of examples in `value`; ConfigurationError if its tensors disagree, or if there are none."""
    lengths = {len(leaf): path for path, leaf in leaves(value, "") if isinstance(leaf, Tensor) and leaf.dim()}
    if len(lengths) != 1:
        found = ", ".join(f"{length} in {path or 'it'}" for length, path in lengths.items()) or "no tensor with rows"
        raise ConfigurationError(
            f"a batch must hold one row per example in every tensor (X is [0], y is [1]); found {found}. Values that "
            f"belong to no example must not be tensors with dimensions"
        )
    return next(iter(lengths))


def cut(value: Any, rows: range, total: int) -> Any:
    """The examples `rows` out of the `total` in `value`; tensors are views."""

    def take(leaf: Any) -> Any:
        return leaf[rows.start : rows.stop] if isinstance(leaf, list) or _has_rows(leaf) else leaf

    return _map(take, value, _column_of(total))


def rows(value: Any, total: int) -> list[Any]:
    """What in `value` holds one value for each of the `total` examples: tensors with dimensions, and lists."""
    found: list[Any] = []
    _map(
        lambda leaf: found.append(leaf) if isinstance(leaf, list) or _has_rows(leaf) else None, value, _column_of(total)
    )
    return found


def replace_rows(value: Any, total: int, by: Iterable[Any]) -> Any:
    """`value` with what `rows(value, total)` gives replaced by other values, in this order."""
    new = iter(by)
    return _map(lambda leaf: next(new) if isinstance(leaf, list) or _has_rows(leaf) else leaf, value, _column_of(total))


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0


def _column_of(total: int) -> Callable[[Any], bool]:
    """Whether something is a list with one value, which is no tensor, for each of `total` examples."""
    return lambda leaf: isinstance(leaf, list) and len(leaf) == total and not any(True for _ in _tensors(leaf))


def _map(function: Callable[[Any], Any], value: Any, is_leaf: Callable[[Any], bool] = lambda _: False) -> Any:
    if is_leaf(value) or isinstance(value, Tensor | str | bytes | type):
        return function(value)
    if isinstance(value, Mapping):
        pairs = {key: _map(function, part, is_leaf) for key, part in value.items()}
        return pairs if type(value) is dict else _rebuilt(value, pairs)
    if isinstance(value, tuple):
        parts = [_map(function, part, is_leaf) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, list):
        return type(value)(_map(function, part, is_leaf) for part in value)
    if dataclasses.is_dataclass(value):
        fields = {
            field.name: _map(function, getattr(value, field.name), is_leaf)
            for field in dataclasses.fields(value)
            if field.init
        }
        return dataclasses.replace(value, **fields)  # type: ignore[type-var]
    return function(value)


def _rebuilt(original: Mapping[Any, Any], pairs: dict[Any, Any]) -> Any:
    """A mapping of the type of `original`; a plain dict if its constructor does not take one."""
    if isinstance(original, defaultdict):
        return defaultdict(original.default_factory, pairs)
    try:
        return type(original)(pairs)  # type: ignore[call-arg]
    except TypeError:
        return pairs


def _tensors(value: Any) -> Iterator[Tensor]:
    return (leaf for _, leaf in leaves(value, "") if isinstance(leaf, Tensor))


def leaves(value: Any, path: str = "", within: tuple[int, ...] = ()) -> Iterator[tuple[str, Any]]:
    """What is in `value` besides containers, each with where it is: "[0]", "['pixels']", ".field".

    Fields of dataclasses that have no value are left out. within: the ids of the containers around it, which are not
    looked into again.
    """
    if id(value) in within:
        return
    parts: Iterator[tuple[str, Any]]
    if isinstance(value, Mapping):
        parts = ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, tuple | list):
        parts = ((f"[{index}]", part) for index, part in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        parts = ((f".{name}", getattr(value, name)) for name in names)
    else:
        yield path, value
        return
    for place, part in parts:
        yield from leaves(part, path + place, (*within, id(value)))
