"""What joins devices and how fast: for predictions, and to find rings. No torch.

    topology = samegrad.Topology.preset("dgx-1v")
    [topology.link_name(each) for each in topology.route("gpu0", "gpu5")]

`graph` has the nodes and links, `routes` the ways between them, `presets` the names that stand for machines and
clusters, `files` the TOML; `nvidia_smi`, `rocm_smi` and `nccl_xml` read what tools say, `link_types` says how fast that
is; `rings` packs rings into the links.
"""

from __future__ import annotations

from samegrad.topology.graph import Kind, Link, Node, Topology
from samegrad.topology.link_types import LINK_TYPES, LinkType, Rates
from samegrad.topology.presets import PRESETS, preset
from samegrad.topology.reading import find, from_text, load
from samegrad.topology.rings import Ring, RingPacking, pack_rings, ring_order

__all__ = [
    "LINK_TYPES",
    "PRESETS",
    "Kind",
    "Link",
    "LinkType",
    "Node",
    "Rates",
    "Ring",
    "RingPacking",
    "Topology",
    "find",
    "from_text",
    "load",
    "pack_rings",
    "preset",
    "ring_order",
]
