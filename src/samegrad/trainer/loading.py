"""How the examples of a data set are read while a model computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from samegrad.errors import ConfigurationError

__all__ = ["Loading"]


@dataclass(frozen=True, slots=True)
class Loading:
    """Who reads the examples; the result does not depend on it.

    workers: processes that read for each rank, beside the one that trains. 0: that one reads, when it needs something:
        best for data in memory.
    prefetch: minibatches that each of them has ready or reads ahead.
    start: "fork" copies the process that trains: it takes milliseconds, shares the memory of the data set, and needs
        nothing of it. "forkserver" makes fresh processes, to which the data set is pickled: for data sets that use a
        library that does not survive a fork.
    timeout_s: how long a rank waits for one minibatch before it gives up.
    """

    workers: int = 0
    prefetch: int = 2
    start: Literal["fork", "forkserver"] = "fork"
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        for name, least in (("workers", 0), ("prefetch", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigurationError(f"loading: {name} must be a whole number of at least {least}; got {value!r}")
        if self.start not in ("fork", "forkserver"):
            raise ConfigurationError(f"loading: start must be 'fork' or 'forkserver'; got {self.start!r}")
        number = isinstance(self.timeout_s, int | float) and not isinstance(self.timeout_s, bool)
        if not number or not self.timeout_s > 0:
            raise ConfigurationError(f"loading: timeout_s must be a number of seconds above 0; got {self.timeout_s!r}")
