"""What is wrong with one chunk of a schedule, in words: the slow and obvious way to verify, with real multisets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from samegrad.schedules.ir import Cell, Op, Schedule, Transfer
from samegrad.shards import Node, additions, leaves_of

__all__ = ["Expression", "Held", "explain", "held_at_the_end", "held_by_round", "result_of"]

Expression = int | tuple["Expression", "Expression"]
"""A leaf, or the sum of two expressions; the one whose first leaf comes first stands first, since a + b = b + a."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a cell holds: each leaf as often as it is counted, and the order in which they were added."""

    counts: Counter[int]
    expression: Expression

    def __add__(self, other: Held) -> Held:
        ordered = sorted((self.expression, other.expression), key=_sort_key)
        return Held(self.counts + other.counts, (ordered[0], ordered[1]))


class _Fault(Exception):
    """What is wrong, without the name of the schedule."""


def explain(schedule: Schedule, chunk: int, must_follow_tree: bool = False) -> str:
    """A sentence on the first thing that is wrong with `chunk`: which round, which cell, expected and got."""
    try:
        held = held_at_the_end(schedule, chunk)
    except _Fault as fault:
        return f"{schedule.name}, {fault}"
    right = result_of(schedule)
    owner = None if schedule.owners is None else schedule.owners[chunk]
    receivers = schedule.cut.holders if schedule.collective.ends_everywhere or owner is None else [owner]
    for rank in receivers:
        cell = Cell(rank, 0, chunk)
        fault_found = _fault_of(held.get(cell), right, must_follow_tree)
        if fault_found is not None:
            return f"{schedule.name}, after the last round: {_words(cell)} {fault_found}"
    return f"{schedule.name}: chunk {chunk} is right"


def held_by_round(schedule: Schedule, chunk: int) -> Iterator[dict[Cell, Held]]:
    """What every cell of `chunk` holds: at the start, and after each round."""
    held = _held_at_the_start(schedule, chunk)
    yield dict(held)
    for number, each in enumerate(schedule.rounds):
        before = dict(held)
        transfers = list(each.where(each.chunk == chunk))
        try:
            for transfer in transfers:
                _apply(transfer, before, held)
            _check_hazards(transfers, schedule.in_place)
        except _Fault as fault:
            raise _Fault(f"round {number}: {fault}") from None
        yield dict(held)


def held_at_the_end(schedule: Schedule, chunk: int) -> dict[Cell, Held]:
    """What every cell of `chunk` holds after the last round."""
    *_, last = held_by_round(schedule, chunk)
    return last


def result_of(schedule: Schedule) -> Held:
    """What the collective shall compute, added along the tree."""
    if not schedule.collective.starts_with_leaves:
        return Held(Counter([0]), 0)
    held = schedule.cut.contributions()
    values = [_node(each.node, schedule.cut.leaves) for each in held]
    return _combine(values, additions([each.node for each in held], schedule.cut.leaves))


def _held_at_the_start(schedule: Schedule, chunk: int) -> dict[Cell, Held]:
    if not schedule.collective.starts_with_leaves:
        assert schedule.owners is not None
        return {Cell(schedule.owners[chunk], 0, chunk): Held(Counter([0]), 0)}
    leaves = schedule.cut.leaves
    return {Cell(rank, slot, chunk): _node(node, leaves) for node, rank, slot in schedule.cut.contributions()}


def _apply(transfer: Transfer, before: dict[Cell, Held], held: dict[Cell, Held]) -> None:
    source, target = transfer.read, transfer.written
    if source == target:
        raise _Fault(f"{_words(source)} is copied or added to itself; expected two different cells")
    if source not in before:
        raise _Fault(
            f"{_words(target)} reads {_words(source)}, where nothing has been written; expected a cell that was "
            f"written in a round before, or holds a contribution"
        )
    if transfer.op is Op.COPY:
        held[target] = before[source]
        return
    if target not in before:
        raise _Fault(
            f"{_words(source)} is added into {_words(target)}, which is empty; expected a copy, or a sum there"
        )
    total = held[target] + before[source]
    twice = next((leaf for leaf, count in sorted(total.counts.items()) if count > 1), None)
    if twice is not None:
        raise _Fault(f"{_words(target)} counts leaf {twice} twice; expected each leaf once")
    held[target] = total


def _check_hazards(transfers: list[Transfer], in_place: bool) -> None:
    writes = Counter(transfer.written for transfer in transfers)
    for transfer in transfers:
        if transfer.op is Op.COPY and writes[transfer.written] > 1:
            raise _Fault(
                f"{_words(transfer.written)} is written {writes[transfer.written]} times, one of them a copy, which "
                f"loses the others; expected one copy, or additions only"
            )
    if not in_place:
        return
    left = transfers
    while left:
        read = {transfer.read for transfer in left}
        seen: set[Cell] = set()
        blocked = []
        for transfer in left:
            if transfer.written in read or transfer.written in seen:
                blocked.append(transfer)
            seen.add(transfer.written)
        if len(blocked) == len(left):
            cells = ", ".join(_words(cell) for cell in sorted({transfer.written for transfer in left})[:4])
            raise _Fault(
                f"the transfers into {cells} wait for each other: each overwrites what another still reads. Expected "
                f"an order in which they can act in place; state in_place=False if what is read shall be copied first"
            )
        left = blocked


def _fault_of(got: Held | None, right: Held, must_follow_tree: bool) -> str | None:
    if got is None:
        return "was never written; expected the sum over all leaves"
    missing = sorted((right.counts - got.counts).elements())
    extra = sorted((got.counts - right.counts).elements())
    if missing:
        return f"lacks {_leaves(missing)}; expected each leaf once"
    if extra:
        return f"counts {_leaves(extra)} more than once; expected each leaf once"
    if must_follow_tree and got.expression != right.expression:
        return f"adds in another order than the tree: expected {_text(right.expression)}, got {_text(got.expression)}"
    return None


def _node(node: Node, leaves: int) -> Held:
    covered = [Node(0, leaf) for leaf in leaves_of(node, leaves)]
    values = [Held(Counter([leaf.number]), leaf.number) for leaf in covered]
    return _combine(values, additions(covered, leaves))


def _combine(values: list[Held], steps: list[tuple[int, int]]) -> Held:
    for left, right in steps:
        values[left] = values[left] + values[right]
    return values[0]


def _sort_key(expression: Expression) -> list[int]:
    """The leaves of the expression, from left to right, and before them how it is nested."""
    leaves: list[int] = []
    stack = [expression]
    while stack:
        top = stack.pop()
        if isinstance(top, int):
            leaves.append(top)
        else:
            stack += [top[1], top[0]]
    return leaves


def _text(expression: Expression) -> str:
    """The expression with brackets; cut short where it is long."""
    words: list[str] = []
    stack: list[Expression | str] = [expression]
    while stack and len(words) < 120:
        top = stack.pop()
        if isinstance(top, tuple):
            stack += [")", top[1], "+", top[0], "("]
        else:
            words.append(str(top))
    return "".join(words) + ("..." if stack else "")


def _leaves(leaves: list[int]) -> str:
    names = ", ".join(map(str, leaves[:8])) + (f" and {len(leaves) - 8} more" if len(leaves) > 8 else "")
    return f"leaf {names}" if len(leaves) == 1 else f"leaves {names}"


def _words(cell: Cell) -> str:
    return f"rank {cell.rank} slot {cell.slot} chunk {cell.chunk}"
