"""Inputs and targets of any structure: dicts, lists, tuples, dataclasses of tensors and of anything else.

A tensor holds one example per row of its first dimension. A list without tensors that is as long as the batch (of
strings, say) holds one value per example. Tensors without dimensions and all other values belong to every example.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from samegrad.errors import ConfigurationError

__all__ = ["count_examples", "cut", "map_tensors"]


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """`value` with every tensor in it replaced by `function(tensor)`; containers keep their type."""
    return _map(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, value)


def count_examples(value: Any) -> int:
    """The number of examples in `value`; ConfigurationError if its tensors disagree, or if there are none."""
    lengths = {len(leaf): path for path, leaf in _leaves(value, "") if isinstance(leaf, Tensor) and leaf.dim()}
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
        if isinstance(leaf, Tensor) and leaf.dim():
            return leaf[rows.start : rows.stop]
        if isinstance(leaf, list):
            return leaf[rows.start : rows.stop]
        return leaf

    def is_column(leaf: Any) -> bool:
        return isinstance(leaf, list) and len(leaf) == total and not any(True for _ in _tensors(leaf))

    return _map(take, value, is_column)


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
    return (leaf for _, leaf in _leaves(value, "") if isinstance(leaf, Tensor))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _leaves(part, f"{path}[{key!r}]")
    elif isinstance(value, tuple | list):
        for index, part in enumerate(value):
            yield from _leaves(part, f"{path}[{index}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _leaves(getattr(value, field.name), f"{path}.{field.name}")
    else:
        yield path, value
