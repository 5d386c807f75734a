"""The exception tree: as drawn in the module, each with a builtin to catch it by, all of them pickled whole."""

from __future__ import annotations

import builtins
import pickle
import re
from collections.abc import Iterator, Mapping

import pytest

from samegrad import errors
from samegrad.errors import GroupError, SamegradError, WorkerDied, WorkerFailed

CLASSES: list[type[SamegradError]] = [getattr(errors, name) for name in errors.__all__]

CASES: list[tuple[SamegradError, Mapping[str, object]]] = [
    *[(cls("what failed"), {"rank": -1} if issubclass(cls, GroupError) else {}) for cls in CLASSES],
    *[(cls("what failed", 3), {"rank": 3}) for cls in CLASSES if issubclass(cls, GroupError)],
    (WorkerFailed("what failed", 2, "Traceback: here"), {"rank": 2, "worker_traceback": "Traceback: here"}),
    (WorkerFailed("what failed", rank=2), {"rank": 2, "worker_traceback": ""}),
    (WorkerDied("what failed", rank=0, exit_code=-9), {"rank": 0, "exit_code": -9}),
]


def drawn_tree(docstring: str) -> Iterator[tuple[str, str, str]]:
    """(class, its parent, its builtin or "") for each branch drawn in `docstring`."""
    path: dict[int, str] = {}
    for line in docstring.splitlines():
        branch = re.match(r"(?P<indent>[ |]*)(?:\+--|`--) (?P<name>\w+)(?: \((?P<builtin>\w+)\))?", line)
        if branch:
            depth = len(branch["indent"])
            path[depth] = branch["name"]
            yield branch["name"], path.get(depth - 4, "SamegradError"), branch["builtin"] or ""


def builtin_bases(cls: type[SamegradError]) -> set[type]:
    """The builtin exceptions that `cls` is, without those that every exception is."""
    return {base for base in cls.__mro__ if base.__module__ == "builtins"} - {object, BaseException, Exception}


def test_drawn_tree_is_the_tree() -> None:
    drawn = list(drawn_tree(errors.__doc__ or ""))
    assert {name for name, _, _ in drawn} | {"SamegradError"} == set(errors.__all__)
    for name, parent, builtin in drawn:
        cls, foreign = getattr(errors, name), getattr(builtins, builtin) if builtin else None
        assert cls.__bases__ == tuple(base for base in (getattr(errors, parent), foreign) if base), name


@pytest.mark.parametrize("cls", CLASSES)
def test_class_derives_from_the_base_and_from_a_builtin(cls: type[SamegradError]) -> None:
    assert issubclass(cls, SamegradError)
    assert cls is SamegradError or builtin_bases(cls)
    assert cls.__doc__


@pytest.mark.parametrize(("error", "attributes"), CASES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_error_survives_pickling(error: SamegradError, attributes: Mapping[str, object], protocol: int) -> None:
    copy = pickle.loads(pickle.dumps(error, protocol))
    assert type(copy) is type(error)
    assert str(copy) == str(error) == "what failed"
    assert copy.args == error.args
    assert vars(copy) == vars(error)
    for name, value in attributes.items():
        assert getattr(copy, name) == value


def test_builtin_bases_finds_none_in_a_class_without_one() -> None:
    class Bare(SamegradError):
        pass

    assert builtin_bases(Bare) == set()
