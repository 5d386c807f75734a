"""The time that work takes, on devices that are still at it when the call has returned.

A GPU is given work and computes it later; a clock that is read when the call returns measures the giving. So a device
is waited for before each reading of the clock. Needs no torch: where it has not been imported, no GPU has work to do.
"""

from __future__ import annotations

import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from samegrad.errors import ConfigurationError
from samegrad.units import format_seconds

if TYPE_CHECKING:
    import torch

__all__ = ["Benchmark", "Spread", "Synchronizes", "Timer", "synchronize"]


class Synchronizes(Protocol):
    """What can be waited for until all work that it was given is done: a `torch.cuda.Stream`, say."""

    def synchronize(self) -> object:
        """Returns when the work is done."""


def synchronize(device: str | torch.device | Synchronizes | None = None) -> None:
    """Waits until `device` has done all work that it was given; None: every GPU that this process has used.

    A CPU computes within the call, so there is nothing to wait for. Raises ConfigurationError for what is no device.
    """
    if device is None:
        loaded: Any = sys.modules.get("torch")
        if loaded is not None and loaded.cuda.is_initialized():
            for number in range(loaded.cuda.device_count()):
                loaded.cuda.synchronize(number)
        return
    wait: Callable[[], object] | None = getattr(device, "synchronize", None)
    if wait is not None:
        wait()
        return
    kind, _, index = str(device).partition(":")
    if kind == "cuda" and (not index or index.isdecimal()):
        import torch

        if not torch.cuda.is_available():
            raise ConfigurationError(f"timing: {device} cannot be waited for: this machine has no GPU that torch finds")
        torch.cuda.synchronize(str(device))
    elif kind != "cpu":
        raise ConfigurationError(
            f'timing: expected a device such as "cpu" or "cuda:0", or a thing with synchronize(); got {device!r}'
        )


class Timer:
    """Several times of the same, and what is usual among them. Times are in seconds.

    device: waited for before each reading of the clock, see `synchronize`; None: every GPU that this process has used.

        timer = Timer()
        for X, y in batches:
            with timer:
                step(X, y)
        print(timer.average, timer.sum, timer.cumulative)
    """

    def __init__(self, device: str | torch.device | Synchronizes | None = None) -> None:
        self.times: list[float] = []
        self._device = device
        self._started: float | None = None

    def start(self) -> None:
        """Starts a time, anew if one is running."""
        synchronize(self._device)
        self._started = time.perf_counter()

    def stop(self) -> float:
        """Ends the time that is running, keeps it, and returns it. Raises ConfigurationError where none is running."""
        if self._started is None:
            raise ConfigurationError("Timer: stop() without a start(); call start() first, or use `with timer:`")
        synchronize(self._device)
        self.times.append(time.perf_counter() - self._started)
        self._started = None
        return self.times[-1]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        else:
            self._started = None  # what was cut short is no time of it

    @property
    def sum(self) -> float:
        """All times together."""
        return sum(self.times)

    @property
    def average(self) -> float:
        """The mean of the times. Raises ConfigurationError where there is none yet."""
        return self.sum / len(self.times) if self.times else self.spread.median

    @property
    def cumulative(self) -> list[float]:
        """For each time, the sum up to it."""
        return list(itertools.accumulate(self.times))

    @property
    def spread(self) -> Spread:
        """Median, lowest and highest. Raises ConfigurationError where there is no time yet."""
        return Spread.of(self.times)


class Benchmark:
    """How long what is done `with` it takes: `with Benchmark("forward", device="cuda:0"): model(X)` prints "forward:
    12.3 ms".

    device: waited for before each reading of the clock, see `synchronize`; None: every GPU that this process has used.
    show: is given the text at the end; None: nothing is printed, read `seconds`.
    """

    def __init__(
        self,
        what: str = "done in",
        device: str | torch.device | Synchronizes | None = None,
        show: Callable[[str], object] | None = print,
    ) -> None:
        self._what = what
        self._timer = Timer(device)
        self._show = show

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.__exit__(kind, error, trace)
        if error is None and self._show is not None:
            self._show(f"{self._what}: {format_seconds(self.seconds)}")

    @property
    def seconds(self) -> float:
        """What it took, the last time. Raises ConfigurationError before the end of the first."""
        if not self._timer.times:
            raise ConfigurationError("Benchmark: nothing has been measured yet; read seconds after the `with` block")
        return self._timer.times[-1]


@dataclass(frozen=True, slots=True)
class Spread:
    """What several measurements of the same gave: lowest <= median <= highest, of `repetitions` >= 1 values."""

    median: float
    lowest: float
    highest: float
    repetitions: int

    def __post_init__(self) -> None:
        if not (self.lowest <= self.median <= self.highest and self.repetitions >= 1):
            raise ConfigurationError(f"a spread needs lowest <= median <= highest of at least one value; got {self}")

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """That of `values`. Raises ConfigurationError if there are none."""
        found = list(values)
        if not found:
            raise ConfigurationError("nothing has been measured yet: a median needs at least one value")
        return cls(statistics.median(found), min(found), max(found), len(found))

    def map(self, convert: Callable[[float], float]) -> Spread:
        """`convert`, which rises or falls throughout, of each value: seconds to bytes per second, say."""
        low, high = sorted((convert(self.lowest), convert(self.highest)))
        return Spread(min(max(convert(self.median), low), high), low, high, self.repetitions)
