"""Stores for tests: workers as threads, over servers of this process or without any."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from samegrad.kvstore import KVStore, Server

__all__ = ["run_workers", "some_servers", "some_stores"]

T = TypeVar("T")


@contextlib.contextmanager
def some_servers(count: int, **options: Any) -> Iterator[list[Server]]:
    """`count` servers of this process."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Server(**options)) for _ in range(count)]


@contextlib.contextmanager
def some_stores(kind: str, workers: int, servers: int = 1, **options: Any) -> Iterator[list[KVStore]]:
    """The store of each worker. kind: "local", "shared_memory" (with servers of this host) or "servers"."""
    options = {"timeout_s": 20.0, **options}
    with contextlib.ExitStack() as stack:
        if kind == "local":
            stores = KVStore.local(workers, **options)
        else:
            running = stack.enter_context(some_servers(servers))
            addresses = [server.address for server in running]
            options["shared_memory"] = kind == "shared_memory"
            stores = [KVStore.connect(addresses, worker=(number, workers), **options) for number in range(workers)]
        for store in stores:
            stack.callback(store.close)
        yield stores


def run_workers(stores: list[KVStore], function: Callable[[KVStore], T]) -> list[T]:
    """Calls `function(store)` for each store, each in a thread of its own; the first failure is raised."""
    values: dict[int, T] = {}
    failures: list[BaseException] = []

    def run(store: KVStore) -> None:
        try:
            values[store.worker] = function(store)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(store,), daemon=True) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()
    if failures:
        raise failures[0]
    return [values[store.worker] for store in stores]
