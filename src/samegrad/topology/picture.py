"""A topology as a picture: `layout` says where nodes stand; links have the colour of their type, and are the wider the
more parallel ones they are. Those between two devices run below the row of devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from samegrad.errors import ConfigurationError
from samegrad.output import check_picture, save_figure
from samegrad.topology.graph import Kind, Link, Topology
from samegrad.topology.layout import Layout, lay_out
from samegrad.units import format_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["MOST_DRAWN", "draw", "save_picture"]

MOST_DRAWN = 400
"""Nodes in a picture. More cannot be told apart."""

_COLOURS = {Kind.DEVICE: "#76b900", Kind.HOST: "#f2c14e", Kind.SWITCH: "#d9dde3", Kind.NIC: "#8ecae6"}


def save_picture(topology: Topology, path: Path) -> None:
    """Draws `topology` into the file `path`, whose name ends in .png, .svg or .pdf.

    Raises ConfigurationError for another ending, and for more than 400 nodes; OutputError.
    """
    check_picture(path)
    save_figure(draw(topology), path, dpi=200)


def draw(topology: Topology) -> Figure:
    """The picture as a matplotlib figure. Raises ConfigurationError for more than 400 nodes."""
    from matplotlib.figure import Figure

    if len(topology.nodes) > MOST_DRAWN:
        raise ConfigurationError(
            f"{topology.name}: a picture is for at most {MOST_DRAWN} nodes; this has {len(topology.nodes)}"
        )
    layout = lay_out(topology)
    across = [x for x, _ in layout.places.values()]
    upward = [y for _, y in layout.places.values()]
    deepest = min([*upward, *(_depth(layout, link) for link in topology.links)])
    width, height = max(across) - min(across) + 2.4, max(upward) - deepest + 2.2
    scale = min(0.85, 40 / width)
    figure = Figure(figsize=(max(6.0, width * scale), max(3.5, height * scale * 0.9 + 1.2)), layout="constrained")
    axes = figure.add_subplot()
    bottoms = _bottoms(topology, layout)
    for host, (left, right, top) in layout.hosts.items():
        low = bottoms[host]
        _box(axes, (left + right) / 2, (top + low) / 2, right - left, top - low, "#f6f7f9", "#c3c8d0", -1)
        axes.text(left + 0.08, top - 0.05, host, ha="left", va="top", fontsize=7, color="dimgray")
    colours = _draw_links(axes, topology, layout)
    for node in topology.nodes:
        x, y = layout.places[node.name]
        label = node.name.removeprefix(f"{node.host}/") if node.host else node.name
        _box(axes, x, y, max(0.74, 0.115 * len(label)), 0.44, _COLOURS[node.kind], "#444444", 2)
        axes.text(x, y, label, ha="center", va="center", fontsize=7.5, zorder=3)
    _finish(axes, topology, colours)
    axes.set_xlim(min(across) - 1.1, max(across) + 1.1)
    axes.set_ylim(deepest - 0.7, max(upward) + 0.8)
    return figure


def _draw_links(axes: Axes, topology: Topology, layout: Layout) -> dict[str, tuple[float, float, float, float]]:
    """Draws the links. Returns the colour of each type, as the legend names it."""
    from matplotlib import colormaps

    colours: dict[str, tuple[float, float, float, float]] = {}
    more = 0.9 if len(topology.devices) <= 32 else 0.2
    for link in topology.links:
        colour = colours.setdefault(_type(link), colormaps["tab10"](len(colours) % 10))
        (x, y), (other_x, other_y) = layout.places[link.a], layout.places[link.b]
        wide = 1.1 + more * min(link.count - 1, 4)
        if y == other_y == 0:  # two devices
            depth = 2 * _depth(layout, link)  # a curve of this kind reaches half as deep as its middle point
            axes.plot(*_curve(x, other_x, depth), color=colour, linewidth=wide, zorder=0)
        else:
            axes.plot([x, other_x], [y, other_y], color=colour, linewidth=wide, zorder=0)
    return colours


def _bottoms(topology: Topology, layout: Layout) -> dict[str, float]:
    """How far down the frame of each host reaches: around what joins its devices below them."""
    bottoms = dict.fromkeys(layout.hosts, -0.55)
    host_of = {node.name: node.host for node in topology.nodes}
    lows = [(host, layout.places[name][1] - 0.4) for name, host in host_of.items()]
    lows += [
        (host_of[link.a], _depth(layout, link) - 0.15) for link in topology.links if host_of[link.a] == host_of[link.b]
    ]
    for host, low in lows:
        if host:
            bottoms[host] = min(bottoms[host], low)
    return bottoms


def _depth(layout: Layout, link: Link) -> float:
    """How far below the devices the link between two of them runs; 0 for other links."""
    (x, y), (other_x, other_y) = layout.places[link.a], layout.places[link.b]
    return -0.35 - 0.42 * abs(x - other_x) if y == other_y == 0 else 0.0


def _curve(x: float, other_x: float, depth: float) -> tuple[list[float], list[float]]:
    steps = [number / 40 for number in range(41)]
    return [x + (other_x - x) * t for t in steps], [2 * t * (1 - t) * depth for t in steps]


def _type(link: Link) -> str:
    kind = link.kind or "link"
    return f"{kind}: {format_rate(link.bandwidth / link.count)}"


def _box(axes: Axes, x: float, y: float, width: float, height: float, face: str, edge: str, order: int) -> None:
    from matplotlib.patches import FancyBboxPatch

    axes.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - height / 2),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.12",
            facecolor=face,
            edgecolor=edge,
            linewidth=0.8,
            zorder=order,
        )
    )


def _finish(axes: Axes, topology: Topology, colours: dict[str, tuple[float, float, float, float]]) -> None:
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=colour, linewidth=2.5, label=name) for name, colour in colours.items()]
    axes.legend(
        handles=lines,
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        ncols=min(3, len(lines)) or 1,
        fontsize=8,
        frameon=False,
        title="in each direction; wider lines are several parallel links",
        title_fontsize=8,
    )
    count = len(topology.devices)
    axes.set_title(f"{topology.name}: {count} device{'s' * (count != 1)}", fontsize=11)
    axes.axis("off")
