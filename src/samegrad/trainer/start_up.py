"""Saving a second at the start of a command line run: torch's compiler is not imported until something asks for it.

The first optimizer that torch makes imports `torch._dynamo`, only to tell a compiler that may be at work to stay away
from its `step`. That import takes about as long as torch itself. Where nothing is compiled, a stand-in with the two
functions that optimizers call does as well: `graph_break`, which does nothing outside of compiled code, and `disable`,
whose result outside of compiled code does what the function does. Whatever else is asked of it brings the real one in.

Only the job of the command line, with models and optimizers of our own, calls this. A process of a user is never
touched.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["postpone_compiler"]

_NAME = "torch._dynamo"


def postpone_compiler() -> None:
    """Puts a stand-in in the place of `torch._dynamo`, unless that is there; it gives way when more is asked of it."""
    if _NAME not in sys.modules:
        import torch

        stand_in = _StandIn()
        sys.modules[_NAME] = stand_in
        torch._dynamo = stand_in
        sys.meta_path.insert(0, stand_in.finder)


class _StandIn(ModuleType):
    """`torch._dynamo` as long as nobody compiles."""

    def __init__(self) -> None:
        super().__init__(_NAME, __doc__)
        self.__path__: list[str] = []  # a package, so that a submodule is looked for, which `finder` notices
        self.finder = _Finder(self)
        self._disabled: list[Any] = []

    def graph_break(self, msg: str = "") -> None:
        """Nothing, outside of compiled code."""

    def disable(self, fn: Callable[..., Any], recursive: bool = True, **_: object) -> Callable[..., Any]:
        """`fn` itself. torch keeps the answer as an attribute of `fn`, so `fn` is remembered."""
        self._disabled.append(fn)
        return fn

    def give_way(self) -> ModuleType:
        """The real module, in the place of this one."""
        if sys.modules.get(_NAME) is self:
            import torch

            sys.meta_path.remove(self.finder)
            del sys.modules[_NAME]
            del torch._dynamo
            for fn in self._disabled:  # ask the real one the next time
                vars(fn).pop("__dynamo_disable", None)
        return importlib.import_module(_NAME)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # who looks through all modules (inspect does) asks for no more than this
            raise AttributeError(name)
        return getattr(self.give_way(), name)


class _Finder(MetaPathFinder):
    """Notices the import of a submodule of the stand-in, before which the real package must be there."""

    def __init__(self, stand_in: _StandIn) -> None:
        self._stand_in = stand_in

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(_NAME + "."):
            return None
        self._stand_in.give_way()
        module = importlib.import_module(name)
        spec = ModuleSpec(name, _Loaded(module))
        module.__spec__ = spec  # the import system, which finds the module loaded by now, follows this one
        return spec


class _Loaded(Loader):
    """Hands out a module that has been loaded already, as it is."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
