"""How long a schedule takes on a topology, and what came of it: the record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from samegrad.errors import ConfigurationError
from samegrad.schedules.ir import Collective, Schedule
from samegrad.simulator.engine import Times, run
from samegrad.simulator.messages import Messages, messages_of
from samegrad.simulator.sharing import Floats
from samegrad.simulator.steps import Steps, steps_of
from samegrad.simulator.wiring import Wiring, place, wire
from samegrad.topology.graph import Topology

__all__ = ["Simulation", "Step", "simulate"]

_MOST_BYTES = 1e18


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


def simulate(
    schedule: Schedule,
    topology: Topology,
    nbytes: float,
    *,
    barriers: bool = False,
    placement: Sequence[str] | None = None,
) -> Simulation:
    """How long `schedule` takes for a buffer of `nbytes` bytes on `topology`.

    barriers: every round waits for all of the one before. Otherwise a message starts when what it needs is there.
    placement: name of the node of each rank. By default the ranks that hold gradients are the devices in their order,
        and other ranks the hosts.

    Raises ConfigurationError if the schedule does not fit, TopologyError for unknown nodes and where there is no route.
    """
    if not isinstance(nbytes, int | float) or not 1 <= nbytes <= _MOST_BYTES:
        raise ConfigurationError(
            f"{schedule.name}: nbytes must be a number of bytes from 1 to {_MOST_BYTES:g}; got {nbytes!r}"
        )
    names = place(schedule.cut, topology, placement)
    messages = messages_of(schedule, float(nbytes), with_waits=not barriers)
    wiring = wire(messages, names, topology)
    steps = steps_of(messages, wiring)
    times = run(steps.tasks, wiring.routes)
    starts = times.start[steps.first]
    arrivals = times.end[steps.send] + np.append(wiring.routes.latency, 0.0)[wiring.way]
    ends = np.maximum(arrivals, times.end[steps.last])
    columns = (messages.number_of_round, messages.source, messages.target, messages.nbytes, starts, arrivals, ends)
    return Simulation(
        schedule.name,
        schedule.collective,
        float(nbytes),
        len(schedule.cut.holders),
        float(ends.max(initial=0.0)),
        barriers,
        topology,
        names,
        _rounds(messages, starts, ends, len(schedule.rounds)),
        _busy(messages, wiring, topology),
        messages,
        starts,
        arrivals,
        ends,
        tuple(Step(*(column[each].item() for column in columns)) for each in _path(steps, times, ends)),
    )


def _path(steps: Steps, times: Times, ends: Floats) -> list[int]:
    """The messages that the last one waited for, and so on, from the first one."""
    message_of = np.full(len(times.start), -1)
    for tasks in (steps.first, steps.send, steps.last):
        message_of[tasks] = np.arange(len(ends))
    task = int(steps.last[np.argmax(ends)]) if len(ends) else -1
    found: list[int] = []
    while task >= 0:
        message = int(message_of[task])
        if message >= 0 and (not found or found[-1] != message):
            found.append(message)
        task = int(times.cause[task])
    return found[::-1]


def _rounds(messages: Messages, starts: Floats, ends: Floats, count: int) -> Floats:
    """Start and end of each round; a round without messages takes no time after the one before."""
    rounds = np.empty((count, 2))
    rounds[:, 0], rounds[:, 1] = np.inf, -np.inf
    np.minimum.at(rounds[:, 0], messages.number_of_round, starts)
    np.maximum.at(rounds[:, 1], messages.number_of_round, ends)
    for number in np.flatnonzero(np.isinf(rounds[:, 0])):
        rounds[number] = rounds[number - 1, 1] if number else 0.0
    return rounds


def _busy(messages: Messages, wiring: Wiring, topology: Topology) -> Floats:
    routes, links = wiring.routes, 2 * len(topology.links)
    sent = wiring.way >= 0
    count = len(routes.starts) - 1
    carried = np.bincount(wiring.way[sent], messages.nbytes[sent], count)
    counted = np.bincount(wiring.way[sent], minlength=count)
    lengths = np.diff(routes.starts)
    is_way = np.repeat(carried > 0, lengths)  # the others enter or add
    passed = routes.passed[is_way]
    nbytes = np.bincount(passed, np.repeat(carried, lengths)[is_way], links)
    number = np.bincount(passed, np.repeat(counted, lengths)[is_way], links)
    return np.asarray(nbytes / topology.capacities + number * topology.per_messages)
