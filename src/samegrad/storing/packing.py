"""Values as JSON that come back as they were: None, bool, int, float, str, list, tuple, dict and Counter, nested.

JSON alone would turn tuples into lists and the keys of a dict into text. Needs no torch: what is not in the list above,
tensors above all, is given to the caller.

    None, true, 3, "text", 0.5   themselves; floats with all their digits
    ["x", ...]                   a list
    {"tuple": [...]}             {"dict": [[key, value], ...]}     {"Counter": [[key, value], ...]}
    {"float": "inf"}             a float that JSON does not have
    {"tensor": "name"}           what the caller put elsewhere, under this name
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

from samegrad.errors import ConfigurationError

__all__ = ["Put", "pack", "unpack"]

Put = Callable[[str, object], "str | None"]
"""Takes where a value stands ("optimizer.0.exp_avg") and the value; returns the name it put it under, or None."""


def pack(value: object, where: str, put: Put = lambda _, __: None) -> Any:
    """`value` as JSON; `where` names it. Raises ConfigurationError for what neither JSON nor `put` can hold."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if isinstance(value, float) and kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, list) and kind is list:
        return [pack(item, f"{where}.{place}", put) for place, item in enumerate(value)]
    if isinstance(value, tuple) and kind is tuple:
        return {"tuple": [pack(item, f"{where}.{place}", put) for place, item in enumerate(value)]}
    if isinstance(value, dict) and kind in (dict, OrderedDict, Counter):
        name = "Counter" if kind is Counter else "dict"
        return {
            name: [
                [pack(key, f"{where}, key {key!r}"), pack(item, f"{where}.{key}", put)] for key, item in value.items()
            ]
        }
    name_put = put(where, value)
    if name_put is None:
        raise ConfigurationError(
            f"a checkpoint cannot hold {where}, which is of type {kind.__module__}.{kind.__qualname__}; it holds "
            f"tensors, numbers, text, None, and lists, tuples and dicts of them"
        )
    return {"tensor": name_put}


def unpack(packed: Any, get: Callable[[str], Any] = lambda name: name) -> Any:
    """The inverse of `pack`; `get` gives what was put elsewhere under a name."""
    if isinstance(packed, list):
        return [unpack(item, get) for item in packed]
    if not isinstance(packed, dict):
        return packed
    ((kind, value),) = packed.items()
    match kind:
        case "tuple":
            return tuple(unpack(item, get) for item in value)
        case "dict":
            return {unpack(key): unpack(item, get) for key, item in value}
        case "Counter":
            return Counter({unpack(key): unpack(item, get) for key, item in value})
        case "float":
            return float(value)
        case "tensor":
            return get(value)
    raise ValueError(f"unknown kind of value {kind!r}")
