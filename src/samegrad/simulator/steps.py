"""Messages as tasks for the engine: each enters its links, is sent, and is added up at its target.

Without barriers a message starts as soon as what it waits for is done, and all that its sender has to send in earlier
rounds has left. With barriers every round waits for all of the one before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from samegrad.schedules.spans import spread
from samegrad.simulator.engine import Tasks
from samegrad.simulator.messages import Messages
from samegrad.simulator.sharing import Integers
from samegrad.simulator.wiring import Wiring

__all__ = ["Steps", "steps_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The tasks of each message: the first one, the one that sends it, the last one. Further tasks only join others.

    counts: the tasks that count messages: their sizes are no bytes.
    """

    tasks: Tasks
    first: Integers
    send: Integers
    last: Integers
    counts: Integers

    def scaled(self, per_part: float) -> Steps:
        """In bytes, of which each part of the buffer has so many."""
        nbytes = self.tasks.nbytes * per_part
        nbytes[self.counts] = self.tasks.nbytes[self.counts]
        return replace(self, tasks=replace(self.tasks, nbytes=nbytes))


def steps_of(messages: Messages, wiring: Wiring) -> Steps:
    """With barriers if the messages do not say what they wait for."""
    count = len(messages)
    enters, adds = wiring.entrance >= 0, wiring.adder >= 0
    stops = np.cumsum(1 + enters + adds)
    first = np.append(0, stops)[:count]
    send, last = first + enters, stops - 1
    total = int(stops[-1]) if count else 0
    edges = [(first[enters], send[enters]), (send[adds], last[adds])]
    follower = np.full(total, -1)
    if messages.waits is None:
        number = np.unique(messages.number_of_round, return_inverse=True)[1]
        barriers = int(number[-1]) if count else 0
        before, behind = number < barriers, number > 0
        edges += [(last[before], total + number[before]), (total + number[behind] - 1, first[behind])]
        total += barriers
        follower = np.full(total, -1)
    else:
        waits, within = messages.waits, messages.source == messages.target
        until_added = waits.whole | within[waits.earlier]  # what moves within a rank is read until it is added
        edges.append((np.where(until_added, last[waits.earlier], send[waits.earlier]), first[waits.later]))
        joins, queued = _queues(messages, first, send, total, follower)
        edges.append(queued)
        total += joins
        follower = np.append(follower, np.full(joins, -1))
    earlier, later = (np.concatenate([edge[place] for edge in edges]) for place in (0, 1))
    order = np.argsort(earlier, kind="stable")
    starts = np.append(0, np.cumsum(np.bincount(earlier, minlength=total)))
    route, nbytes = np.full(total, -1), np.zeros(total)
    route[first[enters]], nbytes[first[enters]] = wiring.entrance[enters], 1.0
    route[send], nbytes[send] = wiring.way, messages.nbytes
    route[last[adds]], nbytes[last[adds]] = wiring.adder[adds], messages.added[adds]
    return Steps(Tasks(route, nbytes, starts, later[order], follower), first, send, last, first[enters])


def _queues(
    messages: Messages, first: Integers, send: Integers, total: int, follower: Integers
) -> tuple[int, tuple[Integers, Integers]]:
    """Has each rank send round after round; fills in `follower`.

    Returns how many tasks that takes, each of which waits until what a rank sends in a round has left, and what follows
    them. Where one message follows one message, none is needed.
    """
    sent = np.flatnonzero(messages.source != messages.target)
    sent = sent[np.argsort(messages.source[sent], kind="stable")]
    source, number = messages.source[sent], messages.number_of_round[sent]
    starts = np.flatnonzero(np.append(True, (np.diff(source) != 0) | (np.diff(number) != 0))[: len(sent)])
    sizes = np.diff(np.append(starts, len(sent)))
    leads = np.flatnonzero(np.diff(source[starts]) == 0)  # groups with another one of the same rank after them
    alone = (sizes[leads] == 1) & (sizes[leads + 1] == 1)
    simple, joined = leads[alone], leads[~alone]
    follower[send[sent[starts[simple]]]] = first[sent[starts[simple + 1]]]
    join = total + np.arange(len(joined))
    follower[send[sent[spread(starts[joined], starts[joined] + sizes[joined])]]] = np.repeat(join, sizes[joined])
    behind = sent[spread(starts[joined + 1], starts[joined + 1] + sizes[joined + 1])]
    return len(joined), (np.repeat(join, sizes[joined + 1]), first[behind])
