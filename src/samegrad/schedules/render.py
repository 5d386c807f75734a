"""A schedule as text: a row for each round, a column for each rank, in it what the rank gets.

+c2 < r1         chunk 2 of rank 1 is added to this rank's
=c0-3 < r1       chunks 0 to 3 of rank 1 are copied to this rank
+c2@1 < r1@3     the same between slots: of slot 3 of rank 1, into slot 1 of this rank (slot 0 is not named)
+c2 < @1         within the rank: slot 1 of this rank is added to its slot 0
"""

from __future__ import annotations

import itertools

from samegrad.schedules.ir import Op, Round, Schedule

__all__ = ["grid"]


def grid(schedule: Schedule) -> str:
    """The rounds of `schedule`, drawn. Meant for up to about 16 ranks; it has a line for each transfer or more."""
    heads = ["round", *(f"rank {rank}" for rank in range(schedule.ranks))]
    rows: list[list[list[str]]] = []
    for number, each in enumerate(schedule.rounds):
        gets = _gets(each, schedule.ranks)
        rows.append([[str(number)], *gets])
    widths = [
        max([len(head), *(len(line) for row in rows for line in row[column])]) for column, head in enumerate(heads)
    ]
    lines = ["  ".join(head.ljust(width) for head, width in zip(heads, widths, strict=True)).rstrip()]
    for row in rows:
        for parts in itertools.zip_longest(*row, fillvalue=""):
            cells = (part.ljust(width) for part, width in zip(parts, widths, strict=True))
            lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _gets(each: Round, ranks: int) -> list[list[str]]:
    """By rank: what it gets in this round, a string for each pair of slots."""
    chunks: list[dict[tuple[int, int, int, int], list[int]]] = [{} for _ in range(ranks)]
    for move in each:
        key = (move.source, move.source_slot, move.target_slot, int(move.op))
        chunks[move.target].setdefault(key, []).append(move.chunk)
    texts = []
    for rank, moves in enumerate(chunks):
        lines = []
        for (source, source_slot, target_slot, op), moved in moves.items():
            sign = "+" if op == Op.ADD else "="
            into = f"@{target_slot}" if target_slot else ""
            slot = f"@{source_slot}" if source_slot or source == rank else ""
            origin = slot if source == rank else f"r{source}{slot}"
            lines.append(f"{sign}c{_ranges(moved)}{into} < {origin}")
        texts.append(lines)
    return texts


def _ranges(numbers: list[int]) -> str:
    """Whole numbers in few words: 0-3,7."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
