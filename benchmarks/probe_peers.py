"""Other tools that measure what `samegrad probe` measures: how each is called so that it does the same, and its figure.

Each tool is a program of a Debian or Ubuntu package; its figure comes in s, B/s or B, as the rows of the probe. lmbench
is given large pages (of glibc's malloc), as the probe asks for them: otherwise the two measure different memory.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samegrad.probing.caches import levels

__all__ = ["PACKAGES", "Tools", "find", "forget", "lat_mem_rd_curve", "one_size"]

PACKAGES = {
    "lat_mem_rd": "lmbench",
    "bw_mem": "lmbench",
    "lat_tcp": "lmbench",
    "lat_udp": "lmbench",
    "bw_tcp": "lmbench",
    "sysbench": "sysbench",
    "fio": "fio",
    "iperf3": "iperf3",
    "sockperf": "sockperf",
    "lscpu": "util-linux",
}
"""Program -> the package that it is in."""

_ENVIRONMENT = {
    "LC_ALL": "C",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # large pages
    # lmbench would find out each time for how long to measure, which takes minutes where anything else runs.
    "ENOUGH": "50000",
    "TIMING_O": "0",
    "LOOP_O": "0",
}
_DEADLINE_S = 120.0
_PORT = 5309


def find(program: str) -> str | None:
    """Where the program is, None if it is not installed."""
    beside = sorted(Path("/usr/lib/lmbench/bin").glob(f"*/{program}"))
    return str(beside[0]) if beside else shutil.which(program)


@dataclass(frozen=True)
class Tools:
    """Calls the tools. folder: where storage is measured; nbytes: of its file, and of the memory that is read.

    seconds: that fio, iperf3 and sockperf take for a figure.
    """

    folder: Path
    nbytes: int
    seconds: int

    def load(self, size: int, largest: int) -> float:
        """Seconds of a load in `size` bytes at random, by lmbench, which measures up to `largest` bytes."""
        return _curve(largest)[size]

    def cache_of_curve(self, level: int, largest: int) -> float:
        """Bytes of a cache, as the probe would find it in the curve of latencies that lmbench measures."""
        curve = _curve(largest)
        found = levels(list(curve), list(curve.values()))
        return next(float(each.size) for each in found[level - 1 : level] if each.size is not None)

    def bandwidth(self, how: str, threads: int) -> float:
        """Of memory, by lmbench; how: "rd" (reads every fourth 4-byte word), "frd" (every one), "wr", "fwr"."""
        words = ["-P", str(threads), "-W", "1", "-N", "3", f"{self.nbytes // threads}", how]
        _, rate = _said(["bw_mem", *words]).split()
        return float(rate) * 1e6

    def sysbench(self, how: str) -> float:
        """Of memory, word by word of 8 bytes; how: "read", "write"."""
        block = f"--memory-block-size={self.nbytes}"
        total = f"--memory-total-size={16 * self.nbytes}"
        said = _said(["sysbench", "memory", block, total, f"--memory-oper={how}", "run"])
        return float(_match(r"\(([\d.]+) MiB/sec\)", said)) * (1 << 20)

    def disk_rate(self, how: str, block: int) -> float:
        """Bytes per second, by fio; how: as its `rw`. Past the cache, one block at a time."""
        return float(self._disk(how, block)["bw_bytes"])

    def disk_delay(self, how: str, block: int) -> float:
        """Seconds of one block, in the same way."""
        return float(self._disk(how, block)["lat_ns"]["mean"]) / 1e9

    def _disk(self, how: str, block: int) -> dict[str, Any]:
        path = self.folder / f"bench_probe-{os.getpid()}"
        words = ["--name=x", f"--filename={path}", f"--size={self.nbytes}", f"--rw={how}", f"--bs={block}"]
        words += ["--direct=1", "--ioengine=psync", "--iodepth=1", "--time_based", f"--runtime={self.seconds}"]
        words += ["--overwrite=1", "--scramble_buffers=0"]  # the probe writes the same bytes to the same places
        try:
            record = json.loads(_said(["fio", *words, "--output-format=json"]))
        finally:
            path.unlink(missing_ok=True)
        found: dict[str, Any] = record["jobs"][0]["read" if "read" in how else "write"]
        return found

    def iperf3(self) -> float:
        """TCP over loopback, 1 MB at a time."""
        with _serving(["iperf3", "-s", "-1", "-p", str(_PORT)], _PORT):
            said = _said(["iperf3", "-c", "127.0.0.1", "-p", str(_PORT), "-t", str(self.seconds), "-l", "1M", "-J"])
        return float(json.loads(said)["end"]["sum_received"]["bits_per_second"]) / 8

    def lmbench_network(self, program: str, *words: str) -> float:
        """lat_tcp and lat_udp: seconds of a round trip; bw_tcp: bytes per second."""
        with _lmbench_server(program):
            said = _said([program, *words, "127.0.0.1"])
        if program.startswith("lat"):
            return float(_match(r"([\d.]+) microseconds", said)) / 1e6
        return float(_match(r"([\d.]+) MB/sec", said)) * 1e6

    def sockperf(self, protocol: str) -> float:
        """Seconds of a round trip of 14 bytes, its least message: it says half of it, of which this is the median."""
        tcp = ["--tcp"] * (protocol == "tcp")
        with _serving(["sockperf", "server", *tcp, "-i", "127.0.0.1", "-p", str(_PORT)], None):
            words = [*tcp, "-i", "127.0.0.1", "-p", str(_PORT), "-t", str(self.seconds), "--msg-size", "14"]
            said = _said(["sockperf", "ping-pong", *words])
        return 2 * float(_match(r"percentile 50\.000 =\s+([\d.]+)", said)) / 1e6

    def cache(self, level: int) -> float:
        """Bytes of one data cache of this level, as the system says."""
        return one_size(_said(["lscpu", "-B", "-J", "-C=NAME,ONE-SIZE"]), level)


def one_size(text: str, level: int) -> float:
    """What `lscpu -B -J -C=NAME,ONE-SIZE` says of the data cache of `level`."""
    names = (f"L{level}", f"L{level}d")
    return float(next(each["one-size"] for each in json.loads(text)["caches"] if each["name"] in names))


def lat_mem_rd_curve(text: str) -> dict[int, float]:
    """Bytes -> seconds of a load, of what lat_mem_rd prints: lines of MiB (to five digits) and ns."""
    rows = [line.split() for line in text.splitlines() if re.fullmatch(r"[\d.]+ [\d.]+", line)]
    return {round(float(size) * (1 << 20) / 512) * 512: float(ns) / 1e9 for size, ns in rows}


@functools.lru_cache(maxsize=1)
def _curve(largest: int) -> dict[int, float]:
    return lat_mem_rd_curve(_said(["lat_mem_rd", "-P", "1", "-W", "1", "-N", "1", "-t", str(largest >> 20), "64"]))


def forget() -> None:
    """Has the next figure of lat_mem_rd measured anew."""
    _curve.cache_clear()


def _said(command: Sequence[str]) -> str:
    """What a program prints, on both streams. Raises OSError if it fails, subprocess.TimeoutExpired."""
    done = subprocess.run(
        [find(command[0]) or command[0], *command[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **_ENVIRONMENT},
        timeout=_DEADLINE_S,
        check=False,
        text=True,
    )
    if done.returncode:
        raise OSError(f"{command[0]} has ended with {done.returncode}: {done.stdout.strip()[-200:]}")
    return done.stdout


def _match(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise OSError(f"expected {pattern!r} in what was printed; got {text.strip()[-200:]!r}")
    return found[1]


@contextlib.contextmanager
def _serving(command: Sequence[str], port: int | None) -> Iterator[None]:
    """A server that is killed in the end; `port`: where it listens when it is ready."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen([find(command[0]) or command[0], *command[1:]], stdout=quiet, stderr=quiet) as process:
        try:
            _until(lambda: port is None or _listens(port))
            time.sleep(1.0 if port is None else 0.3)
            yield
        finally:
            process.kill()


@contextlib.contextmanager
def _lmbench_server(program: str) -> Iterator[None]:
    """lmbench's servers go into the background and listen at ports of their own, until they are told to end."""
    path, quiet = find(program) or program, subprocess.DEVNULL
    subprocess.run([path, "-s"], stdout=quiet, stderr=quiet, timeout=_DEADLINE_S, check=True)
    time.sleep(0.3)
    try:
        yield
    finally:
        subprocess.run([path, "-S", "127.0.0.1"], stdout=quiet, stderr=quiet, timeout=_DEADLINE_S, check=False)


def _listens(port: int) -> bool:
    """Looks it up: iperf3 would take a connection for its client."""
    with contextlib.suppress(OSError), socket.socket() as own:
        own.bind(("0.0.0.0", port))
        return False
    return True


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        if time.monotonic() > deadline:
            raise OSError("a server has not begun to listen within 10 s")
        time.sleep(0.02)
