"""`samegrad probe` beside tools that measure the same: memory, storage, network over loopback, sizes of caches.

    python benchmarks/bench_probe.py                       # three rounds; some minutes, nothing else should run
    python benchmarks/bench_probe.py --path /data          # the disk that this folder is on
    python benchmarks/bench_probe.py --only network
    python benchmarks/bench_probe.py --preset tiny         # seconds; figures mean nothing

In each round, the probe's own tasks and the tools take turns, row by row; a figure is the median of the rounds, a ratio
(probe to tool) that of the rounds' own. What is missing is left out, with the package that has it:

    apt-get install lmbench sysbench fio iperf3 sockperf

The two do the same where this is possible: the same bytes of memory in large pages, the same file size and folder, one
request at a time past the page cache, loopback, both ends of a round trip on one core. Where they do not, the row says
in what they differ.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import probe_peers
from samegrad.bench.conditions import conditions
from samegrad.errors import SamegradError
from samegrad.machine import usable_cores
from samegrad.probing.effort import Effort
from samegrad.probing.memory import LATENCY, memory
from samegrad.probing.network import network
from samegrad.probing.storage import storage
from samegrad.probing.task import Task
from samegrad.units import format_bytes, format_rate, format_seconds

__all__ = ["Pair", "judge", "main", "measure", "pairs"]

WITHIN = 1.2
KB, MB = 1 << 10, 1 << 20
PRESETS = {
    "default": (Effort(3, 0.05, 1 << 28, 2**0.5, 1 << 28, ()), 3, 2),
    "tiny": (Effort(1, 0.001, 1 << 20, 2.0, 1 << 22, ()), 1, 1),
}
"""Name -> the probe's effort, rounds, seconds of a figure of those tools that are told how long to measure."""

_Task = tuple[str, float | None]


@dataclass(frozen=True, slots=True)
class Pair:
    """A row: the task of the probe in `group`, by name and x, and `call` of the tool `program`.

    differs: in what they do not measure the same; "" if they do.
    """

    group: str
    task: _Task
    program: str
    how: str
    call: Callable[[], float]
    differs: str = ""


def pairs(tools: probe_peers.Tools, largest: int) -> list[Pair]:
    """All that is compared; `largest` is the largest working set, in bytes."""
    most = min(64 * MB, largest)
    found = [
        Pair("memory", (LATENCY, size), "lat_mem_rd", "-t", partial(tools.load, size, most), _LATENCY_DIFFERS)
        for size in dict.fromkeys((16 * KB, 256 * KB, min(2 * MB, most), most))
    ]
    for threads in dict.fromkeys((1, usable_cores())):
        for way, words in (("read", ("rd", "frd")), ("write", ("wr", "fwr"))):
            task = f"sequential {way}, {threads} thread{'s' * (threads > 1)}"
            for word in words:
                call = partial(tools.bandwidth, word, threads)
                found.append(Pair("memory", (task, None), "bw_mem", word, call, _BANDWIDTH_DIFFERS[word]))
    for way in ("read", "write"):
        call = partial(tools.sysbench, way)
        found.append(Pair("memory", (f"sequential {way}, 1 thread", None), "sysbench", way, call, _SYSBENCH_DIFFERS))
    for way in ("write", "read"):
        large, small = (f"{way} {size}, past the cache" for size in ("1 MB after 1 MB", "4 KB at random"))
        found.append(Pair("storage", (large, None), "fio", f"{way}, 1m", partial(tools.disk_rate, way, MB)))
        delay = partial(tools.disk_delay, f"rand{way}", 4 * KB)
        found.append(Pair("storage", (small, None), "fio", f"rand{way}, 4k", delay))
    for protocol in ("tcp", "udp"):
        trip = (f"round trip over {protocol.upper()}", None)
        lmbench = partial(tools.lmbench_network, f"lat_{protocol}", "-N", "3")
        found.append(Pair("trips", trip, f"lat_{protocol}", "", lmbench, _NETWORK_DIFFERS))
        found.append(Pair("trips", trip, "sockperf", protocol, partial(tools.sockperf, protocol), _NETWORK_DIFFERS))
    send = ("send over TCP, 1 MB at a time", None)
    found.append(Pair("network", send, "iperf3", "-l 1M", tools.iperf3))
    found.append(
        Pair("network", send, "bw_tcp", "-m 1m", partial(tools.lmbench_network, "bw_tcp", "-N", "3", "-m", "1m"))
    )
    for level in (1, 2, 3):
        task = f"level {level} cache, size"
        found.append(Pair("caches", (task, None), "lscpu", "", partial(tools.cache, level), _CACHE_DIFFERS[level]))
        seen = partial(tools.cache_of_curve, level, most)
        found.append(
            Pair("caches", (task, None), "lat_mem_rd", "-t, its steps", seen, "sizes between which a step lies")
        )
    return found


_LATENCY_DIFFERS = "goes through all lines of a page before the next page; the probe, through all lines at random"
_SYSBENCH_DIFFERS = "one word of 8 bytes at a time; the probe, vectors of them"
_BANDWIDTH_DIFFERS = {
    "rd": "reads every fourth word of 4 bytes, one after the other; the probe, vectors of words of 8 bytes",
    "wr": "writes every fourth word of 4 bytes, one after the other; the probe, vectors of words of 8 bytes",
    "frd": "adds up words of 4 bytes one after the other; the probe, vectors of words of 8 bytes",
    "fwr": "writes words of 4 bytes one after the other; the probe, vectors of words of 8 bytes",
}
_NETWORK_DIFFERS = "its two ends are C; those of the probe are Python"
_CACHE_DIFFERS = {
    1: "",
    2: "what the processor has, also where others use a part of it",
    3: "what the processor has, also where other virtual machines use most of it",
}


def measure(
    effort: Effort, tools: probe_peers.Tools, rounds: int, only: Sequence[str], say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """A record for each pair in the groups `only`: both figures of each round, or why there are none."""
    chosen = [pair for pair in pairs(tools, effort.largest) if pair.group in only]
    records: list[dict[str, Any]] = [_record(pair) for pair in chosen]
    for number in range(rounds):
        probe_peers.forget()
        for group in dict.fromkeys(pair.group for pair in chosen):
            with _cores_for(group), _tasks(group, effort, tools.folder) as tasks:
                for pair, record in zip(chosen, records, strict=True):
                    if pair.group != group or record["problem"]:
                        continue
                    say(f"round {number + 1}: {pair.task[0]}, {pair.program} {pair.how}")
                    try:
                        ours = tasks[pair.task].run()
                        theirs = pair.call()
                    except (
                        SamegradError,
                        OSError,
                        subprocess.SubprocessError,
                        ValueError,
                        LookupError,
                        StopIteration,
                    ) as error:
                        record["problem"] = f"{type(error).__name__}: {error}"
                        continue
                    record["unit"] = tasks[pair.task].unit
                    record["probe"].append(ours.median)
                    record["tool"].append(theirs)
    return records


def _record(pair: Pair) -> dict[str, Any]:
    missing = probe_peers.find(pair.program) is None
    return {
        "what": pair.task[0] + (f", {format_bytes(pair.task[1])}" if pair.task[1] else ""),
        "tool": [],
        "program": f"{pair.program} {pair.how}".strip(),
        "probe": [],
        "unit": "",
        "differs": pair.differs,
        "problem": f"is not here: apt-get install {probe_peers.PACKAGES[pair.program]}" if missing else "",
    }


@contextlib.contextmanager
def _tasks(group: str, effort: Effort, folder: Path) -> Iterator[dict[_Task, Task]]:
    """The tasks of the probe in a group, by name and x; those of the curve of latencies are run for the caches."""
    if group == "storage":
        opened = storage(effort, folder)
    elif group in ("network", "trips"):
        opened = network(effort)
    else:
        opened = memory(effort)
    with opened as tasks:
        if group == "caches":
            for task in tasks:
                if task.name == LATENCY:
                    task.run()
        yield _by_name(tasks)


@contextlib.contextmanager
def _cores_for(group: str) -> Iterator[None]:
    """Both ends of a round trip are on one core: else most of it is how long the other core takes to wake, or nothing
    of it, as the scheduler likes."""
    usual = os.sched_getaffinity(0)
    try:
        if group == "trips":
            os.sched_setaffinity(0, {min(usual)})
        yield
    finally:
        os.sched_setaffinity(0, usual)


def _by_name(tasks: Sequence[Task]) -> dict[_Task, Task]:
    return {(task.name, task.x): task for task in tasks}


def judge(record: dict[str, Any]) -> tuple[float, str]:
    """The ratio of the probe's figure to the tool's, and "yes" within 20 %, else "no" and in what they differ."""
    ratio = statistics.median(a / b for a, b in zip(record["probe"], record["tool"], strict=True))
    if 1 / WITHIN <= ratio <= WITHIN:
        return ratio, "yes"
    return ratio, f"no: {record['differs']}" if record["differs"] else "no"


def _table(records: list[dict[str, Any]]) -> Table:
    table = Table("what", "probe", "tool", "", "ratio", "within 20 %", box=None, padding=(0, 1))
    formats = {"s": format_seconds, "B/s": format_rate, "B": format_bytes}
    for record in records:
        if record["problem"] or not record["probe"]:
            table.add_row(record["what"], "", "", record["program"], "", record["problem"])
            continue
        show = formats[record["unit"]]
        ratio, said = judge(record)
        figures = [show(statistics.median(record[name])) for name in ("probe", "tool")]
        table.add_row(record["what"], *figures, record["program"], f"{ratio:.2f}", said)
    return table


def main(words: Sequence[str] | None = None) -> int:
    """Measures, prints the table; 0 if something could be compared."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    groups = ("memory", "storage", "trips", "network", "caches")
    parser.add_argument("--preset", choices=list(PRESETS), default="default")
    parser.add_argument("--rounds", type=int, help="default: 3")
    parser.add_argument("--path", type=Path, default=Path(tempfile.gettempdir()), help="a folder on the storage")
    parser.add_argument("--only", nargs="+", choices=groups, default=list(groups))
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args(words)
    effort, rounds, seconds = PRESETS[options.preset]
    tools = probe_peers.Tools(options.path, effort.file_bytes, seconds)
    console = Console(width=160, highlight=False)
    say = partial(print, file=sys.stderr)
    records = measure(effort, tools, options.rounds or rounds, options.only, say)
    console.print(_table(records))
    told = conditions(
        threads=1, repetitions=effort.repetitions, rounds=options.rounds or rounds, path=str(options.path)
    )
    print(", ".join(f"{name} {value}" for name, value in told.items()))
    if options.json is not None:
        options.json.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    return 0 if any(record["probe"] for record in records) else 1


if __name__ == "__main__":
    sys.exit(main())
