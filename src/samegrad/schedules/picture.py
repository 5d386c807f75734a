"""A schedule as a picture, in the shape of a slide: time goes down, each rank has a column, each of its chunks a box.

A box has a stripe for each leaf that its cell counts; a full box is a chunk of the result. What a rank has received,
and further subtrees of its own, lie above its buffer as long as they are needed. Between the ranks, a solid arrow adds
and a dashed one copies; grey lines end at what is added within a rank.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from samegrad.errors import ConfigurationError
from samegrad.output import check_picture, save_figure
from samegrad.schedules.frames import Frame, Step, frames_of
from samegrad.schedules.ir import Cell, Op, Schedule

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

__all__ = ["MOST_RANKS", "MOST_ROUNDS", "MOST_WIDE", "draw", "save_picture"]

MOST_RANKS = 16
MOST_WIDE = 160
MOST_ROUNDS = 30

_SLIDE = (13.33, 7.5)  # inches; all that follows, too
_LEFT, _RIGHT, _TOP, _BOTTOM = 1.35, 0.35, 1.5, 0.75
_SMALLEST, _LARGEST = 0.12, 0.46  # a box
_LONGEST_NAME = 60
_GREY = "#777777"


def save_picture(schedule: Schedule, path: Path) -> None:
    """Draws `schedule` into the file `path`, whose name ends in .png, .svg or .pdf.

    Raises ConfigurationError for another ending, and for what is too large to be looked at; OutputError.
    """
    check_picture(path)
    save_figure(draw(schedule), path, dpi=200)


def draw(schedule: Schedule) -> Figure:
    """The picture as a matplotlib figure. Raises ConfigurationError for what is too large to be looked at."""
    from matplotlib.collections import PatchCollection
    from matplotlib.figure import Figure

    wide, rounds = schedule.ranks * (schedule.chunks + 1) - 1, len(schedule.rounds)
    if schedule.ranks > MOST_RANKS or wide > MOST_WIDE or rounds > MOST_ROUNDS:
        raise ConfigurationError(
            f"{schedule.name}: a picture that can be read has at most {MOST_RANKS} ranks, {MOST_WIDE} boxes side by "
            f"side and {MOST_ROUNDS} rounds; this would have {schedule.ranks}, {wide} and {rounds}. Draw it for fewer "
            f"ranks or pieces, which looks alike"
        )
    frames, steps = frames_of(schedule)
    page = _Page.of(schedule, frames, steps)
    figure = Figure(figsize=page.size)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, page.size[0]), ylim=(page.size[1], 0))
    axes.axis("off")
    pen = _Pen(axes, schedule, page.box, page.size[0] / _SLIDE[0])
    for row, frame in enumerate(frames):
        for cell, counts in frame.cells.items():
            pen.draw_box(page.middle(row, cell), cell.chunk, counts, cell in frame.live)
    for row, step in enumerate(steps):
        for before, after in step.kept:
            pen.draw_line(page.below(row, before), page.above(row + 1, after))
        for cell, several in Counter(after for _, after in step.kept).items():
            if several > 1:
                pen.draw_plus(page.above(row + 1, cell))
        for move in step.sent:
            start, end = page.below(row, move.read), page.above(row + 1, move.written)
            pen.draw_arrow(start, end, pen.colour(move.chunk), move.op)
        pen.write((page.left - 0.25 * pen.zoom, page.between(row)), _rounds(step), 10, ha="right", va="center")
    for rank, nodes in enumerate(schedule.cut.nodes):
        at = (page.centre(rank), page.top - 0.14 * pen.zoom)
        pen.write(at, f"rank {rank}" + "\n(no gradients)" * (not nodes), 11, ha="center", va="bottom", weight="bold")
    _write_title(pen, schedule, page.size[0])
    signs = _Pen(axes, schedule, 0.26 * pen.zoom, pen.zoom)
    _draw_legend(signs, schedule, frames, steps, page.size[0] / 2)
    axes.add_collection(PatchCollection(pen.rectangles + signs.rectangles, match_original=True, zorder=3))
    return figure


@dataclass(frozen=True, slots=True)
class _Page:
    """Where things are, in inches from the top left. places: by frame, column and line (from below) of each cell."""

    size: tuple[float, float]
    box: float
    left: float
    top: float
    columns: int
    pitch: float
    lowest: list[float]
    """The middle of the lowest line of each frame, where the buffers are."""
    places: list[dict[Cell, tuple[int, int]]]

    @classmethod
    def of(cls, schedule: Schedule, frames: list[Frame], steps: list[Step]) -> _Page:
        """Boxes as large as fit onto a slide, or as small as can be read on a larger one; then the rest is spread."""
        most = max(
            Counter((cell.rank, cell.chunk) for cell in each.live if cell.slot).most_common(1) for each in frames
        )
        columns = max(schedule.chunks, min(most[0][1] if most else 1, 4))
        places = [_places(frame, schedule.chunks, columns) for frame in frames]
        lines = [1 + max((line for _, line in each.values()), default=0) for each in places]
        bands = [1.7 if step.sent else 1.0 for step in steps]
        wide, high = schedule.ranks * (columns + 1.0) - 1, sum(lines) + sum(bands)
        room = _SLIDE[0] - _LEFT - _RIGHT, _SLIDE[1] - _TOP - _BOTTOM
        box = min(room[0] / wide, room[1] / high, _LARGEST)
        zoom = max(1.0, _SMALLEST / box)
        box, size = box * zoom, (_SLIDE[0] * zoom, _SLIDE[1] * zoom)
        room = room[0] * zoom, room[1] * zoom
        gap = 1 + min((room[0] / box - wide) / max(schedule.ranks - 1, 1), 5 + columns)
        stretch = min(room[1] / box - high, 4 * sum(bands)) / sum(bands) + 1 if bands else 1
        wide += (gap - 1) * (schedule.ranks - 1)
        at, lowest = _TOP * zoom + max(0.0, room[1] - box * (sum(lines) + stretch * sum(bands))) / 2, []
        top = at
        for count, band in itertools.zip_longest(lines, bands, fillvalue=0.0):
            at += count * box
            lowest.append(at - box / 2)
            at += band * stretch * box
        left = _LEFT * zoom + (room[0] - wide * box) / 2
        return cls(size, box, left, top, columns, (columns + gap) * box, lowest, places)

    def middle(self, row: int, cell: Cell) -> tuple[float, float]:
        column, line = self.places[row][cell]
        return self.left + cell.rank * self.pitch + (column + 0.5) * self.box, self.lowest[row] - line * self.box

    def below(self, row: int, cell: Cell) -> tuple[float, float]:
        """Under the box, and under those that lie below it."""
        return self.middle(row, cell)[0], self.lowest[row] + 0.5 * self.box

    def above(self, row: int, cell: Cell) -> tuple[float, float]:
        """Over the box, and over those that lie above it."""
        column = self.places[row][cell][0]
        lines = [line for each, (at, line) in self.places[row].items() if (each.rank, at) == (cell.rank, column)]
        return self.middle(row, cell)[0], self.lowest[row] - (max(lines) + 0.5) * self.box

    def between(self, row: int) -> float:
        lines = 1 + max((line for _, line in self.places[row + 1].values()), default=0)
        return (self.lowest[row] + self.lowest[row + 1] - (lines - 1) * self.box) / 2

    def centre(self, rank: int) -> float:
        return self.left + rank * self.pitch + self.columns * self.box / 2


def _places(frame: Frame, chunks: int, columns: int) -> dict[Cell, tuple[int, int]]:
    """The buffer of a rank in the lowest line; what else it has of a chunk above that, side by side."""
    shift = (columns - chunks) // 2
    places = {cell: (cell.chunk + shift, 0) for cell in frame.cells if cell.slot == 0}
    taken = {(cell.rank, *place) for cell, place in places.items()}
    further = sorted(cell for cell in frame.cells if cell.slot)
    further.sort(key=lambda cell: (cell.rank, cell.chunk))
    for (rank, chunk), group in itertools.groupby(further, lambda cell: (cell.rank, cell.chunk)):
        own = list(group)
        for start in range(0, len(own), columns):
            cells = own[start : start + columns]
            first = min(max(chunk + shift - (len(cells) - 1) // 2, 0), columns - len(cells))
            across = range(first, first + len(cells))
            line = next(n for n in itertools.count(1) if not any((rank, column, n) in taken for column in across))
            for cell, column in zip(cells, across, strict=True):
                places[cell] = (column, line)
                taken.add((rank, column, line))
    return places


class _Pen:
    """What can be drawn, and how it looks. `rectangles` are collected, since there are many."""

    def __init__(self, axes: Axes, schedule: Schedule, box: float, zoom: float) -> None:
        self.axes, self.zoom, self.box = axes, zoom, box
        self.rectangles: list[Rectangle] = []
        self._chunks = schedule.chunks
        self._leaves = schedule.cut.leaves if schedule.collective.starts_with_leaves else 1

    def colour(self, chunk: int) -> tuple[float, float, float]:
        from matplotlib import colormaps

        few = self._chunks <= 10
        return (colormaps["tab10"](chunk) if few else colormaps["turbo"]((chunk + 0.5) / self._chunks))[:3]

    def draw_box(self, at: tuple[float, float], chunk: int | None, counts: Counter[int], live: bool) -> None:
        """A box around `at`; grey, without a number, if `chunk` is None."""
        from matplotlib.patches import Rectangle

        side = 0.88 * self.box
        x, y = at[0] - side / 2, at[1] - side / 2
        hue = (0.4, 0.4, 0.4) if chunk is None else self.colour(chunk)
        if live:
            self.rectangles.append(Rectangle((x, y), side, side, facecolor=(*hue, 0.1), linewidth=0))
            for leaf in counts:
                stripe = (x + side * leaf / self._leaves, y), side / self._leaves, side
                self.rectangles.append(Rectangle(*stripe, facecolor=(*hue, 0.6), linewidth=0))
        edge = (*hue, 1.0) if live else (0.8, 0.8, 0.8, 1.0)
        self.rectangles.append(
            Rectangle((x, y), side, side, facecolor="none", edgecolor=edge, linewidth=0.9 * self.zoom)
        )
        size = min(11 * self.zoom, side * 72 * 0.55)
        if chunk is not None and self._chunks > 1 and size >= 3.5:
            colour = "black" if live else "#bbbbbb"
            self.axes.text(*at, str(chunk), fontsize=size, ha="center", va="center_baseline", color=colour, zorder=4)

    def draw_arrow(self, start: tuple[float, float], end: tuple[float, float], colour: object, op: Op) -> None:
        from matplotlib.patches import FancyArrowPatch

        self.axes.add_patch(
            FancyArrowPatch(
                start,
                end,
                arrowstyle="-|>",
                color=colour,
                linestyle="solid" if op is Op.ADD else (0, (3.5, 1.8)),
                linewidth=min(1.5, 1 + self.box) * self.zoom,
                mutation_scale=min(12, 8 + 15 * self.box) * self.zoom,
                shrinkA=1,
                shrinkB=1,
            )
        )

    def draw_line(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        self.axes.plot(*zip(start, end, strict=True), color="#aaaaaa", linewidth=1.2 * self.zoom, zorder=1)

    def draw_plus(self, at: tuple[float, float]) -> None:
        size = min(0.5 * self.box * 72, 11 * self.zoom)
        self.axes.plot(*at, "o", markersize=size, color="white", markeredgecolor="black", markeredgewidth=0.8, zorder=5)
        self.axes.plot(*at, "+", markersize=size * 0.6, color="black", markeredgewidth=1.2, zorder=6)

    def write(self, at: tuple[float, float], text: str, size: float, **look: str) -> None:
        self.axes.text(*at, text, fontsize=size * self.zoom, parse_math=False, **look)  # type: ignore[arg-type]


def _rounds(step: Step) -> str:
    name = f"round {step.first}" if step.first == step.last else f"rounds {step.first} to {step.last}"
    return name if step.sent else f"{name}:\nwithin ranks"


def _write_title(pen: _Pen, schedule: Schedule, width: float) -> None:
    name = schedule.name if len(schedule.name) <= _LONGEST_NAME else f"{schedule.name[: _LONGEST_NAME - 1]}…"
    holders = len(schedule.cut.holders)
    title = f"{name} on {_counted(holders, 'rank')}"
    if schedule.cut.leaves != holders:
        title += f", {schedule.cut.leaves} shards"
    pen.write((width / 2, 0.4 * pen.zoom), title, 18, ha="center", va="center", weight="bold")
    text = (
        f"{schedule.collective} of M bytes in {_counted(schedule.chunks, 'chunk')}; "
        f"{_counted(len(schedule.rounds), 'round')}; a rank sends at most {max(schedule.costs().sent)} M"
    )
    pen.write((width / 2, 0.76 * pen.zoom), text, 12, ha="center", va="center", color=_GREY)


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"


def _draw_legend(pen: _Pen, schedule: Schedule, frames: list[Frame], steps: list[Step], middle: float) -> None:
    """The signs that occur, in a row around x = `middle`."""
    zoom, leaves = pen.zoom, schedule.cut.leaves
    of = "gradient" if leaves == len(schedule.cut.holders) else "shard"
    signs: list[tuple[str, Callable[[float, float], None]]] = []

    def box(counts: int, live: bool = True) -> Callable[[float, float], None]:
        return lambda x, y: pen.draw_box((x, y), None, Counter(range(counts)), live)

    def arrow(op: Op) -> Callable[[float, float], None]:
        return lambda x, y: pen.draw_arrow((x - 0.2 * zoom, y), (x + 0.2 * zoom, y), _GREY, op)

    if schedule.collective.starts_with_leaves:
        signs += [(f"a stripe for each {of} counted", box((leaves + 1) // 2)), ("all of them", box(leaves))]
    if any(cell not in frame.live for frame in frames for cell in frame.cells):
        signs += [("not needed any more", box(0, live=False))]
    ops = {move.op for step in steps for move in step.sent}
    signs += [(text, arrow(op)) for text, op in (("sent and added", Op.ADD), ("sent and copied", Op.COPY)) if op in ops]
    if any(step.kept for step in steps):
        signs += [("added within a rank", lambda x, y: pen.draw_plus((x, y)))]
    widths = [(0.75 + 0.073 * len(text)) * zoom for text, _ in signs]
    x, y = middle - sum(widths) / 2, (_SLIDE[1] - 0.36) * zoom
    for (text, sign), width in zip(signs, widths, strict=True):
        sign(x + 0.2 * zoom, y)
        pen.write((x + 0.48 * zoom, y), text, 10, ha="left", va="center", color=_GREY)
        x += width
