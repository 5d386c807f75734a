"""Ranks that exchange without end, of which one dies or stands still: python dying_ranks.py SCENARIO (in JSON) ...

Every rank is forked from this process, so that torch is imported once. Prints a line of JSON for each scenario: how
each rank has ended, what it said, and when, in seconds after the blow.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from tests.workers.jobs import free_port

import samegrad as sg
from samegrad.errors import GroupError
from samegrad.executors.process_group import ProcessGroup
from samegrad.schedules import build
from samegrad.workers import join
from samegrad.workers.settings import Settings

_PATIENCE_S = 60.0


def main() -> None:
    for text in sys.argv[1:]:
        os.write(1, json.dumps(play(json.loads(text))).encode() + b"\n")


def play(scenario: dict[str, Any]) -> dict[str, Any]:
    """victim: the rank that gets `signal` (0: nobody) when all exchange. See `exchange` for the rest."""
    size, victim, port = scenario["size"], scenario["victim"], free_port()
    pipes = [os.pipe() for _ in range(size)]
    pids = []
    for rank in range(size):
        pids.append(os.fork())
        if pids[-1] == 0:
            os.setpgid(0, 0)
            code = 1
            try:
                code = be_rank(scenario, rank, port, pipes[rank][1])
            finally:
                os._exit(code)
        os.close(pipes[rank][1])
    said: list[list[tuple[float, str]]] = [[] for _ in range(size)]
    codes: list[int | None] = [None] * size
    start = blow = time.monotonic()
    is_struck = False
    open_ends = {reader: rank for rank, (reader, _) in enumerate(pipes)}
    try:
        while any(code is None for rank, code in enumerate(codes) if rank != victim or not scenario["signal"]):
            assert time.monotonic() - start < _PATIENCE_S, (said, codes)
            for reader in select.select(list(open_ends), [], [], 0.02)[0]:
                lines = os.read(reader, 1 << 16).decode().splitlines()
                said[open_ends[reader]] += [(time.monotonic() - blow, line) for line in lines]
                if not lines:
                    os.close(reader)
                    del open_ends[reader]
            if not is_struck and all(said):
                time.sleep(scenario.get("after_s", 0.05))
                if scenario["signal"]:
                    os.kill(pids[victim], scenario["signal"])
                is_struck, blow = True, time.monotonic()
            for rank, pid in enumerate(pids):
                if codes[rank] is None and (found := os.waitpid(pid, os.WNOHANG))[0]:
                    codes[rank] = os.waitstatus_to_exitcode(found[1])
    finally:
        for rank, pid in enumerate(pids):
            try:
                os.killpg(pid, signal.SIGKILL)  # and what it has forked
            except ProcessLookupError:
                continue
            if codes[rank] is None:
                os.waitpid(pid, 0)
    return {"codes": codes, "said": [lines[1:] for lines in said]}


def be_rank(scenario: dict[str, Any], rank: int, port: int, out: int) -> int:
    """The exit code that Python would have."""
    variables = {"RANK": rank, "WORLD_SIZE": scenario["size"], "LOCAL_RANK": rank, "MASTER_PORT": port}
    os.environ.update({name: str(number) for name, number in variables.items()}, MASTER_ADDR="127.0.0.1")
    memory_files = vars(os).pop("memfd_create", None)  # so that they do not meet in memory
    faulthandler.dump_traceback_later(_PATIENCE_S - 10)
    code = 0
    joined = None
    try:
        joined = join(Settings(devices=("cpu",), timeout_s=scenario["timeout_s"]))
        assert joined is not None
        if scenario.get("reads"):
            vars(os)["memfd_create"] = memory_files
        exchange(scenario, rank, out)
    except GroupError as error:
        os.write(out, f"{type(error).__name__} {error.rank} {error}\n".encode())
        code = 1
    for leave in joined.on_exit if joined is not None else ():  # as at the end of Python
        leave()
    return code


def exchange(scenario: dict[str, Any], rank: int, out: int) -> None:
    """algorithm, mb: of the sums. rounds: how many; 0 for no end. reads: whether ranks read each other's memory.
    has_child: whether the victim has one that lives on. busy_s: for how long the victim is busy, in one call that keeps
    Python's lock, in its last round."""
    torch.set_num_threads(1)
    group = sg.current_world().group
    assert isinstance(group, ProcessGroup)
    sizes = [(torch.float32, int(scenario["mb"] * 250_000))]
    schedule = build("sharded" if scenario["algorithm"] == "native" else scenario["algorithm"], group.size)
    prepare = group.prepare_native if scenario["algorithm"] == "native" else group.prepare
    own = prepare(schedule.cut if scenario["algorithm"] == "native" else schedule, sizes, "sum")  # type: ignore[arg-type]
    assert ("/memfd:samegrad" in Path("/proc/self/maps").read_text()) == bool(scenario.get("reads"))
    number = 0
    while number < scenario.get("rounds", 0) or not scenario.get("rounds", 0):
        own.slot(0)[0].fill_(1.0)
        if rank == scenario["victim"] and number == 1 and scenario.get("has_child") and os.fork() == 0:
            signal.pause()
        if rank == scenario["victim"] and number == 1 and scenario.get("busy_s"):
            hold_the_lock(scenario["busy_s"])
        assert own.start().wait()[0][0] == group.size
        if number == 0:
            os.write(out, b"ready\n")
        number += 1


def hold_the_lock(seconds: float) -> None:
    """One call during which no other thread of this process runs Python."""
    import ctypes

    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


if __name__ == "__main__":
    main()
