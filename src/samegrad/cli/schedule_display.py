"""What `samegrad schedule` prints: the rounds, drawn, and a table of what they cost."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from samegrad.schedules.catalog import ALGORITHMS
from samegrad.schedules.ir import Schedule
from samegrad.schedules.render import grid
from samegrad.schedules.verify import verify

__all__ = ["list_algorithms", "show_schedule"]

_MOST_LINES = 200


def list_algorithms() -> None:
    """The algorithms, a row each."""
    table = Table(box=None, pad_edge=False)
    table.add_column("algorithm", header_style="cyan", no_wrap=True)
    for heading in ("what happens", "same bits for any number of devices"):
        table.add_column(heading, header_style="cyan", overflow="fold")
    for each in ALGORITHMS.values():
        table.add_row(each.name, each.summary, "yes" if each.follows_tree else "no")
    Console(highlight=False).print(table)


def show_schedule(schedule: Schedule, picture: Path | None) -> None:
    """The rounds of `schedule`, if they can be looked at, and what they cost."""
    console = Console(highlight=False)
    proof = verify(schedule)
    transfers = sum(len(each) for each in schedule.rounds)
    if transfers <= _MOST_LINES:
        console.print(Text(grid(schedule)), soft_wrap=True)
        console.print()
    costs = schedule.costs()
    facts = [
        ("rounds", f"{len(schedule.rounds)}, {transfers} transfers of {_chunks(schedule)}"),
        ("sent", f"{_per_rank(costs.sent)} per rank"),
        ("received", f"{_per_rank(costs.received)} per rank"),
        ("added", f"{_per_rank(costs.added)} per rank"),
        ("result", _independence(proof.follows_tree, schedule)),
        ("proved", _proved(proof.chunks, schedule)),
        ("digest", schedule.digest()),
    ]
    if picture is not None:
        facts.append(("picture", str(picture)))
    console.print(Text(f"{schedule.name}: {schedule.collective} of M bytes over {_ranks(schedule)}", style="bold"))
    for label, text in facts:
        console.print(Text.assemble((f"{label:<10}", "cyan"), text), soft_wrap=True)


def _ranks(schedule: Schedule) -> str:
    holders, leaves = len(schedule.cut.holders), schedule.cut.leaves
    helpers = schedule.ranks - holders
    text = f"{holders} rank{'s' * (holders != 1)}"
    if leaves != holders:
        text += f" that share {leaves} shards"
    return text + (f" and {helpers} without gradients" if helpers else "")


def _chunks(schedule: Schedule) -> str:
    equal = len(set(schedule.sizes)) == 1
    if schedule.chunks == 1:
        return "the whole buffer"
    return f"M/{schedule.chunks}" if equal else f"{schedule.chunks} unequal chunks"


def _per_rank(amounts: list[Fraction]) -> str:
    least, most = min(amounts), max(amounts)
    return _multiple(most) if least == most else f"{_multiple(least)} to {_multiple(most)}"


def _multiple(amount: Fraction) -> str:
    if amount == 0:
        return "0"
    if amount.denominator == 1:
        return "M" if amount == 1 else f"{amount.numerator} M"
    return f"{amount.numerator}/{amount.denominator} M"


def _independence(follows_tree: bool, schedule: Schedule) -> str:
    if not schedule.collective.starts_with_leaves:
        return "the same bits for any number of devices: nothing is added"
    if not follows_tree:
        return "its bits depend on the number of devices: it does not add along the tree"
    if schedule.name in ALGORITHMS and not ALGORITHMS[schedule.name].follows_tree:
        return "added along the tree here, but not for every number of devices: its bits depend on that"
    return "the same bits for any number of devices: it adds along the tree"


def _proved(chunks: int, schedule: Schedule) -> str:
    if chunks == schedule.chunks:
        return "every chunk on every rank"
    return f"{chunks} of {schedule.chunks} chunks on every rank, since there are more than 1,024 ranks"
