"""The ranks that `bench_collectives.py` starts, tells what to do and asks for times; nothing to run by hand.

Each connects to a socket, says who it is and waits there, asleep, for lines of JSON:

    {"numel": 1000}                           make buffers, check the sums of each way; answer: the names of the ways
    {"way": "Gloo", "repetitions": 9}         add up so often, together; answer: the seconds of one
"""

from __future__ import annotations

import functools
import importlib
import json
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

__all__ = ["main"]

Run = Callable[[int], float]
"""Adds up so many times; returns the seconds of one."""


def _serve(address: str, side: str, rank: int, prepare: Callable[[int], dict[str, Run]]) -> None:
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(address)
        with channel.makefile("rw") as lines:

            def answer(record: Any) -> None:
                lines.write(json.dumps(record) + "\n")
                lines.flush()

            answer({"side": side, "rank": rank})
            ways: dict[str, Run] = {}
            for line in lines:
                order = json.loads(line)
                if "numel" in order:
                    ways.clear()  # frees what they hold
                    ways = prepare(order["numel"])
                    answer(list(ways))
                else:
                    answer(ways[order["way"]](order["repetitions"]))


def _timed(meet: Callable[[], object], add_up: Callable[[], object], repetitions: int) -> float:
    meet()
    start = time.perf_counter()
    for _ in range(repetitions):
        add_up()
    return (time.perf_counter() - start) / repetitions


def _run_samegrad(address: str, ranks: int, store: str, ways: list[dict[str, str]]) -> None:
    """The launcher of the ranks that run samegrad and Gloo."""
    import samegrad as sg

    def worker() -> None:
        import torch
        import torch.distributed as dist

        from samegrad.executors.process_group import ProcessGroup
        from samegrad.workers.calling import call_each_other
        from samegrad.workers.lifeline import Lifeline
        from samegrad.workers.meeting import Meeting
        from samegrad.workers.roll_call import RollCall

        world = sg.current_world()
        file_store = dist.FileStore(store, ranks)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=file_store, rank=world.rank, world_size=ranks)
        meeting = Meeting(file_store, world.rank, ranks, timeout_s=60.0)
        ends, hosts, _ = call_each_other(meeting, world.rank, ranks, "127.0.0.1")
        roll_call = RollCall(Lifeline(world.rank, ends, hosts))
        groups = {
            "process_group": ProcessGroup(torch.device("cpu"), roll_call=roll_call),
            "sends over Gloo": ProcessGroup(torch.device("cpu"), roll_call=roll_call, shares_memory=False),
        }

        def meet() -> None:
            world.group.gather(b"", "the next measurement")

        def prepare(numel: int) -> dict[str, Run]:
            base = (torch.arange(numel) % 1021).float()  # small whole numbers: sums are exact in any order
            own, expected = base + world.rank, base * ranks + sum(range(ranks))
            x, out = torch.empty(numel), torch.empty(numel)
            runs: dict[str, Run] = {}
            for way in ways:
                kind, name, algorithm = way["kind"], way["name"], way["algorithm"]
                if kind == "Gloo":
                    contribution, add_up = _in_place(x, functools.partial(dist.all_reduce, x))
                elif kind == "caller's tensors":
                    contribution, add_up = _in_place(x, functools.partial(sg.allreduce, x, algorithm))
                else:
                    schedule = sg.schedules.build(algorithm, ranks)
                    executor = groups.get(kind, world.group)
                    private = [out] if kind == "private memory" else None
                    contribution, add_up = _exchanged(
                        executor.prepare(schedule, [(torch.float32, numel)], name, private)
                    )
                contribution().copy_(own)
                if not torch.equal(add_up(), expected):
                    raise RuntimeError(f"{name}: wrong sums of {numel} numbers on rank {world.rank}")
                contribution().zero_()  # sums of sums would grow without end
                runs[name] = functools.partial(_timed, meet, add_up)
            return runs

        _serve(address, "samegrad", world.rank, prepare)
        dist.destroy_process_group()

    sg.launch(worker, devices=f"cpu:{ranks}", timeout_s=3600)


def _in_place(x: Any, all_reduce: Callable[[], object]) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """What gives the tensor to contribute, and what adds up and returns the sum: here the same one."""

    def add_up() -> Any:
        all_reduce()
        return x

    return lambda: x, add_up


def _exchanged(exchange: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The same by an exchange of samegrad, whose slot is taken to be filled."""

    def slot() -> Any:
        return exchange.slot(0)[0]

    def add_up() -> Any:
        slot()  # as somebody would who fills it
        return exchange.start().wait()[0]

    return slot, add_up


def _run_open_mpi(address: str) -> None:
    """One rank of Open MPI. It waits at the socket: in a barrier it would keep its core busy."""
    import numpy as np

    mpi: Any = importlib.import_module("mpi4py.MPI")  # where it is missing it has no types either
    world = mpi.COMM_WORLD

    def prepare(numel: int) -> dict[str, Run]:
        base = np.arange(numel, dtype=np.float32) % 1021
        x, expected = base + world.rank, base * world.size + sum(range(world.size))

        def add_up() -> None:
            world.Allreduce(mpi.IN_PLACE, x)

        add_up()
        if not np.array_equal(x, expected):
            raise RuntimeError(f"Open MPI: wrong sums of {numel} numbers on rank {world.rank}")
        x.fill(0)
        return {"Open MPI": functools.partial(_timed, world.Barrier, add_up)}

    _serve(address, "Open MPI", world.rank, prepare)


def main(role: dict[str, Any]) -> None:
    """Runs one rank of Open MPI, or all of samegrad and Gloo, until the other end of the socket is closed."""
    if role["side"] == "Open MPI":
        _run_open_mpi(role["address"])
    else:
        _run_samegrad(role["address"], role["ranks"], role["store"], role["ways"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
