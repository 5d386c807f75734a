"""The simulator once more, slow and plain: one transfer, one message and one float at a time.

It says what `simulate` must find; a test compares both on small cases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from samegrad.schedules.ir import Cell, Op, Round, Schedule, Transfer
from samegrad.simulator.wiring import place
from samegrad.topology.graph import Topology

__all__ = ["reference_rounds", "share_fairly"]


@dataclass
class _Stage:
    """A part of the way of a message. name: what is true after it. left: what is left of `amount`."""

    name: str
    passed: tuple[str, ...]
    amount: float
    left: float = math.nan

    def __post_init__(self) -> None:
        self.left = self.amount


@dataclass(eq=False)
class _Message:
    """waits: for others, until what is true. times: since when what is true. since: when the first of `stages` may go
    on."""

    number_of_round: int
    source: int
    target: int
    nbytes: float = 0.0
    added: float = 0.0
    reads: set[Cell] = field(default_factory=set)
    writes: set[Cell] = field(default_factory=set)
    waits: list[tuple[_Message, str]] = field(default_factory=list)
    latency: float = 0.0
    stages: list[_Stage] = field(default_factory=list)
    times: dict[str, float] = field(default_factory=dict)
    since: float = math.inf


def reference_rounds(
    schedule: Schedule,
    topology: Topology,
    nbytes: float,
    *,
    barriers: bool = False,
    placement: Sequence[str] | None = None,
) -> list[tuple[float, float]]:
    """Start and end of each round that has messages; the last end is that of all if there are barriers."""
    messages, capacity = _messages(schedule, topology, nbytes, placement)
    for message in messages:
        for other in messages:
            if other.number_of_round < message.number_of_round:
                _wait(message, other, barriers)
    _run(messages, capacity)
    rounds: dict[int, tuple[float, float]] = {}
    for message in messages:
        start, end = rounds.get(message.number_of_round, (math.inf, 0.0))
        rounds[message.number_of_round] = min(start, message.times["started"]), max(end, message.times["done"])
    return [rounds[number] for number in sorted(rounds)]


def _messages(
    schedule: Schedule, topology: Topology, nbytes: float, placement: Sequence[str] | None
) -> tuple[list[_Message], dict[str, float]]:
    names = place(schedule.cut, topology, placement)
    messages: list[_Message] = []
    capacity: dict[str, float] = {}
    for number, each in enumerate(schedule.rounds):
        by_key: dict[tuple[int, ...], _Message] = {}
        for move, key in _with_keys(each):
            size = schedule.sizes[move.chunk] * nbytes / sum(schedule.sizes)
            if size == 0:
                continue
            message = by_key.setdefault(key, _Message(number, move.source, move.target))
            message.nbytes += size
            message.added += size if move.op is Op.ADD else 0.0
            message.reads.add(move.read)
            message.writes.add(move.written)
        messages += by_key.values()
    for message in messages:
        route = topology.route(names[message.source], names[message.target]) if message.source != message.target else ()
        message.latency = sum(float(topology.latencies[link]) for link in route)
        counters = [link for link in route if topology.per_messages[link] > 0]
        rate = topology.node(names[message.target]).add_rate
        for link in route:
            capacity[f"link {link}"] = float(topology.capacities[link])
        for link in counters:
            capacity[f"counter {link}"] = 1 / float(topology.per_messages[link])
        message.stages = [
            _Stage("entered", tuple(f"counter {link}" for link in counters), 1.0),
            _Stage("left", tuple(f"link {link}" for link in route), message.nbytes),
        ]
        if message.added and rate is not None:
            adder = f"adder of {names[message.target]}"
            capacity[adder] = rate
            message.stages.append(_Stage("done", (adder,), message.added))
    return messages, capacity


def _with_keys(each: Round) -> list[tuple[Transfer, tuple[int, ...]]]:
    """Each transfer with what is equal for those of one message."""
    runs: list[list[Transfer]] = []
    for move in each:
        if runs and runs[-1][-1] == move._replace(chunk=move.chunk - 1):
            runs[-1].append(move)
        else:
            runs.append([move])
    keyed = []
    for run in runs:
        key: tuple[int, ...] = (run[0].source, run[0].target)
        if run[0].source == run[0].target:
            key = (*key, run[0].chunk, run[-1].chunk)
        keyed += [(move, key) for move in run]
    return keyed


def _wait(message: _Message, other: _Message, barriers: bool) -> None:
    if barriers or other.writes & (message.reads | message.writes):
        message.waits.append((other, "done"))
    if other.reads & message.writes:
        message.waits.append((other, "arrived" if other.source != other.target else "done"))
    if other.source == message.source and other.source != other.target and message.source != message.target:
        message.waits.append((other, "left"))


def _run(messages: list[_Message], capacity: dict[str, float]) -> None:
    now = 0.0
    while any("done" not in message.times for message in messages):
        while _settle(messages, now):
            pass
        active = [message.stages[0] for message in messages if message.since <= now and message.stages]
        rates = share_fairly([stage.passed for stage in active], capacity, [stage.amount for stage in active])
        steps = [stage.left / rate for stage, rate in zip(active, rates, strict=True)]
        times = [time for message in messages for time in (message.since, *message.times.values())]
        steps += [time - now for time in times if now < time < math.inf]
        if not steps:
            continue
        step = min(steps)
        for stage, rate in zip(active, rates, strict=True):
            stage.left = 0.0 if stage.left / rate <= step * (1 + 1e-9) else stage.left - rate * step
        now += step


def _settle(messages: list[_Message], now: float) -> bool:
    """Starts what can start and ends what has ended; returns whether there was any of it."""
    changed = False
    for message in messages:
        if "started" not in message.times:
            if all(other.times.get(what, math.inf) <= now for other, what in message.waits):
                message.times["started"] = message.since = now
                changed = True
        elif message.since <= now and message.stages and (not message.stages[0].passed or not message.stages[0].left):
            name = message.stages.pop(0).name
            message.times[name] = now
            if name == "left":
                message.times["arrived"] = message.since = now + message.latency
                if not message.stages:
                    message.times["done"] = message.since
            changed = True
    return changed


def share_fairly(flows: Sequence[Sequence[str]], capacity: dict[str, float], weights: Sequence[float]) -> list[float]:
    """The rate of each flow, given what it passes: all grow, as fast as their weights, until something is full, and so
    on."""
    rates = [0.0] * len(flows)
    growing = set(range(len(flows)))
    while growing:
        room = {}
        for name in {name for flow in growing for name in flows[flow]}:
            used = sum(rates[flow] for flow, passed in enumerate(flows) if name in passed)
            room[name] = (capacity[name] - used) / sum(weights[flow] for flow in growing if name in flows[flow])
        least = min(room.values())
        for flow in growing:
            rates[flow] += least * weights[flow]
        growing = {flow for flow in growing if all(room[name] > least * (1 + 1e-9) + 1e-300 for name in flows[flow])}
    return rates
