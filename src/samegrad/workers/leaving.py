"""The end of a rank that another launcher has started: what it has is let go of in order, and its exit code is true.

A thread of torch's Gloo that drops the tensors of the last collective needs Python's lock for that. Where Python is at
its end already, it ends the thread instead, and with it, by SIGABRT ("terminate called without an active exception"),
the process. Destroying the process group waits for these threads, but only if nothing else holds the group.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import sys
import traceback
from types import FunctionType

from samegrad.workers.membership import JoinedContext

__all__ = ["end_at_once", "leave_at_exit", "let_go_of_group"]

_ends_at_once = False
_HOLDER = "torch.distributed.nn.functional"  # imported by torch._dynamo, which torch.optim imports


def leave_at_exit(joined: JoinedContext) -> None:
    """Has `joined.on_exit` called when this process ends; one that fails makes its exit code 1."""
    atexit.register(_leave, joined, os.getpid())


def end_at_once() -> None:
    """Has this process end with exit code 1 when all of `JoinedContext.on_exit` was called: a thread of torch waits for
    a rank that has ended, and torch would wait for the thread."""
    global _ends_at_once
    _ends_at_once = True


def let_go_of_group() -> None:
    """Sees to it that torch does not keep a process group beyond its end.

    The functions of one of its modules have as their default the group that there is when it is imported. None, which
    they have if it is imported before, means the same group to them.
    """
    import torch.distributed as dist

    for function in vars(importlib.import_module(_HOLDER)).values():
        if isinstance(function, FunctionType) and function.__defaults__:
            function.__defaults__ = tuple(
                None if isinstance(value, dist.ProcessGroup) else value for value in function.__defaults__
            )


def _leave(joined: JoinedContext, pid: int) -> None:
    if os.getpid() == pid:  # not a child that the process has forked
        try:
            for leave in joined.on_exit:
                leave()
        except BaseException:  # which Python would print, and then end as if all were well
            traceback.print_exc()
            end_at_once()
        if _ends_at_once:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            os._exit(1)
