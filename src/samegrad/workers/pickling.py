"""Carrying functions and values between processes by cloudpickle, with three of its habits put right.

- It replaces the file names of code, so that equal code gives equal bytes. Here the bytes do not matter, but a
  traceback that cannot say which file and line failed would be of little use. So they are kept, and for code that is
  in no file (the cells of a notebook) its text travels along.
- A class of a script travels by value. When an instance comes back, cloudpickle finds the class it came from, and
  overwrites its methods with the copies that came back, which see other globals. Here it leaves the class alone.
- It says that something cannot be pickled, but not which name of the function refers to it.
"""

from __future__ import annotations

import inspect
import io
import linecache
import pickle
import types
from collections import ChainMap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

__all__ = ["dumps", "dumps_function", "loads", "loads_function", "names_of_unpicklable"]

_PLACEHOLDER = "<dynamic-code>"


def dumps(value: object) -> bytes:
    """`cloudpickle.dumps(value)`, keeping the file names of code."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


def loads(pickled: bytes) -> Any:
    """The value that `dumps` was given, in this process or another; classes that were defined here stay as they are."""
    return _Unpickler(io.BytesIO(pickled)).load()


def dumps_function(function: Callable[[], object]) -> bytes:
    """`function`, and the text of the code in it that another process could not find in a file."""
    buffer = io.BytesIO()
    pickler = _Pickler(buffer)
    pickler.dump(function)
    texts = {name: linecache.getlines(name) for name in pickler.file_names if not Path(name).exists()}
    pickle.dump({name: lines for name, lines in texts.items() if lines}, buffer)
    return buffer.getvalue()


def loads_function(pickled: bytes) -> Callable[[], Any]:
    """The function that `dumps_function` was given; tracebacks through it show its lines."""
    stream = io.BytesIO(pickled)
    function: Callable[[], Any] = pickle.load(stream)
    for name, lines in pickle.load(stream).items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    return function


def names_of_unpicklable(function: object) -> list[str]:
    """The variables that `function` uses from around it and that cannot be pickled."""
    if isinstance(function, types.MethodType):
        return ["self"] if _fails(function.__self__) else []
    if not isinstance(function, types.FunctionType):
        return []
    try:
        used = inspect.getclosurevars(function)
    except ValueError:  # a variable that has no value yet
        return []
    defaults = {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}
    return [name for name, value in {**defaults, **used.globals, **used.nonlocals}.items() if _fails(value)]


def _fails(value: object) -> bool:
    try:
        dumps(value)
    except Exception:
        return True
    return False


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, stream: io.BytesIO) -> None:
        self.file_names: set[str] = set()
        self.dispatch_table = ChainMap({types.CodeType: self._reduce_code}, cloudpickle.Pickler.dispatch_table)
        super().__init__(stream)  # which looks the table up

    def _reduce_code(self, code: types.CodeType) -> tuple[Any, ...]:
        self.file_names.add(code.co_filename)
        make, arguments = cloudpickle.Pickler.dispatch_table[types.CodeType](code)
        return make, tuple(
            code.co_filename if isinstance(argument, str) and argument == _PLACEHOLDER else argument
            for argument in arguments
        )


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self._known = set(getattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", ()))

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if name != "_class_setstate" or module.partition(".")[0] != "cloudpickle":
            return found
        return lambda made, state: made if made in self._known else found(made, state)
