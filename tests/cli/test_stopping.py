"""The handlers of signals during a run, and what is there afterwards."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest

from samegrad.cli.stopping import StoppedBySignal


def test_the_handlers_of_before_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with StoppedBySignal(saves=True):
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_where_a_handler_is_not_of_python_the_default_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[Any] = []
    real: Callable[..., Any] = signal.signal

    def not_of_python(number: int, handler: Any) -> Any:
        if handler is None:
            raise TypeError("as signal.signal does")
        set_to.append((number, handler))

    with monkeypatch.context() as patch:
        patch.setattr(signal, "signal", not_of_python)
        with StoppedBySignal(saves=True):
            set_to.clear()
    assert set_to == [(signal.SIGINT, signal.SIG_DFL), (signal.SIGTERM, signal.SIG_DFL)]
    assert signal.signal is real
