"""Measures how fast the ranks of one host add up in memory that all of them map: the times of a `SharedHost`.

Each addition is done a few times, on parts of buffers as large as those of the exchange in question, which were written
before as a step and an exchange write them: so it finds in caches what it will find there.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from samegrad.executors.additions import Run, add_up
from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.machine import usable_cores
from samegrad.schedules import build
from samegrad.schedules.places import BLOCK
from samegrad.simulator.shared_host import Addition, SharedHost, SharedWork

__all__ = ["measure_host"]

_OPERATION = "measuring the host"
_MOST, _LEAST, _TOGETHER = 16e6, 4e6, 64e6  # bytes of a buffer, of the same where ranks are many, of all ranks' buffers
_CACHED = 8e6  # bytes; of larger buffers, caches hold nothing from before
_MOST_ROUNDS = 41
_BUDGET_S = 0.2  # after which no round begins
_EXCHANGES = 20
_LEAST_ADDITION = Addition("own + peer > private", 4)


def measure_host(group: SharedMemoryGroup, works: Collection[SharedWork], nbytes: float) -> SharedHost:
    """The times of what is done in `works`, exchanges of `nbytes` bytes; the same on all ranks, who all call this.

    Raises GroupError, on all ranks, where there is no memory for it.
    """
    numel = max(int(min(nbytes, _MOST, max(_LEAST, _TOGETHER / group.size))) // 4, 1)
    scale = max(nbytes / (4 * numel), 1.0)  # of additions that are longer than what is measured
    wanted: list[tuple[Addition | None, bool]] = [
        (None, True),
        (_LEAST_ADDITION, True),
        *((each, True) for each in sorted({each for work in works for each in work.together})),
        *((each, False) for each in sorted({each for work in works for each in work.alone})),
    ]
    start = time.perf_counter()
    probes = _Probes(group, numel, scale)
    probes.round(wanted)  # the first time, pages and code are not there yet
    rounds = [probes.round(wanted)]
    while len(rounds) < _MOST_ROUNDS:
        has_time = time.perf_counter() - start < _BUDGET_S
        if not group.gather(b"1" if has_time else b"", _OPERATION)[0]:  # rank 0 decides
            break
        rounds.append(probes.round(wanted))
    times = list(zip(*rounds, strict=True))
    starting = probes.starting()
    own = {"times": times, "starting": starting, "cores": usable_cores()}
    records = [json.loads(record) for record in group.gather(json.dumps(own).encode(), _OPERATION)]
    return _host(records, wanted, scale)


def _host(records: list[dict[str, Any]], wanted: list[tuple[Addition | None, bool]], scale: float) -> SharedHost:
    """From what all ranks have measured: a meeting first, then additions that each follow one."""
    ranks, cores = len(records), records[0]["cores"]
    share = min(1.0, cores / ranks)
    found: dict[bool, dict[Addition, float]] = {True: {}, False: {}}
    meeting_s = least_s = 0.0
    for number, (addition, together) in enumerate(wanted):
        rounds = list(zip(*(record["times"][number] for record in records), strict=True))
        seconds = statistics.median(
            max(end for _, end in (each if together else each[:1])) - max(start for start, _ in each) for each in rounds
        )
        if addition is None:
            meeting_s = seconds
        else:
            if addition == _LEAST_ADDITION and together:
                least_s = seconds
            found[together][addition] = max(seconds - meeting_s, 0.0) * scale * (share if together else 1.0)
    exchange_s = statistics.median(max(each) for each in zip(*(record["starting"] for record in records), strict=True))
    starting_s = max(exchange_s - least_s, 0.0)
    return SharedHost(ranks, cores, starting_s, meeting_s, found[False], found[True])


class _Probes:
    """Buffers of `numel` elements, of this rank and of the next one, and additions on them; those of an exchange that
    is `scale` times as large."""

    def __init__(self, group: SharedMemoryGroup, numel: int, scale: float) -> None:
        self._group, self._numel, self._scale = group, numel, scale
        size = group.size
        shared = [flats[0] for flats in group.flat_buffers([(torch.float32, numel)], 2 * size, _OPERATION)]
        self._own, self._peer = shared[group.rank], shared[(group.rank + 1) % size]
        self._common = shared[size]  # the result of all, of which each rank adds a part
        self._result, self._peer_result = shared[size + group.rank], shared[size + (group.rank + 1) % size]
        self._private, self._source = torch.zeros(numel), torch.zeros(numel)
        self._blocks = [torch.zeros(min(numel, BLOCK)) for _ in range(3)]
        for buffer in (self._own, self._result, self._private, self._source):
            buffer.fill_(0)

    def starting(self) -> list[float]:
        """Seconds of some exchanges of next to nothing, which are a meeting and the least addition."""
        schedule = build("one-shot", self._group.size)
        exchange = self._group.prepare(schedule, [(torch.float32, 1)], _OPERATION, [torch.zeros(1)])
        times = []
        for _ in range(_EXCHANGES):
            exchange.slot(0)
            self._meet()
            start = time.perf_counter()
            exchange.start().wait()
            times.append(time.perf_counter() - start)
        exchange.close()
        return times

    def round(self, wanted: Sequence[tuple[Addition | None, bool]]) -> list[tuple[float, float]]:
        """Each by all ranks together or by the first one alone; see `run`."""
        turns = 2 if 4 * self._numel <= _CACHED else 1  # the first one fetches what others have displaced
        return [
            [self.run(addition, together or self._group.rank == 0) for _ in range(turns)][-1]
            for addition, together in wanted
        ]

    def run(self, addition: Addition | None, takes_part: bool) -> tuple[float, float]:
        """When this rank came to meet the others, and when it had done the addition, if it takes part."""
        runs: list[Run] = []
        if addition is not None:
            runs = self._prepared(addition, takes_part)
        start = time.perf_counter()
        self._meet()
        if takes_part:
            for run in runs:
                add_up(run)
        return start, time.perf_counter()

    def _prepared(self, addition: Addition, takes_part: bool) -> list[Run]:
        """The addition, with caches as they are before it."""
        names, written = _parsed(addition.kind)
        numel = min(max(round(addition.nbytes / self._scale) // 4, 1), self._numel)
        first = min(self._group.rank * numel, self._numel - numel)  # ranks that do a part each do different ones
        part = range(first, first + numel)
        runs = self._runs(names, written, part)
        if 4 * self._numel > _CACHED:
            return runs
        # Written by additions, since what a copy has written may be elsewhere; and no more than an exchange touches,
        # since what is in the cache of another core takes longer to get, or to write again, than what is in memory.
        if len(names) == 1:
            self._write(self._own)
            self._write(self._result)
        else:
            if written == "shared":
                if takes_part:
                    self._write(self._common, part)
                self._meet()
                self._private.copy_(self._common)
                self._meet()
            self._write(self._own)
        return runs

    def _write(self, buffer: Tensor, part: range | None = None) -> None:
        within = slice(None) if part is None else slice(part.start, part.stop)
        torch.add(self._source[within], self._source[within], out=buffer[within])

    def _meet(self) -> None:
        self._group.counters.barrier(_OPERATION)

    def _runs(self, names: list[str], written: str, part: range) -> list[Run]:
        """The addition over that part of the buffers: in blocks if one of its operands is one."""
        places = {"own": self._own, "peer": self._peer, "private": self._private, "shared": self._common}
        out = self._blocks[2] if written == "cache" else places[written]
        of_results = {"own": self._result, "peer": self._peer_result}
        # What is copied into private memory is a result; two operands of one kind are two buffers.
        left = of_results[names[0]] if len(names) == 1 and written == "private" else self._operand(names[0], 0)
        right = None
        if len(names) > 1:
            right = of_results[names[1]] if names[1] == names[0] != "cache" else self._operand(names[1], 1)
        step = BLOCK if "cache" in (*names, written) else len(part)
        runs = []
        for start in range(part.start, part.stop, step):
            block = range(start, min(start + step, part.stop))
            of_right = None if right is None else self._within(right, block)
            addition = (self._within(left, block), of_right, self._within(out, block))
            runs.append(Run([addition], len(block)))
        return runs

    def _operand(self, name: str, number: int) -> Tensor:
        return {"own": self._own, "peer": self._peer, "cache": self._blocks[number]}[name]

    def _within(self, buffer: Tensor, part: range) -> Tensor:
        is_block = any(buffer is block for block in self._blocks)
        return buffer[: len(part)] if is_block else buffer[part.start : part.stop]


def _parsed(kind: str) -> tuple[list[str], str]:
    """What an addition reads, and what it writes."""
    read, _, written = kind.partition(" > ")
    return read.split(" + "), written
