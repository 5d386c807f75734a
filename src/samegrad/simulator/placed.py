"""A schedule on a topology: placed once, and run for any number of bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from samegrad.errors import ConfigurationError
from samegrad.schedules.ir import Schedule
from samegrad.simulator.engine import Times, run
from samegrad.simulator.messages import Messages, messages_of
from samegrad.simulator.sharing import Floats
from samegrad.simulator.simulation import Simulation, Step
from samegrad.simulator.steps import Steps, steps_of
from samegrad.simulator.wiring import Wiring, place, wire
from samegrad.topology.graph import Topology

__all__ = ["PlacedSchedule", "simulate"]

_MOST_BYTES = 1e18


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
    _check(schedule, nbytes)  # before the work
    return PlacedSchedule(schedule, topology, barriers=barriers, placement=placement).simulate(nbytes)


class PlacedSchedule:
    """What does not change with the number of bytes: what ranks send, the routes of it, and what waits for what.

    Arguments and errors are those of `simulate`.
    """

    def __init__(
        self,
        schedule: Schedule,
        topology: Topology,
        *,
        barriers: bool = False,
        placement: Sequence[str] | None = None,
    ) -> None:
        self._schedule, self._topology, self._barriers = schedule, topology, barriers
        self._names = place(schedule.cut, topology, placement)
        self._messages = messages_of(schedule, with_waits=not barriers)
        self._wiring = wire(self._messages, self._names, topology)
        self._steps = steps_of(self._messages, self._wiring)

    def simulate(self, nbytes: float) -> Simulation:
        """See `simulate`."""
        schedule, topology, wiring = self._schedule, self._topology, self._wiring
        _check(schedule, nbytes)
        per_part = float(nbytes) / sum(schedule.sizes)
        messages, steps = self._messages.scaled(per_part), self._steps.scaled(per_part)
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
            self._barriers,
            topology,
            self._names,
            _rounds(messages, starts, ends, len(schedule.rounds)),
            _busy(messages, wiring, topology),
            messages,
            starts,
            arrivals,
            ends,
            tuple(Step(*(column[each].item() for column in columns)) for each in _path(steps, times, ends)),
        )


def _check(schedule: Schedule, nbytes: float) -> None:
    is_number = isinstance(nbytes, int | float | np.integer | np.floating) and not isinstance(nbytes, bool)
    if not is_number or not 1 <= nbytes <= _MOST_BYTES:
        raise ConfigurationError(
            f"{schedule.name}: nbytes must be a number of bytes from 1 to {_MOST_BYTES:g}; got {nbytes!r}"
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
