"""Pictures of topologies: nothing stands on anything else, and what cannot be drawn is refused."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from tests.topology.samples import MATRIX, ROCM, XML

from samegrad.errors import ConfigurationError, OutputError
from samegrad.topology import Kind, Link, Node, Topology
from samegrad.topology.layout import lay_out
from samegrad.topology.picture import draw, save_picture

NAMES = [
    *("pcie-switch-1", "pcie-switch-5", "two-socket-pcie-3", "dgx-1v", "dgx-2", "dgx-h100", "nvl72", "p2-16xlarge"),
    *("g4dn-12xlarge", "ethernet-3x2@1Gb", "ib-2xdgx-a100@200Gb", "fat-tree-2x2x1@100Gb", "ethernet-2xdgx-2@10Gb"),
]
OTHERS = [
    Topology.from_nvidia_smi(MATRIX),
    Topology.from_rocm_smi(ROCM),
    Topology.from_nccl_xml(XML),
    Topology("bare", (Node("a", Kind.DEVICE), Node("b", Kind.DEVICE)), (Link("a", "b", 1.0),)),
    Topology("lone", (Node("a", Kind.DEVICE), Node("s", Kind.SWITCH, "h"), Node("t", Kind.SWITCH)), ()),
]


@pytest.mark.parametrize("topology", [*map(Topology.preset, NAMES), *OTHERS], ids=lambda topology: topology.name)
def test_no_two_nodes_overlap(topology: Topology) -> None:
    layout = lay_out(topology)
    assert set(layout.places) == {node.name for node in topology.nodes}
    by_row: dict[float, list[float]] = {}
    for x, y in layout.places.values():
        by_row.setdefault(y, []).append(x)
    for across in by_row.values():
        assert all(abs(a - b) > 0.74 for a, b in combinations(across, 2))
    for node in topology.nodes:
        if node.host:
            x, y = layout.places[node.name]
            left, right, top = layout.hosts[node.host]
            assert left < x < right
            assert y < top


def test_a_picture_has_a_box_for_each_node_and_a_line_for_each_link() -> None:
    topology = Topology.preset("dgx-1v")
    (axes,) = draw(topology).axes
    assert len(axes.lines) == len(topology.links)
    assert len(axes.patches) == len(topology.nodes) + 1  # the host
    legend = axes.get_legend()
    assert legend is not None
    assert "NVLink 2: 18.0 GB/s" in [text.get_text() for text in legend.get_texts()]


@pytest.mark.parametrize("name", ["dgx-1v", "dgx-2"])
def test_the_frame_of_a_host_is_around_all_that_joins_its_devices(name: str) -> None:
    (axes,) = draw(Topology.preset(name)).axes
    frame, *nodes = (patch.get_extents().bounds for patch in axes.patches)
    assert all(frame[1] < bottom for _, bottom, _, _ in nodes)
    lowest = min(float(np.min(line.get_ydata())) for line in axes.lines)
    assert frame[1] < axes.transData.transform((0.0, lowest))[1]


@pytest.mark.parametrize("ending", ["png", "svg", "pdf", "PNG"])
def test_files(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"picture.{ending}"
    save_picture(Topology.preset("pcie-switch-2"), path)
    assert path.stat().st_size > 1000


def test_refused(tmp_path: Path) -> None:
    small = Topology.preset("pcie-switch-2")
    with pytest.raises(ConfigurationError, match=r"expected a picture, .* or \.pdf; got '\.gif'"):
        save_picture(small, tmp_path / "picture.gif")
    with pytest.raises(ConfigurationError, match="at most 400 nodes; this has 452"):
        draw(Topology.preset("pcie-switch-450"))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="could not be written"):
        save_picture(small, tmp_path / "file" / "picture.png")
