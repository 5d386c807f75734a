"""The key-value store between hosts, beside the limit of their links and the simulator's prediction.

    sudo python benchmarks/bench_kvstore_hosts.py                 # two minutes; needs root, and the commands ip and tc
    sudo python benchmarks/bench_kvstore_hosts.py --rate 200Mb --rounds 9
    sudo python benchmarks/bench_kvstore_hosts.py --preset tiny   # seconds; figures mean nothing

Hosts are emulated: network namespaces on a switch, whose cables carry `--rate` in each direction. One `samegrad serve`
is on each server's host, and m workers push and pull one value of float32: with one server, whose cable carries m times
as much as a worker's; with m servers on hosts of their own, each of which has an m-th of the value; and with these on
the workers' hosts. A figure is the median of the rounds, from the first worker that starts to the last one that has the
sum.

"limit" is the time that the bytes take on the cable that has to carry most, both directions at the same time, without
headers, which alone take 4 %; "full" is how much of what that cable can carry went over it, with headers (1514 bytes
for 1448). "plain" is what `plain_exchange` takes in turns with the store: a program that sends as many bytes over as
many connections, receives as many at the same time, and neither adds nor waits for anybody. So it is what cables, TCP
and cores of this machine have to give. Behind both is the share of it that the store reaches. "cores" is how busy all
of the machine's were while the store was measured, with whatever else ran there. "predicted" is what samegrad.simulator
finds for the schedule `servers` on these hosts, in as many pieces as the store has slices of the value on a server.
There, a cable carries what TCP can have of it: 1448 of 1514 bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from samegrad.kvstore.placement import LINK_SLICE_BYTES, Extent, place
from samegrad.schedules import build, pipelined
from samegrad.shared_secret import new_nonce
from samegrad.simulator import Simulation, simulate
from samegrad.topology import Kind, Link, Node, Topology

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.emulated_hosts import Host, emulated_hosts, ended_by_signals, lacking, rate_of, usual_control
from benchmarks.plain_exchange import connected_plainly

__all__ = ["Case", "cases_of", "main", "predict"]

PREFIX = "kvhosts"
_PORT = 4100
_PLAIN_PORT = 4101
_PAYLOAD = 1448 / 1514  # of a full Ethernet frame that carries TCP with time stamps
_MEMORY = 1e12  # bytes/s between what is on one host
_LATENCY_S = 10e-6
_WARM_ROUNDS = 2
_CASE_S = 300.0


@dataclass(frozen=True, slots=True)
class Case:
    """`workers` on the first hosts, and `servers` on the next ones, or together with the first workers."""

    workers: int
    servers: int
    together: bool = False

    def __str__(self) -> str:
        count = "1 server" if self.servers == 1 else f"{self.servers} servers"
        return f"{self.workers} worker{'s'[: self.workers - 1]}, {count}{' beside them' if self.together else ''}"

    def host_of(self, server: int) -> int:
        """The number of the host that a server is on."""
        return server if self.together else self.workers + server


def cases_of(most: int) -> list[Case]:
    """One server for 1 to `most` workers; as many servers as workers; and these on the hosts of the workers."""
    counts = range(2, most + 1)
    one = [Case(workers, 1) for workers in range(1, most + 1)]
    return [*one, *(Case(count, count) for count in counts), *(Case(count, count, together=True) for count in counts)]


def predict(case: Case, numel: int, rate: float) -> Simulation:
    """What the simulator finds for `numel` elements of float32, and cables of `rate` bytes/s that TCP can have."""
    workers, servers = ([f"{kind}{at}" for at in range(count)] for kind, count in _roles(case))
    host_of = {name: at for at, name in enumerate(workers)}
    host_of |= {name: case.host_of(at) for at, name in enumerate(servers)}
    hosts = sorted(set(host_of.values()))
    nodes = [Node("switch", Kind.SWITCH), *(Node(f"nic{at}", Kind.NIC, f"host{at}") for at in hosts)]
    nodes += [Node(name, Kind.DEVICE if name in workers else Kind.HOST, f"host{at}") for name, at in host_of.items()]
    links = [Link(name, f"nic{at}", _MEMORY) for name, at in host_of.items()]
    links += [Link(f"nic{at}", "switch", rate, _LATENCY_S) for at in hosts]
    slices = Counter(each.servers[0] for each in place([Extent("w", numel, 4)], case.servers, LINK_SLICE_BYTES)["w"])
    schedule = pipelined(build("servers", case.workers, case.servers), max(slices.values()))
    topology = Topology(str(case), tuple(nodes), tuple(links))
    return simulate(schedule, topology, 4 * numel, placement=[*workers, *servers])


def _roles(case: Case) -> list[tuple[str, int]]:
    return [("worker", case.workers), ("server", case.servers)]


# --- on the hosts ------------------------------------------------------------------------------------------------


def _work(number: int, secret_file: str) -> None:
    """One worker: for each line of input, a case, prints when it has started and ended each round with the store, and
    each with the plain program; and what cores did in the former. Until input ends."""
    import time

    import torch

    from samegrad import KVStore

    torch.set_num_threads(1)
    secret = Path(secret_file).read_text(encoding="utf-8")
    for line in sys.stdin:
        order = json.loads(line)
        hosts, workers, numel = order["hosts"], order["workers"], order["numel"]
        value, out, found = torch.ones(numel), torch.empty(numel), []
        with (
            KVStore.connect([f"{host}:{_PORT}" for host in hosts], secret=secret, worker=(number, workers)) as store,
            connected_plainly([(host, _PLAIN_PORT) for host in hosts]) as peers,
        ):
            store.init("w", value)
            for _ in range(order["rounds"]):
                store.barrier().wait()
                start, before = time.monotonic(), _ticks()
                store.push_pull("w", value, out).wait()
                end, after = time.monotonic(), _ticks()
                store.barrier().wait()
                plain_start = time.monotonic()
                peers.exchange(4 * numel // len(hosts))
                ticks = [is_now - was for is_now, was in zip(after, before, strict=True)]
                found.append((start, end, plain_start, time.monotonic(), *ticks))
        if not bool((out == workers).all()):
            raise SystemExit(f"worker {number}: the sum over {workers} workers is wrong")
        print(json.dumps(found), flush=True)


def _ticks() -> tuple[int, int]:
    """How long all cores were busy so far, and how long they were there, in the clock ticks of the system."""
    line = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
    user, nice, system, idle, waiting, *interrupts = map(int, line.split()[1:9])
    busy = user + nice + system + sum(interrupts)
    return busy, busy + idle + waiting


# --- in the measuring process ------------------------------------------------------------------------------------


@contextlib.contextmanager
def _started(hosts: Sequence[Host], most: int, secret_file: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """A worker on each of the first `most` hosts; and a server, and the other side of the plain program, on each."""
    started: list[subprocess.Popen[str]] = []
    try:
        for at in range(most):
            command = [sys.executable, __file__, "--worker", str(at), str(secret_file)]
            started.append(hosts[at].start(command))
        for host in hosts:
            place = ["--host", host.address, "--port", str(_PORT), "--secret-file", str(secret_file)]
            started.append(host.start([sys.executable, "-m", "samegrad", "serve", *place]))
            plain = Path(__file__).with_name("plain_exchange.py")
            started.append(host.start([sys.executable, str(plain), host.address, str(_PLAIN_PORT)]))
        yield started[:most]
    finally:
        for each in started:
            each.kill()
        for each in started:
            each.communicate()


def _measured(
    case: Case, numel: int, rounds: int, hosts: Sequence[Host], workers: Sequence[Any]
) -> dict[str, list[float]]:
    """Of each round: seconds of the store and of the plain program, and the share of the cores that was busy."""
    addresses = [hosts[case.host_of(at)].address for at in range(case.servers)]
    order = {"workers": case.workers, "hosts": addresses, "numel": numel, "rounds": rounds + _WARM_ROUNDS}
    with ThreadPoolExecutor() as pool:
        chosen = workers[: case.workers]
        for worker in chosen:
            worker.stdin.write(json.dumps(order) + "\n")
            worker.stdin.flush()
        said = [pool.submit(worker.stdout.readline) for worker in chosen]
        try:
            lines = [each.result(_CASE_S) for each in said]
        except TimeoutError:
            raise TimeoutError(f"{case}: a worker was not done within {_CASE_S:g} s") from None
        except BaseException:  # a signal, or it takes too long
            for worker in chosen:
                worker.kill()  # so that nobody waits for what it says
            raise
    if not all(lines):
        raise ChildProcessError(f"{case}: a worker has failed; see above")
    turns = list(zip(*map(json.loads, lines), strict=True))[_WARM_ROUNDS:]
    return {
        "seconds": [max(each[1] for each in turn) - min(each[0] for each in turn) for turn in turns],
        "plain_s": [max(each[3] for each in turn) - min(each[2] for each in turn) for turn in turns],
        "cores": [turn[0][4] / max(turn[0][5], 1) for turn in turns],
    }


def _line(row: dict[str, Any]) -> str:
    seconds = row["seconds"]
    median = statistics.median(seconds)
    spread = f"{min(seconds):.3f} - {max(seconds):.3f}"
    plain = statistics.median(row["plain_s"])
    return (
        f"{row['case']:32s} {median:8.3f} s {spread:>17s} {row['limit_s']:8.3f} s {row['limit_s'] / median:7.1%} "
        f"{row['limit_s'] / _PAYLOAD / median:7.1%} {plain:8.3f} s {plain / median:7.1%} "
        f"{statistics.median(row['cores']):6.0%} "
        f"{row['predicted_s']:8.3f} s {row['predicted_s'] / median - 1:+7.1%}"
    )


def _all_cases(options: argparse.Namespace, numel: int) -> list[dict[str, Any]]:
    """Makes hosts, and prints a line for each case."""
    rows: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(ended_by_signals())
        secret_file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "secret"
        secret_file.write_text(new_nonce(), encoding="utf-8")
        secret_file.chmod(0o600)
        hosts = stack.enter_context(emulated_hosts(PREFIX, 2 * options.workers, options.rate, options.control))
        workers = stack.enter_context(_started(hosts, options.workers, secret_file))
        print(
            f"{'':32s} {'median':>10s} {'min - max':>17s} {'limit':>10s} {'of it':>7s} {'full':>7s} "
            f"{'plain':>10s} {'of it':>7s} {'cores':>6s} {'predicted':>10s}   error"
        )
        for case in cases_of(options.workers):
            prediction = predict(case, numel, options.rate * _PAYLOAD)
            limit_s = float(prediction.busy.max()) * _PAYLOAD
            row = {"case": str(case), **dataclasses.asdict(case), "limit_s": limit_s, "predicted_s": prediction.seconds}
            rows.append({**row, **_measured(case, numel, options.rounds, hosts, workers)})
            print(_line(rows[-1]), flush=True)
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; 0 if it could."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=rate_of, default="1Gb", help="of each cable in each direction, as 1Gb or 200Mb")
    parser.add_argument("--megabytes", type=float, default=64.0, help="of the one value")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=4, help="up to how many")
    parser.add_argument("--control", help="of TCP's congestion, as reno or bbr; what this machine has if not given")
    parser.add_argument("--preset", choices=["full", "tiny"], default="full")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker is not None:
        _work(int(options.worker[0]), options.worker[1])
        return 0
    if not (1 <= options.workers <= 16 and options.rounds >= 1 and options.megabytes >= 0.1):
        parser.error("expected 1 to 16 --workers, at least one of --rounds, and 0.1 --megabytes")
    if missing := lacking():
        print(f"bench_kvstore_hosts.py needs {missing}", file=sys.stderr)
        return 1
    if options.preset == "tiny":
        options.megabytes, options.rounds, options.workers = 0.5, 2, 2
    numel = int(options.megabytes * 1e6) // 4
    options.control = options.control or usual_control()
    print(
        f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f} at the start, "
        f"Python {platform.python_version()}, torch {version('torch')}, "
        f"{options.rate * 8 / 1e6:g} Mbit/s each way, {options.megabytes:g} MB, {options.rounds} rounds, TCP with "
        f"{options.control}"
    )
    try:
        rows = _all_cases(options, numel)
    except OSError as error:  # a command, a worker, or it takes too long
        print(f"bench_kvstore_hosts.py: {error}", file=sys.stderr)
        return 1
    if options.json:
        options.json.write_text(
            json.dumps({"rate": options.rate, "control": options.control, "cases": rows}, indent=1) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
