"""The exchange of gradients while backward makes them: buckets, in one order on all ranks.

    backward    d   c   b   a         gradients arrive, those of the last layers first
    buckets    [d] [c   b   a]        `fill` writes one into its slots when it is complete, then it is started
    finish                   .        the rest is started; all are waited for

A bucket is started when all that is expected has arrived in it, and all buckets ahead of it were started: the order
never depends on the order in which gradients arrive. Expected is a gradient of each parameter that is trained or, of a
reducer that `guesses`, as many as in the backward before. One that comes after its bucket was started makes it `late`;
such a bucket has to be done `again`, by all ranks. Who uses a reducer decides what a contribution is, and what becomes
of the sum: `GradientSum` and `GradientSync` do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from samegrad.bucketing import buckets, usual_size
from samegrad.executors import Exchange, Group, SoloGroup
from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.parallel.exchange import prepare_exchange
from samegrad.parallel.layout import FlatLayout
from samegrad.parallel.lines import line_for
from samegrad.strategy import Strategy

__all__ = ["Bucket", "Reducer", "Shares", "short_name"]

_IN_MEMORY = 4 << 20  # bytes of a bucket that goes over no link: what was just filled is in a cache still
_LONGEST_NAME = 40  # of a parameter, in the name of an operation


def short_name(parameter: str) -> str:
    """The name of a parameter as it stands in the name of an operation."""
    return parameter.encode("ascii", "replace")[-_LONGEST_NAME:].decode()


@dataclass(frozen=True, slots=True)
class Shares:
    """Who contributes what: rank r of `group` the shards `cut[r]` of all `leaves`; added up by `strategy`."""

    group: Group
    cut: Sequence[range]
    leaves: int
    strategy: Strategy | None = None

    def bucket_bytes(self, nbytes: int) -> int:
        """Least size of a bucket, for gradients of `nbytes` bytes."""
        if self.strategy is not None and self.strategy.bucket_bytes is not None:
            return self.strategy.bucket_bytes
        return _IN_MEMORY if isinstance(self.group, SharedMemoryGroup | SoloGroup) else usual_size(nbytes)

    @property
    def are_sharded(self) -> bool:
        """Whether each rank adds up one part, along the tree."""
        return (
            self.strategy is not None and self.strategy.algorithm == "sharded" and not self.strategy.options().given()
        )


class Bucket:
    """The parameters at `positions`, whose gradients are exchanged together, as flat buffers of `layout`.

    number: its place in the order. total: the sum over all ranks, after `Reducer.finish`.
    """

    def __init__(
        self, number: int, positions: Sequence[int], parameters: Sequence[nn.Parameter], exchange: Exchange
    ) -> None:
        self.number, self.positions = number, list(positions)
        self.layout = FlatLayout([parameters[position] for position in positions])
        self.exchange = exchange
        self.total: list[Tensor] = []
        self._slots: dict[tuple[int, ...], list[Tensor]] = {}  # by address

    def slot(self, number: int) -> list[Tensor]:
        """This rank's contribution `number`, as one tensor for each parameter; see `Exchange.slot`."""
        flats = self.exchange.slot(number)  # asked for every time: it waits until the slot is free, and may change
        place = tuple(flat.data_ptr() for flat in flats)
        if place not in self._slots:
            for flat in flats:
                flat.zero_()  # what lies between the parameters is added up as well
            self._slots[place] = self.layout.views(flats)
        return self._slots[place]


class Reducer:
    """The exchanges of the gradients of `parameters` (name, parameter), prepared alike on all ranks.

    fill: writes the contributions of this rank to a bucket into its slots. results: the buffers in which an exchange
    leaves its sum, see `Executor.prepare`; None to leave that to it. taken: called when the sum of a bucket is there,
    where it was exchanged: on a thread and a stream of its own, mostly.

    A backward is: `begin`, `arrived` for each gradient, `finish`, and `again` if any rank has late buckets.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, nn.Parameter]],
        shares: Shares,
        operation: str,
        fill: Callable[[Bucket], None],
        results: Callable[[FlatLayout], list[Tensor] | None] = lambda _: None,
        guesses: bool = False,
        taken: Callable[[Bucket], None] = lambda _: None,
    ) -> None:
        plain = [parameter for _, parameter in parameters]
        backwards = range(len(plain))[::-1]
        nbytes = [plain[position].nbytes for position in backwards]
        parts = buckets(nbytes, shares.bucket_bytes(sum(nbytes)))
        self.buckets: list[Bucket] = []
        for part in parts:
            positions = sorted(backwards[at] for at in part)
            layout = FlatLayout([plain[position] for position in positions])
            first = short_name(parameters[backwards[part[0]]][0])
            where = f"{operation}, bucket {len(self.buckets)} from {first} on"
            exchange = prepare_exchange(
                shares.group, shares.strategy, shares.cut, shares.leaves, layout.sizes, where, results(layout)
            )
            self.buckets.append(Bucket(len(self.buckets), positions, plain, exchange))
        self._bucket_of = [0] * len(plain)
        for bucket in self.buckets:
            for position in bucket.positions:
                self._bucket_of[position] = bucket.number
        self._line = line_for(shares.group, plain[0].device if plain else torch.device("cpu"))
        self._fill, self._taken = fill, taken
        self._parameters, self._guesses = plain, guesses
        self._expected = self._trained()
        self._found = [0] * len(self.buckets)
        self._started, self._is_running = 0, False
        self.late: set[int] = set()

    @property
    def starts_early(self) -> bool:
        """Whether a bucket may be started before backward has ended; if not, nobody needs to tell what has `arrived`.
        A single bucket is complete when all is."""
        return len(self.buckets) > 1

    @property
    def started(self) -> int:
        """How many buckets were started in this backward."""
        return self._started

    @property
    def is_apart(self) -> bool:
        """See `Line`."""
        return self._line.is_apart

    def begin(self) -> None:
        """A backward begins whose gradients are exchanged; what was started for one that failed is waited for."""
        if self._is_running:
            self._line.finish()
        self._is_running = True
        self._found = [0] * len(self.buckets)
        self._started, self.late = 0, set()

    def arrived(self, position: int) -> None:
        """The gradient of the parameter at `position` is there, or more of it."""
        if not self._guesses and not any(self._found):  # not before: forward may have frozen or unfrozen something
            self._expected = self._trained()
        number, found = self._bucket_of[position], self._found
        found[number] += 1
        if number < self._started:
            self.late.add(number)
        elif found[number] >= self._expected[number]:
            while self._started < len(self.buckets) and self._found[self._started] >= self._expected[self._started]:
                self._start_next()

    def start_rest(self) -> None:
        """Backward has ended: starts all buckets that were not complete."""
        while self._started < len(self.buckets):
            self._start_next()

    def finish(self) -> None:
        """Returns when all sums are there."""
        self.start_rest()
        self._line.finish()
        self._is_running = False
        if self._guesses:
            self._expected = self._found

    def again(self, late: Collection[int]) -> None:
        """Exchanges the buckets `late` (of any rank) once more; all ranks call it alike."""
        for number in sorted(late):
            self._start(self.buckets[number])
        self._line.finish()

    def close(self) -> None:
        """Lets go of all buffers."""
        self._line.close()
        for bucket in self.buckets:
            bucket.exchange.close()

    def _trained(self) -> list[int]:
        return [sum(self._parameters[at].requires_grad for at in bucket.positions) for bucket in self.buckets]

    def _start_next(self) -> None:
        self._start(self.buckets[self._started])
        self._started += 1

    def _start(self, bucket: Bucket) -> None:
        with torch.no_grad():
            self._fill(bucket)

        def take(total: list[Tensor]) -> None:
            bucket.total = total
            self._taken(bucket)

        self._line.start(bucket.exchange, take, f"bucket {bucket.number}", is_last=bucket is self.buckets[-1])
