"""Loader workers: processes that read for one rank, started and watched by torch's DataLoader.

They live for one epoch, hand tensors over in shared memory, and end with the rank: the kernel kills them when it dies.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler, get_worker_info
from torch.utils.data._utils import signal_handling

from samegrad.errors import ConfigurationError, DataError, LoaderDied, SamegradError
from samegrad.trainer.descriptors import DescriptorPipe
from samegrad.trainer.handover import Handover
from samegrad.trainer.loading import Loading
from samegrad.workers import pickling
from samegrad.workers.parent import die_with_parent

__all__ = ["Loader"]

_OF_THE_JOB = (signal.SIGINT, signal.SIGTERM)  # sent to all of its processes
_FORK_SERVER = "samegrad.workers.fork_server"
_POLL_S = 0.5  # how often it is looked whether a loader worker has died
_GRACE_S = 0.5  # between asking loader workers to end and killing them


class Loader:
    """Calls `read(task)` in other processes, ahead of need; use it within `with`, which ends them.

    Each call of `run` starts them anew, so each process has a copy of `read` as it is then: they see what a callback
    has changed between epochs. Tasks must be plain values; what `read` returns is handed over in shared memory, pinned
    if it goes to a CUDA device. A DataError that it raises is raised here.
    """

    def __init__(self, read: Callable[[Any], Any], loading: Loading, rank: int, device: torch.device) -> None:
        self._loading, self._rank = loading, rank
        self._tasks = _Tasks()
        context = multiprocessing.get_context(loading.start)
        if loading.start == "forkserver":
            context.set_forkserver_preload(["torch", __name__, _FORK_SERVER])
        self._reading = _Reading(read)
        self._loader: DataLoader[Any] = DataLoader(
            self._reading,
            batch_size=None,
            sampler=self._tasks,
            num_workers=loading.workers,
            collate_fn=_unchanged,
            pin_memory=device.type == "cuda",
            timeout=_POLL_S,
            worker_init_fn=functools.partial(_begin, os.getpid() if loading.start == "fork" else None),
            multiprocessing_context=context,
            generator=torch.Generator(),  # else it draws from the global one
            prefetch_factor=loading.prefetch,
            persistent_workers=True,  # else it ends them itself, and waits long for one that does not
        )
        self._iterator: Any = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        """Ends the processes. Where `error` came from the death of one, raises LoaderDied."""
        dead = self._dead(error)
        self._end()
        if dead:
            raise LoaderDied(
                f"rank {self._rank}: {dead}. If the memory of the machine ran out, use fewer loader workers or a "
                f"smaller prefetch; if it was a bus error, make /dev/shm larger, through which they hand tensors over",
                rank=self._rank,
            ) from error

    def run(self, tasks: Iterable[Any]) -> Iterator[Any]:
        """What `read` returns for each of `tasks`, in their order; to be gone through to its end, or closed."""
        self._tasks.now = tasks
        self._reading.pipes = [DescriptorPipe() for _ in range(self._loading.workers)]
        if self._loading.start == "forkserver":
            self._reading.pickle()
        with warnings.catch_warnings():
            # From Python 3.12: that a process with threads forks. See docs/data.md about this.
            warnings.filterwarnings("ignore", ".*use of fork.*", DeprecationWarning)
            warnings.filterwarnings("ignore", ".*worker processes in total", UserWarning)  # said once already
            # One that comes while they start would end them: they inherit that it waits, until they ignore it.
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_THE_JOB)
            try:
                self._iterator = iter(self._loader)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if self._iterator._worker_pids_set:
            # Else a signal handler of torch's raises the death of one in the middle of anything, and leaves that half
            # done: gradients switched off for good, say. `_next` finds out in time.
            signal_handling._remove_worker_pids(id(self._iterator))  # type: ignore[attr-defined]
            self._iterator._worker_pids_set = False
        while True:
            try:
                result = self._next()
            except StopIteration:
                self._end()
                return
            if isinstance(result, _Failure):
                error = DataError(result.message)
                error.add_note(f"In a loader worker of rank {self._rank}:\n{result.trace}")
                raise error
            try:
                yield result.open()
            except GeneratorExit:
                self._end()
                raise

    def _next(self) -> Any:
        deadline = time.monotonic() + self._loading.timeout_s
        while True:
            try:
                return next(self._iterator)
            except RuntimeError as error:
                if "DataLoader timed out" not in str(error):
                    raise
                if time.monotonic() > deadline:
                    raise DataError(
                        f"rank {self._rank} has waited {self._loading.timeout_s:g} s for its {self._loading.workers} "
                        f"loader workers to read one minibatch. If that may take so long, give "
                        f"Loading(timeout_s=...) more; if they hang because the data set uses a library that does not "
                        f"survive a fork, use Loading(start='forkserver')"
                    ) from None

    def _dead(self, error: BaseException | None) -> str:
        """Which loader workers have died, and how, if `error` says so: "" if not.

        Either torch has missed one, or what was just being received broke off.
        """
        is_told = isinstance(error, RuntimeError) and str(error).startswith("DataLoader worker")
        is_cut = isinstance(error, OSError | EOFError) and not isinstance(error, SamegradError)
        if self._iterator is None or not (is_told or is_cut):
            return ""
        workers = self._iterator._workers
        ended = multiprocessing.connection.wait([worker.sentinel for worker in workers], _GRACE_S)
        for worker in workers:
            if worker.sentinel in ended:
                worker.join(_GRACE_S)  # a process closes its files before it can be asked how it ended
        return "; ".join(
            f"loader worker {number} of {len(workers)} (process {worker.pid}) {_ending(worker.exitcode, error)}"
            for number, worker in enumerate(workers)
            if worker.sentinel in ended
        ) or (str(error).strip() if is_told else "")

    def _end(self) -> None:
        iterator, self._iterator, self._loader._iterator = self._iterator, None, None
        if iterator is not None:
            self._end_workers(iterator)
        for pipe in self._reading.pipes:
            pipe.close()

    def _end_workers(self, iterator: Any) -> None:
        ending = threading.Thread(target=iterator._shutdown_workers, daemon=True)  # may wait for what is being read
        ending.start()
        ending.join(_GRACE_S)
        for worker in iterator._workers:
            worker.kill()
        ending.join(_GRACE_S)


class _Tasks(Sampler[Any]):
    """What there is to do in this epoch."""

    def __init__(self) -> None:
        self.now: Iterable[Any] = ()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.now)


@dataclass(frozen=True, slots=True)
class _Failure:
    """What `read` raised."""

    message: str
    trace: str


class _Reading(Dataset[Any]):
    """Runs `read` in a loader worker."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self._read = read
        self._dtype = torch.get_default_dtype()
        self._pickled = b""
        self.pipes: list[DescriptorPipe] = []  # by number of the loader worker

    def pickle(self) -> None:
        """Makes ready to be sent to other processes: as cloudpickle does, with what `__main__` defines."""
        self._pickled = _pickled(self._read)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self._pickled, self._dtype, self.pipes)

    def __getitem__(self, task: Any) -> Any:
        try:
            worker = get_worker_info()
            assert worker is not None
            return Handover.of(self._read(task), self.pipes[worker.id])
        except DataError as error:
            return _Failure(str(error), "".join(traceback.format_exception(error)))


def _pickled(read: Callable[[Any], Any]) -> bytes:
    try:
        return pickling.dumps(read)
    except Exception as error:
        raise ConfigurationError(
            f"Loading(start='forkserver'): the data set cannot be pickled: {type(error).__name__}: {error}. Open files "
            f"and connections when the first example is read, or use start='fork'"
        ) from error


def _unpickled(pickled: bytes, dtype: torch.dtype, pipes: list[DescriptorPipe]) -> _Reading:
    torch.set_default_dtype(dtype)
    reading = _Reading(pickling.loads(pickled))
    reading.pipes = pipes
    return reading


def _begin(parent: int | None, _: int) -> None:
    """Called in a loader worker when it starts; parent: the process that forked it, None if that is a fork server."""
    for number in _OF_THE_JOB:  # its rank may still want a minibatch
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_THE_JOB)
    # What the fork server has preloaded is here, too. Asking for the parent now may be too late.
    server = getattr(sys.modules.get(_FORK_SERVER), "server", None)
    die_with_parent(parent or server or os.getppid())


def _unchanged(value: Any) -> Any:
    return value


def _ending(exit_code: int | None, error: BaseException | None) -> str:
    if exit_code is None:  # what asked for it was interrupted by the signal, and it is told only once
        return f"has died ({str(error).strip() or type(error).__name__})"
    if exit_code < 0:
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-exit_code).name}"
    return f"ended with exit code {exit_code}"
