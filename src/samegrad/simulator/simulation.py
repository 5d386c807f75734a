"""What a schedule takes on a topology: the record."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from samegrad.schedules.ir import Collective
from samegrad.simulator.messages import Messages
from samegrad.simulator.sharing import Floats
from samegrad.topology.graph import Topology

__all__ = ["Simulation", "Step"]


@dataclass(frozen=True, slots=True)
class Step:
    """One message on the critical path.

    number_of_round: of the schedule. source, target: ranks; the same one for what a rank moves within itself.
    start: when it began to be sent, in seconds. arrived: when all of it was there. end: when it had been added, too.
    """

    number_of_round: int
    source: int
    target: int
    nbytes: float
    start: float
    arrived: float
    end: float


@dataclass(frozen=True, eq=False)
class Simulation:
    """What a schedule takes on a topology; made by `simulate`.

    algorithm: name of the schedule. nbytes: of the buffer. ranks: those that hold gradients.
    seconds: until every rank has what it shall have.
    barriers: whether rounds waited for each other.
    placement: the node of each rank.
    rounds: start and end of each round in seconds, a row each; rounds overlap, unless there are barriers.
    busy: seconds that each directed link needs for all that passes it, at its full rate.
    messages: what ranks sent each other. starts, arrivals, ends: when each of these began to be sent, was there, and
        had been added, in seconds.
    critical_path: the messages that the end waited for, from the first to the last.
    """

    algorithm: str
    collective: Collective
    nbytes: float
    ranks: int
    seconds: float
    barriers: bool
    topology: Topology
    placement: tuple[str, ...]
    rounds: Floats = field(repr=False)
    busy: Floats = field(repr=False)
    messages: Messages = field(repr=False)
    starts: Floats = field(repr=False)
    arrivals: Floats = field(repr=False)
    ends: Floats = field(repr=False)
    critical_path: tuple[Step, ...] = field(repr=False)

    @property
    def algorithm_bandwidth(self) -> float:
        """Bytes of the buffer per second, in bytes/s; infinite if it takes no time."""
        return self.nbytes / self.seconds if self.seconds else math.inf

    @property
    def bus_bandwidth(self) -> float:
        """The same, made comparable over numbers of ranks: what each rank must send at least, per second."""
        share = {Collective.REDUCE: 1.0, Collective.BROADCAST: 1.0}.get(self.collective, (self.ranks - 1) / self.ranks)
        return self.algorithm_bandwidth * share * (2 if self.collective is Collective.ALL_REDUCE else 1)

    @property
    def busiest_link(self) -> str:
        """The directed link that is busy for longest, as "gpu0 -> plx0"; "" if there is none."""
        if not self.busy.any():
            return ""
        return self.topology.link_name(int(np.argmax(self.busy >= self.busy.max() * (1 - 1e-9))))

    @property
    def utilization(self) -> float:
        """The part of the time for which the busiest link is busy, 0 to 1."""
        part = float(self.busy.max(initial=0.0)) / self.seconds if self.seconds else 0.0
        return min(part, 1.0)  # which rounding may exceed

    def trace(self) -> dict[str, Any]:
        """A timeline of all messages, for json.dump and then for ui.perfetto.dev or chrome://tracing."""
        from samegrad.simulator.trace import trace_of

        return trace_of(self)

    def to_json(self) -> dict[str, Any]:
        """The figures, as JSON values."""
        return {
            "algorithm": self.algorithm,
            "collective": str(self.collective),
            "topology": self.topology.name,
            "ranks": self.ranks,
            "nbytes": self.nbytes,
            "time_s": self.seconds,
            "algbw": self.algorithm_bandwidth if self.seconds else None,
            "busbw": self.bus_bandwidth if self.seconds else None,
            "busiest_link": self.busiest_link,
            "busiest_link_utilization": self.utilization,
            "rounds": len(self.rounds),
            "messages": len(self.messages),
            "barriers": self.barriers,
        }
