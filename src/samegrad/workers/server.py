"""The process that forks the workers: it imports what they need, forks, and then only watches.

A worker is forked from a process that has imported but never computed: forking one that has (threads of OpenMP, CUDA)
gives children that hang. So the caller may have used torch, threads or CUDA before; this process is always fresh.

It ends when all workers have ended, and takes them along when the caller, a worker or itself is killed: workers ask
the kernel to be killed with their parent. What workers have started and left behind becomes a child of this process,
which ends it.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import mmap
import os
import pickle
import signal
import socket
import sys
import traceback
from typing import NoReturn

from samegrad.errors import ConfigurationError, GroupError, SamegradError
from samegrad.machine import usable_cores
from samegrad.memory import new_memory_file
from samegrad.workers.context import WorkerContext
from samegrad.workers.devices import parse_devices
from samegrad.workers.frames import Channel, Kind, read_frame, send_frame
from samegrad.workers.parent import become_subreaper, die_with_parent
from samegrad.workers.settings import Settings
from samegrad.workers.supervisor import Supervisor, Worker, end_children
from samegrad.workers.worker import Answers, run_worker

__all__ = ["main"]


def main(fd: int, parent: int, leaves_sigterm: bool) -> NoReturn:
    """Serves the launcher `parent`, at the other end of the socket `fd`: forks its workers and relays what they say.

    leaves_sigterm: whether SIGTERM, which may be sent to all processes of a job, is for the launcher alone.
    """
    exit_code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the launcher, which tells us
        signal.signal(signal.SIGTERM, signal.SIG_IGN if leaves_sigterm else signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the launcher may ignore or block it, which is inherited
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        die_with_parent(parent)
        become_subreaper()
        gc.disable()  # imports leave little garbage, and looking for it takes a sixth of their time
        with socket.socket(fileno=fd) as end:
            _serve(end, leaves_sigterm)
        exit_code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(exit_code)


def _serve(end: socket.socket, leaves_sigterm: bool) -> None:
    request = read_frame(end)
    if request is None:
        return
    settings = Settings.from_json(request.payload)
    sys.argv[:] = settings.argv
    try:
        devices = _import_and_resolve(settings)
        function = read_frame(end)
        if function is None:
            return
        returned = mmap.mmap(-1, len(devices) + 3)
        workers = _fork(end, settings, devices, function.payload, returned, leaves_sigterm)
    except SamegradError as error:
        send_frame(end, Kind.REFUSED, pickle.dumps(error))
        return
    del function
    launcher = Channel(end)
    pids = [worker.pid for worker in workers]
    launcher.send(Kind.STARTED, json.dumps({"devices": devices, "pids": pids}).encode())
    ask_to_stop, say_end, leave = (functools.partial(returned.__setitem__, len(devices) + i, 1) for i in range(3))

    def leave_sigterm() -> None:
        leave()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    Supervisor(launcher, workers, ask_to_stop, say_end, leave_sigterm).run()
    end_children()
    launcher.flush_all()


def _import_and_resolve(settings: Settings) -> list[str]:
    """Imports what is to be preloaded; returns the devices of the workers."""
    for name in settings.preload:
        _import(name)
    devices = parse_devices(
        settings.devices,
        cuda=0 if all(word.startswith("cpu") for word in settings.devices) else _count_cuda_devices(),
        cores=usable_cores(),
        threads=settings.threads,
        at_most=settings.at_most,
    )
    if "torch" in settings.preload and len(devices) > usable_cores():
        _import("torch._dynamo")  # which torch.optim imports: here once, not in turns in each worker
    return devices


def _import(name: str) -> None:
    try:
        importlib.import_module(name)
    except Exception as error:
        raise ConfigurationError(
            f"launch: the workers cannot import {name!r}: {type(error).__name__}: {error}\n{traceback.format_exc()}"
        ) from None


def _count_cuda_devices() -> int:
    """How many CUDA devices torch sees. A child asks: asking may start CUDA, which a process that forks must not do."""
    import torch

    if not torch.backends.cuda.is_built():
        return 0
    reading, writing = os.pipe()
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent(server)
            os.write(writing, str(torch.cuda.device_count()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        count = answer.read()
    os.waitpid(pid, 0)
    return int(count or 0)


def _fork(
    end: socket.socket,
    settings: Settings,
    devices: list[str],
    function: bytes,
    returned: mmap.mmap,
    leaves_sigterm: bool,
) -> list[Worker]:
    """Starts one worker for each device, in order of their ranks."""
    workers: list[Worker] = []
    try:
        memory_fd = new_memory_file()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()  # or every worker would write out what an import has printed
        gc.freeze()  # what was imported is not looked through for garbage any more, so its pages stay returned
        server = os.getpid()
        for rank in range(len(devices)):
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if pid == 0:
                try:
                    die_with_parent(server)
                    for worker in workers:
                        worker.channel.close()
                    end.close()
                    ours.close()
                    answers = Answers(theirs)
                    place = WorkerContext(
                        rank=rank,
                        devices=tuple(devices),
                        memory_fd=memory_fd,
                        threads=settings.threads,
                        timeout_s=settings.timeout_s,
                        start_timeout_s=settings.start_timeout_s,
                        send_report=answers.report,
                        returned=returned,
                        leaves_sigterm=leaves_sigterm,
                        send_saving=answers.saving,
                    )
                    run_worker(answers, place, function)
                finally:
                    os._exit(1)
            theirs.close()
            workers.append(Worker(pid, rank, Channel(ours)))
        os.close(memory_fd)
    except OSError as error:
        end_children()
        raise GroupError(
            f"launch: worker {len(workers)} of {len(devices)} could not be started: {error}. Use fewer devices, or "
            f"raise the limits of this process (ulimit -a)"
        ) from error
    return workers
