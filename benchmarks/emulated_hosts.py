"""Hosts for benchmarks, emulated on this one: network namespaces, each with one port on a common switch.

    with emulated_hosts("kvhosts", 4, 125e6, "bbr") as hosts:
        hosts[0].start(["samegrad", "serve", "--host", hosts[0].address, "--port", "4100"])

The switch is a bridge in a namespace of its own. Both ends of each cable are limited by `tc ... tbf`: what the host
sends where it leaves the host, what it receives where it leaves the switch. It takes root, and the commands ip and tc.

Namespaces are called PREFIX-PID-..., by the process that has made them. It removes them at the end, with all processes
inside; what a process that was killed has left is removed by the next one that makes hosts of the same prefix.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from samegrad.units import parse_rate

__all__ = [
    "Host",
    "emulated_hosts",
    "ended_by_signals",
    "lacking",
    "rate_of",
    "remove_left",
    "said_by_ranks",
    "usual_control",
]

_NETWORK = "10.97.8"
_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
_BURST, _LATENCY = "256kb", "50ms"  # of tbf; a smaller burst would cut up the large packets that veth passes whole


@dataclass(frozen=True, slots=True)
class Host:
    """An emulated host: its network namespace, and its address."""

    namespace: str
    address: str

    def start(self, command: Sequence[str]) -> subprocess.Popen[str]:
        """Starts `command` on this host, with pipes for input and output; Ctrl-C in a terminal does not reach it."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )


def lacking() -> str:
    """What is missing to make hosts, in words; empty if nothing is."""
    missing = [f"the command {name}" for name in ("ip", "tc") if shutil.which(name) is None]
    if os.geteuid() != 0:
        missing.insert(0, "root, to make network namespaces")
    return " and ".join(missing)


def rate_of(text: str) -> float:
    """Bytes per second of 1Gb or 200Mb, or as tc writes it, 200mbit; for argparse."""
    try:
        return parse_rate(f"{text[:-3].upper()}b" if text.endswith("bit") else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def usual_control() -> str:
    """What this machine has for TCP's congestion."""
    return _CONTROL.read_text(encoding="utf-8").strip()


@contextlib.contextmanager
def emulated_hosts(prefix: str, count: int, rate: float, control: str, burst: str = _BURST) -> Iterator[list[Host]]:
    """`count` hosts, each joined to the switch by a cable of `rate` bytes/s in each direction.

    burst: what a cable that was idle passes at once, as tc writes it; not much less than what is sent.
    control: of TCP's congestion, on all of them; one of those that /proc/sys/net/ipv4/tcp_allowed_congestion_control
        has, which are all that the system lets a namespace choose.

    Raises OSError with the command that failed.
    """
    remove_left(prefix)
    mine = f"{prefix}-{os.getpid()}-"
    switch, hosts = f"{mine}switch", [Host(f"{mine}{at}", f"{_NETWORK}.{at + 1}") for at in range(count)]
    limit = f"root tbf rate {round(8 * rate)}bit burst {burst} latency {_LATENCY}"
    commands = [f"ip netns add {switch}", f"ip -n {switch} link add br0 type bridge", f"ip -n {switch} link set br0 up"]
    for at, host in enumerate(hosts):
        name, port = host.namespace, f"port{at}"
        commands += [
            f"ip netns add {name}",
            f"ip link add eth0 netns {name} type veth peer name {port} netns {switch}",
            f"ip -n {name} addr add {host.address}/24 dev eth0",
            f"ip -n {switch} link set {port} master br0",
            f"tc -n {name} qdisc add dev eth0 {limit}",
            f"tc -n {switch} qdisc add dev {port} {limit}",
            f"ip netns exec {name} sysctl -w net.ipv4.tcp_congestion_control={control}",
            f"ip -n {name} link set lo up",
            f"ip -n {name} link set eth0 up",
            f"ip -n {switch} link set {port} up",
        ]
    try:
        for command in commands:
            done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
            if done.returncode:
                raise OSError(f"{command}: {done.stderr.strip() or done.returncode}")
        yield hosts
    finally:
        with _undisturbed():
            for name in _namespaces(prefix):
                if name.startswith(mine):
                    _remove(name)


def said_by_ranks(hosts: Sequence[Host], arguments: Sequence[str], port: int, timeout_s: float) -> Any:
    """Runs Python with `arguments` as a rank on each of `hosts`, with the variables of torchrun; what rank 0 prints
    last, as JSON. port: of the first host, where the ranks meet.

    Raises OSError if a rank fails, or they are not done in time.
    """
    ranks = []
    for rank, host in enumerate(hosts):
        variables = {
            "RANK": rank,
            "WORLD_SIZE": len(hosts),
            "LOCAL_RANK": 0,
            "LOCAL_WORLD_SIZE": 1,
            "MASTER_ADDR": hosts[0].address,
            "MASTER_PORT": port,
            "GLOO_SOCKET_IFNAME": "eth0",
        }
        place = [f"{name}={value}" for name, value in variables.items()]
        ranks.append(host.start(["env", *place, sys.executable, *arguments]))
    try:
        out, _ = ranks[0].communicate(timeout=timeout_s)
        if any(each.wait(timeout=60) for each in ranks):
            raise OSError("a rank has failed; see above")
    except subprocess.TimeoutExpired as error:
        raise OSError(f"the ranks were not done within {error.timeout:g} s") from None
    finally:
        for each in ranks:
            each.kill()
            each.communicate()  # closes its pipes, too
    return json.loads(out.splitlines()[-1])


def remove_left(prefix: str) -> list[str]:
    """Removes the namespaces of processes that are no more, and what runs in them; returns their names."""
    left = [name for name, pid in _namespaces(prefix).items() if not Path(f"/proc/{pid}").exists()]
    for name in left:
        _remove(name)
    return left


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and Ctrl-C raise SystemExit, with 128 and their number as shells have it; in the main thread."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals to end wait until it is over."""
    ends = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _namespaces(prefix: str) -> dict[str, int]:
    """Those of this prefix, with the process that each is named after."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    found = re.finditer(rf"^({re.escape(prefix)}-(\d+)-\w+)", listed, re.MULTILINE)
    return {each[1]: int(each[2]) for each in found}


def _remove(namespace: str) -> None:
    inside = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False).stdout
    for pid in inside.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)
