"""Who is told what `fit` does: callbacks, and single functions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TypeVar

from samegrad.callbacks.callback import Callback
from samegrad.callbacks.reports import EpochReport, OnEpoch, OnSave, OnStep, SaveReport, StepReport
from samegrad.errors import ConfigurationError

__all__ = ["Listeners"]

_R = TypeVar("_R")


class Listeners:
    """Tells callbacks and functions in the order they are given, callbacks first; closes the callbacks at the end.

    Where one raises, its name and the moment are noted on the exception. If something else has failed, closing is tried
    and what fails then is not heard of. Raises ConfigurationError for what cannot be called.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback],
        on_step: OnStep | Sequence[OnStep] | None,
        on_epoch: OnEpoch | Sequence[OnEpoch] | None,
        on_save: OnSave | Sequence[OnSave] | None,
    ) -> None:
        if not isinstance(callbacks, list | tuple):
            raise ConfigurationError(f"fit: callbacks must be a list; got {callbacks!r}")
        for callback in callbacks:
            if not isinstance(callback, Callback):
                raise ConfigurationError(
                    f"fit: callbacks must derive from samegrad.callbacks.Callback; got {callback!r}. Functions go "
                    f"to on_step, on_epoch or on_save"
                )
        self._callbacks = callbacks
        self._on_step: list[OnStep] = [*(each.on_step for each in callbacks), *_listed("on_step", on_step)]
        self._on_epoch: list[OnEpoch] = [*(each.on_epoch for each in callbacks), *_listed("on_epoch", on_epoch)]
        self._on_save: list[OnSave] = [*(each.on_save for each in callbacks), *_listed("on_save", on_save)]

    def on_step(self, report: StepReport) -> None:
        """A step is done."""
        _tell(self._on_step, report, f"on_step of step {report.step + 1} in epoch {report.epoch + 1}")

    def on_epoch(self, report: EpochReport) -> None:
        """An epoch is done."""
        _tell(self._on_epoch, report, f"on_epoch of epoch {report.epoch + 1}")

    def on_save(self, report: SaveReport) -> None:
        """A checkpoint is complete."""
        _tell(self._on_save, report, f"on_save of {report.path}")

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.ExitStack() as stack:
            for callback in reversed(self._callbacks):
                if error is not None:
                    stack.enter_context(contextlib.suppress(Exception))
                stack.callback(callback.close)


def _listed(
    name: str, given: Callable[[_R], None] | Sequence[Callable[[_R], None]] | None
) -> Sequence[Callable[[_R], None]]:
    functions = () if given is None else (given,) if callable(given) else given
    if not isinstance(functions, list | tuple) or not all(map(callable, functions)):
        raise ConfigurationError(f"fit: {name} must be a function or a list of functions; got {given!r}")
    return functions


def _tell(functions: Sequence[Callable[[_R], None]], report: _R, when: str) -> None:
    for function in functions:
        with _noting(function, when):
            function(report)


@contextlib.contextmanager
def _noting(function: Callable[[_R], None], when: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"raised by the callback {getattr(function, '__qualname__', repr(function))}, {when}")
        raise
