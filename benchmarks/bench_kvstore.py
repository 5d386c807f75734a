"""How fast the key-value store is on one host, beside a plain socket program and PyTorch's RPC; and how it grows.

    python benchmarks/bench_kvstore.py
    python benchmarks/bench_kvstore.py --megabytes 16 --rounds 20 --workers 4

One worker, one server in a process of its own, which sums: push and pull of one value of float32. The ways take turns
within a round; a figure is the median of the rounds, with the smallest and the largest; bytes count both ways. A plain
program sends the value, which the other side adds to what it has and sends back. RPC calls a function that adds. ZeroMQ
does so by a request and a reply, if the package pyzmq is installed; what is not is said to be left out.

Then 1,000 keys of 4 KB in one batch. Then m workers, all of which push and pull one value: with one server, whose work
grows with m, and with m servers, each of which has an m-th of the value. All share the cores of this host, so what
grows here is the work for cores, not the time on links.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import importlib.util
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.distributed.rpc
from torch import Tensor

from samegrad import KVStore
from samegrad.kvstore.own_servers import ServerList, own_servers

__all__ = ["main"]

Found = dict[str, list[float]]
KEYS, KEY_ELEMENTS = 1000, 1024
WAYS = ("connection", "shared memory")


def _serve_plainly() -> None:
    """The other side of the plain program: adds what comes to what it has, and sends it back."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    end, _ = listener.accept()
    numel = int.from_bytes(_read(end, memoryview(bytearray(8))), "little")
    came, total = torch.empty(numel), torch.zeros(numel)
    with contextlib.suppress(ConnectionError):
        while True:
            _read(end, came.numpy().data.cast("B"))
            total += came
            end.sendall(total.numpy().data)


def _read(end: socket.socket, target: memoryview) -> memoryview:
    left = target
    while left:
        count = end.recv_into(left)
        if not count:
            raise ConnectionError
        left = left[count:]
    return target


def _serve_zmq() -> None:
    """The same by ZeroMQ."""
    zmq = importlib.import_module("zmq")
    end = zmq.Context().socket(zmq.REP)
    print(end.bind_to_random_port("tcp://127.0.0.1"), flush=True)
    total = np.zeros(0, np.float32)
    while True:
        came = np.frombuffer(end.recv(copy=False).buffer, np.float32)
        if len(came) != len(total):
            total = np.zeros_like(came)
        total += came
        end.send(total, copy=False)


def _serve_rpc(port: str) -> None:
    from torch.distributed import rpc

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    rpc.init_rpc("server", rank=1, world_size=2)
    rpc.shutdown()


_sums: dict[int, Tensor] = {}


def add_by_rpc(value: Tensor) -> Tensor:
    """Called on the server: the sum of what has come."""
    total = _sums.setdefault(value.numel(), torch.zeros_like(value))
    total += value
    return total


@contextlib.contextmanager
def _peer(kind: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, __file__, "--serve", kind, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def _plain(value: Tensor, out: Tensor) -> Iterator[Callable[[], object]]:
    with _peer("plain") as process:
        assert process.stdout is not None
        with socket.create_connection(("127.0.0.1", int(process.stdout.readline()))) as end:
            end.sendall(value.numel().to_bytes(8, "little"))

            def turn() -> None:
                end.sendall(value.numpy().data)
                _read(end, out.numpy().data.cast("B"))

            yield turn


@contextlib.contextmanager
def _zmq(value: Tensor, out: Tensor) -> Iterator[Callable[[], object]]:
    zmq = importlib.import_module("zmq")
    with _peer("zmq") as process, zmq.Context() as context, context.socket(zmq.REQ) as end:
        assert process.stdout is not None
        end.linger = 0
        end.connect(f"tcp://127.0.0.1:{process.stdout.readline().strip()}")

        def turn() -> None:
            end.send(value.numpy(), copy=False)
            out.numpy()[:] = np.frombuffer(end.recv(copy=False).buffer, np.float32)

        yield turn


@contextlib.contextmanager
def _rpc(value: Tensor) -> Iterator[Callable[[], object]]:
    from torch.distributed import rpc

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with _peer("rpc", str(port)):
        rpc.init_rpc("worker", rank=0, world_size=2)
        try:
            yield lambda: rpc.rpc_sync("server", add_by_rpc, args=(value,))
        finally:
            rpc.shutdown()


def _connect(servers: ServerList, first: int, count: int, worker: tuple[int, int], shared_memory: bool) -> KVStore:
    """The store of one worker on `count` of the servers, from the one numbered `first`."""
    addresses = servers.addresses[first : first + count]
    return KVStore.connect(addresses, secret=servers.secret, worker=worker, shared_memory=shared_memory)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _in_turns(ways: dict[str, Callable[[], object]], rounds: int) -> Found:
    found: Found = {name: [] for name in ways}
    for number in range(rounds + 2):  # the first two fetch memory from the system
        for name, turn in ways.items():
            took = _seconds(turn)
            if number >= 2:
                found[name].append(took)
    return found


def _one_worker(servers: ServerList, numel: int, rounds: int, with_rpc: bool) -> Found:
    value, out = torch.ones(numel), torch.empty(numel)
    with contextlib.ExitStack() as stack:
        ways: dict[str, Callable[[], object]] = {}
        for number, name in enumerate(WAYS):
            store = stack.enter_context(_connect(servers, number, 1, (0, 1), name == "shared memory"))
            store.init("w", value)
            ways[f"store, {name}"] = lambda store=store: store.push_pull("w", value, out).wait()  # type: ignore[misc]
        ways["plain socket program"] = stack.enter_context(_plain(value, out))
        if importlib.util.find_spec("zmq") is not None:
            ways["ZeroMQ"] = stack.enter_context(_zmq(value, out))
        if with_rpc:
            ways["PyTorch RPC"] = stack.enter_context(_rpc(value))
        return _in_turns(ways, rounds)


def _many_keys(servers: ServerList, keys: int, rounds: int) -> Found:
    values, outs = ([torch.ones(KEY_ELEMENTS) for _ in range(keys)] for _ in range(2))
    with contextlib.ExitStack() as stack:
        ways: dict[str, Callable[[], object]] = {}
        for number, name in enumerate(WAYS):
            store = stack.enter_context(_connect(servers, number, 1, (0, 1), name == "shared memory"))
            store.init(dict(enumerate(values)))
            turn = functools.partial(store.push_pull, range(keys), values, outs)
            ways[f"{keys:,} keys, {name}"] = lambda turn=turn: turn().wait()  # type: ignore[misc]
        return _in_turns(ways, rounds)


def _many_workers(servers: ServerList, numel: int, rounds: int, workers: int, count: int) -> list[float]:
    """Seconds of each round in which all workers push and pull, through connections to `count` servers."""
    with contextlib.ExitStack() as stack:
        stores = [
            stack.enter_context(_connect(servers, 0, count, (number, workers), shared_memory=False))
            for number in range(workers)
        ]
        values = [torch.ones(numel) for _ in stores]
        for store, value in zip(stores, values, strict=True):
            store.init("w", value)

        def turn() -> None:
            handles = [store.push_pull("w", value, value) for store, value in zip(stores, values, strict=True)]
            stores[0].wait(handles)

        return _in_turns({"all": turn}, rounds)["all"]


def _line(name: str, values: list[float], unit: str) -> None:
    print(f"{name:36s} {statistics.median(values):10.2f} {unit:8s} {min(values):10.2f} - {max(values):.2f}")


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; 0 if it could."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=64.0, help="of the one value")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--workers", type=int, default=4, help="up to how many; powers of two are measured")
    parser.add_argument("--no-rpc", action="store_true", help="leave PyTorch's RPC out")
    parser.add_argument("--preset", choices=["full", "tiny"], default="full")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args(arguments)
    keys = KEYS
    if options.preset == "tiny":
        options.megabytes, options.rounds, options.workers, keys = 0.1, 2, 2, 10
    torch.set_num_threads(1)
    nbytes = int(options.megabytes * 1e6) // 4 * 4
    load = os.getloadavg()[0]
    conditions = (
        f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, load {load:.1f} at the start, Python "
        f"{platform.python_version()}, torch {torch.__version__}, {options.megabytes:g} MB, {options.rounds} rounds"
    )
    print(f"{conditions}\n{'':36s}     median                   min - max")
    growth: Found = {}
    left_out = ["ZeroMQ (pip install pyzmq)"] if importlib.util.find_spec("zmq") is None else []
    if options.no_rpc or not torch.distributed.rpc.is_available():
        left_out.append("PyTorch RPC")
    if left_out:
        print(f"left out: {', '.join(left_out)}")
    counts = [1 << power for power in range(options.workers.bit_length()) if 1 << power <= options.workers]
    with own_servers(max(2, options.workers)) as servers:
        one = _one_worker(servers, nbytes // 4, options.rounds, "PyTorch RPC" not in left_out)
        for name, seconds in one.items():
            _line(name, [2 * nbytes / took / 1e9 for took in seconds], "GB/s")
        batches = _many_keys(servers, keys, options.rounds)
        for name, seconds in batches.items():
            _line(name, [keys / took for took in seconds], "keys/s")
        for kind in ("one server", "as many servers"):
            for workers in counts:
                name, count = f"{workers} workers, {kind}", 1 if kind == "one server" else workers
                growth[name] = _many_workers(servers, nbytes // 4, options.rounds, workers, count)
                _line(name, [took * 1e3 for took in growth[name]], "ms")
    if options.json:
        record = {"conditions": conditions, "one": one, "batches": batches, "growth": growth}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


def _serve(words: list[str]) -> None:
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    if words[0] == "plain":
        _serve_plainly()
    elif words[0] == "zmq":
        _serve_zmq()
    else:
        _serve_rpc(words[1])


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        _serve(sys.argv[2:])
    else:
        sys.exit(main())
