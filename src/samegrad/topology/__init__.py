"""What joins devices and how fast: for predictions, and to find rings. No torch.

    topology = samegrad.Topology.preset("dgx-1v")
    [topology.link_name(each) for each in topology.route("gpu0", "gpu5")]

`graph` has the nodes and links, `routes` the ways between them, `presets` the names that stand for machines and
clusters.
"""

from __future__ import annotations

from samegrad.topology.graph import Kind, Link, Node, Topology
from samegrad.topology.presets import PRESETS, preset

__all__ = ["PRESETS", "Kind", "Link", "Node", "Topology", "preset"]
