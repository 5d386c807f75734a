"""Who is to blame when an exchange over a process group fails or cannot end; torch says which address broke off, at
most, and the rank behind that may only have given up because of a third one.

A rank waits in torch, where nothing else ends its wait. So when the lifeline finds that there is nothing to wait for,
its thread interrupts the groups of this rank, and the wait fails.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Protocol
from weakref import WeakSet

from samegrad.errors import GroupError, PeerFailed, PeerTimeout
from samegrad.workers.leaving import end_at_once
from samegrad.workers.lifeline import Fall, Lifeline, Whereabouts

__all__ = ["Interruptible", "RollCall"]

_NOTICE_S = 1.0  # the end of a process is known to all about as soon as torch fails because of it
_ANSWER_S = 3.0


class Interruptible(Protocol):
    """A group of ranks that exchange."""

    def interrupt(self) -> None:
        """Makes all waits fail in which this rank is now, and lets none succeed later; called by another thread."""
        ...


class RollCall:
    """The ranks at the other ends of `lifeline`, which it starts."""

    def __init__(self, lifeline: Lifeline) -> None:
        self._lifeline = lifeline
        self.has_left_behind = False
        """Whether a thread of torch is left in a wait that was given up."""
        self._places: dict[int, str] = {}  # by thread: where it waits
        self._last = "", time.monotonic()
        self._groups: WeakSet[Interruptible] = WeakSet()
        lifeline.start(self._where, self._interrupt_waits)

    def enter(self, group: Interruptible) -> None:
        """The ranks also meet in `group`."""
        self._groups.add(group)

    def waiting(self, operation: str) -> contextlib.AbstractContextManager[None]:
        """Within, this thread waits for the others at `operation`, and an error of torch becomes a GroupError that says
        who is to blame. Raises it at once if the wait would be vain."""
        return _Waiting(self, operation)

    def arrive(self, operation: str) -> None:
        """The beginning of `waiting`."""
        self._places[threading.get_ident()] = operation
        if self._lifeline.has_fallen:  # asked after the place was written: else it is interrupted
            self.leave(operation)
            raise self._error(operation, self._lifeline.falls(), "")

    def leave(self, operation: str) -> None:
        """The end of `waiting`."""
        del self._places[threading.get_ident()]
        self._last = operation, time.monotonic()

    def is_vain(self) -> bool:
        """Whether there is nothing to wait for."""
        return self._lifeline.has_fallen

    def leave_behind(self) -> None:
        """A thread of torch is left in a wait until its deadline; this process is not to wait for it."""
        self.has_left_behind = True
        end_at_once()

    def explain(self, failure: RuntimeError, operation: str) -> GroupError:
        """The error to raise for `failure`, when the others have been told of it. Takes some seconds if it is not known
        who is to blame, and not all answer."""
        what = str(failure).partition("\n")[0].partition(" This is typically")[0]
        answers: dict[int, Whereabouts] = {}
        falls = self._lifeline.news(_NOTICE_S)
        if not falls:
            answers = self._lifeline.ask(_ANSWER_S)
            falls = self._lifeline.news(0.0)
        return self._error(operation, falls or [self._late(operation, what, answers)], what)

    def _late(self, operation: str, what: str, answers: Mapping[int, Whereabouts]) -> Fall:
        """Who is to blame where no rank has ended, as far as one can tell."""
        others = [rank for rank in range(self._lifeline.size) if rank != self._lifeline.rank]
        silent = [rank for rank in others if rank not in answers]
        busy = [rank for rank in others if rank in answers and not answers[rank].at]
        if silent:
            return Fall(
                silent[0],
                "gives no sign of life: it was stopped, is in a call that lets nothing else run, or its host is out of "
                "reach. What was printed there last says more",
                is_late=True,
            )
        if busy:
            after, since_s = answers[busy[0]].after, answers[busy[0]].since_s
            return Fall(
                busy[0],
                f"lives, but has not come: it has been busy with something else for {since_s:.3g} s, since "
                f"{repr(after) if after else 'its start'}. If that may take so long, give launch a longer timeout",
                is_late=True,
            )
        places = {rank: answers[rank].at if rank in answers else operation for rank in range(self._lifeline.size)}
        is_late = "timed out" in what.lower() or "timeout" in what.lower()
        if len(set(places.values())) > 1:
            found = ", ".join(f"rank {rank} at {place!r}" for rank, place in places.items())
            return Fall(
                -1,
                f"all ranks answer still: {found}. All ranks must make the same calls in the same order; if they do, "
                f"is the network between their hosts at fault?",
                is_late,
            )
        return Fall(-1, "all ranks answer still: is the network between their hosts at fault?", is_late)

    def _error(self, operation: str, falls: Sequence[Fall], what: str) -> GroupError:
        lifeline, first = self._lifeline, falls[0]
        if first.rank >= 0:
            lifeline.tell(first)
        else:
            lifeline.tell(Fall(lifeline.rank, f"has failed at {operation!r} ({what}), though all answer still"))
        self._interrupt()  # what is left in torch would keep this process from ending
        alike = [fall.rank for fall in falls if (fall.why, fall.teller) == (first.why, first.teller)]
        who = "" if first.rank < 0 else f"{self._named(alike[:1])} "
        others = f" (and so for {self._named(alike[1:])})" if alike[1:] else ""
        teller = f" (says {self._named([first.teller])})" if first.teller not in (-1, first.rank) else ""
        is_over = first.rank >= 0 and not first.is_late  # what torch says is then a consequence, or our interruption
        failed = "there is nothing to wait for" if is_over else f"the exchange with the others failed ({what})"
        kind = PeerTimeout if first.is_late else PeerFailed
        return kind(
            f"rank {lifeline.rank} of {lifeline.size}, on {lifeline.hosts[lifeline.rank]}, at {operation!r}: {failed}; "
            f"{who}{first.why}{others}{teller}",
            rank=first.rank,
        )

    def _named(self, ranks: Sequence[int]) -> str:
        names = ", ".join(f"{rank} (on {self._lifeline.hosts[rank]})" for rank in ranks)
        return f"rank{'s' * (len(ranks) > 1)} {names}"

    def _where(self) -> Whereabouts:
        (after, since), waits = self._last, list(self._places.values())
        return Whereabouts(waits[0] if waits else "", after, time.monotonic() - since)

    def _interrupt_waits(self) -> None:
        if self._places:
            self._interrupt()

    def _interrupt(self) -> None:
        for group in list(self._groups):
            group.interrupt()


class _Waiting:
    """See `RollCall.waiting`; a generator would take twice as long, with every exchange."""

    __slots__ = ("_call", "_operation")

    def __init__(self, call: RollCall, operation: str) -> None:
        self._call, self._operation = call, operation

    def __enter__(self) -> None:
        self._call.arrive(self._operation)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if isinstance(error, RuntimeError) and not isinstance(error, GroupError):
                raise self._call.explain(error, self._operation) from error
        finally:
            self._call.leave(self._operation)
