"""Pickling functions of scripts and notebooks by value, with the names of the files they stand in.

cloudpickle replaces file names so that equal code gives equal bytes. Here the bytes do not matter, but a traceback that
cannot say which file and line failed would be of little use.
"""

from __future__ import annotations

import io
import types
from collections import ChainMap
from typing import Any, ClassVar

import cloudpickle

__all__ = ["dumps"]

_PLACEHOLDER = "<dynamic-code>"


def dumps(value: object) -> bytes:
    """`cloudpickle.dumps(value)`, keeping the file names of code."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    make, arguments = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
    return make, tuple(code.co_filename if argument == _PLACEHOLDER else argument for argument in arguments)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table: ClassVar[Any] = ChainMap({types.CodeType: _reduce_code}, cloudpickle.Pickler.dispatch_table)
