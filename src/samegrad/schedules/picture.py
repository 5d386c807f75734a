"""A schedule as a picture: time goes down, each rank has a column, each of its chunks a box that fills up.

A box is filled as far as its cell counts leaves, in the colour of its chunk; a full box is a chunk of the result. Boxes
of scratch and of further subtrees stand in rows of their own, as long as they hold something. A solid arrow adds, a
dashed one copies.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from samegrad.errors import ConfigurationError, OutputError
from samegrad.files import write_atomically
from samegrad.schedules.explain import Held, held_by_round
from samegrad.schedules.ir import Cell, Op, Schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["MOST_BOXES", "MOST_RANKS", "draw", "save_picture"]

MOST_RANKS = 16
MOST_BOXES = 6000

_GAP = 1.2  # between the columns of two ranks, in boxes
_ARROWS = 1.9  # height of a round, in boxes


def save_picture(schedule: Schedule, path: Path) -> None:
    """Draws `schedule` into the file `path`, whose name ends in .png, .svg or .pdf.

    Raises ConfigurationError for another ending, and for what is too large to be looked at; OutputError.
    """
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigurationError(f"{path}: a picture ends in .png, .svg or .pdf; got {path.suffix or 'no ending'!r}")
    figure, image = draw(schedule), io.BytesIO()
    figure.savefig(image, format=path.suffix[1:], dpi=200)
    try:
        write_atomically(path, image.getvalue())
    except OSError as error:
        raise OutputError(f"{path}: could not be written: {error.strerror or error}") from error


def draw(schedule: Schedule) -> Figure:
    """The picture as a matplotlib figure."""
    from matplotlib.figure import Figure

    slots = schedule.slots()
    boxes = sum(slots) * schedule.chunks * (len(schedule.rounds) + 1)
    if schedule.ranks > MOST_RANKS or boxes > MOST_BOXES:
        raise ConfigurationError(
            f"{schedule.name}: a picture is for at most {MOST_RANKS} ranks and {MOST_BOXES} boxes; this would have "
            f"{schedule.ranks} ranks and {boxes} boxes"
        )
    states = _states(schedule)
    tops, bottom = _rows(states)
    width = schedule.ranks * (schedule.chunks + _GAP)
    scale = min(0.42, 15 / width)
    figure = Figure(figsize=(max(width * scale + 1.2, 5), bottom * scale + 1.5), layout="constrained")
    axes = figure.add_subplot()
    leaves = 1 if not schedule.collective.starts_with_leaves else schedule.cut.leaves
    for state, top in zip(states, tops, strict=True):
        for cell, held in state.items():
            _draw_box(axes, schedule, cell, top, held.counts.total() / leaves)
    for number, each in enumerate(schedule.rounds):
        axes.text(
            -0.9, (tops[number] + tops[number + 1]) / 2 + 0.5, f"round {number}", ha="right", va="center", fontsize=9
        )
        for move in each:
            start = _middle(schedule, move.read, tops[number])
            end = _middle(schedule, move.written, tops[number + 1])
            axes.annotate(
                "",
                xy=(end[0], end[1] - 0.55),
                xytext=(start[0], start[1] + 0.55),
                arrowprops={
                    "arrowstyle": "-|>",
                    "color": _colour(schedule, move.chunk),
                    "linestyle": "solid" if move.op is Op.ADD else "dashed",
                    "linewidth": 1.3,
                    "shrinkA": 0,
                    "shrinkB": 0,
                    "mutation_scale": 9,
                },
            )
    _finish(axes, schedule, width, bottom)
    return figure


def _states(schedule: Schedule) -> list[dict[Cell, Held]]:
    """What the cells of all chunks hold: at the start, and after each round; without what nobody reads any more."""
    states: list[dict[Cell, Held]] = [{} for _ in range(len(schedule.rounds) + 1)]
    for chunk in range(schedule.chunks):
        for state, held in zip(states, held_by_round(schedule, chunk), strict=True):
            state |= held
    wanted: set[Cell] = set()  # further slots that are still needed, from the last round back
    for number in reversed(range(len(states))):
        if number < len(schedule.rounds):
            wanted |= {move.read for move in schedule.rounds[number]} | {
                move.written for move in schedule.rounds[number] if move.op is Op.ADD
            }
        states[number] = {cell: held for cell, held in states[number].items() if cell.slot == 0 or cell in wanted}
    return states


def _rows(states: list[dict[Cell, Held]]) -> tuple[list[float], float]:
    """Where each state starts, counted in boxes from the top, and where the last one ends."""
    tops, at = [], 0.0
    for state in states:
        tops.append(at)
        at += max((cell.slot for cell in state), default=0) + 1 + _ARROWS
    return tops, at - _ARROWS


def _middle(schedule: Schedule, cell: Cell, top: float) -> tuple[float, float]:
    return cell.rank * (schedule.chunks + _GAP) + cell.chunk + 0.5, top + cell.slot + 0.5


def _colour(schedule: Schedule, chunk: int) -> tuple[float, float, float, float]:
    from matplotlib import colormaps

    if schedule.chunks <= 10:
        return colormaps["tab10"](chunk)
    return colormaps["turbo"]((chunk + 0.5) / schedule.chunks)


def _draw_box(axes: Axes, schedule: Schedule, cell: Cell, top: float, share: float) -> None:
    from matplotlib.patches import Rectangle

    x, y = _middle(schedule, cell, top)
    colour = _colour(schedule, cell.chunk)
    axes.add_patch(Rectangle((x - 0.42, y - 0.42), 0.84, 0.84, facecolor=(*colour[:3], 0.12), edgecolor=colour))
    axes.add_patch(Rectangle((x - 0.42, y + 0.42), 0.84, -0.84 * share, facecolor=(*colour[:3], 0.85), linewidth=0))


def _finish(axes: Axes, schedule: Schedule, width: float, bottom: float) -> None:
    for rank in range(schedule.ranks):
        x = rank * (schedule.chunks + _GAP) + schedule.chunks / 2
        name = f"rank {rank}" if schedule.cut.nodes[rank] else f"rank {rank}\n(no leaves)"
        axes.text(x, -0.5, name, ha="center", va="bottom", fontsize=10, weight="bold")
    sent = schedule.costs().sent
    most = max(sent)
    axes.set_title(
        f"{schedule.name}: {schedule.collective} over {schedule.ranks} ranks, {len(schedule.rounds)} rounds, "
        f"at most {most} M sent by a rank",
        fontsize=11,
        pad=8,
    )
    axes.text(
        (width - _GAP) / 2,
        bottom + 0.6,
        "solid arrows add, dashed ones copy; a box fills as its chunk counts more leaves",
        ha="center",
        va="top",
        fontsize=8,
        color="dimgray",
    )
    axes.set_xlim(-3.2, width - _GAP + 0.3)
    axes.set_ylim(bottom + 1.4, -1.6)
    axes.set_aspect("equal")
    axes.axis("off")
