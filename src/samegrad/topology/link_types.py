"""What a link of each type and generation carries: the defaults of presets and readers.

`bandwidth` is what large messages get in one direction of one link, in bytes/s, below the rate of the specification.
Sources: "NCCL" is src/graph/topo.h and src/graph/topo.cc of https://github.com/NVIDIA/nccl (version 2.27), with which
NCCL compares ways; "RCCL" is src/graph/topo.h of https://github.com/ROCm/rccl; "textbook" is Zhang et al., Dive into
Deep Learning, section 13.7, on the p3.16xlarge.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["LINK_TYPES", "MEMORY", "LinkType", "Rates", "nvlink_of", "pcie", "socket_of", "xgmi_of"]


@dataclass(frozen=True, slots=True)
class LinkType:
    """A type of link.

    name: type and generation, as "NVLink 2".
    bandwidth: bytes/s of one link in one direction.
    specified: the same by the specification.
    source: where `bandwidth` is from.
    """

    name: str
    bandwidth: float
    specified: float
    source: str


LINK_TYPES = {
    each.name: each
    for each in (
        LinkType("NVLink 1", 18e9, 20e9, "NCCL, SM60 (P100)"),
        LinkType("NVLink 2", 18e9, 25e9, "textbook, V100; NCCL says 20 GB/s"),
        LinkType("NVLink 3", 20e9, 25e9, "NCCL, SM80 (A100)"),
        LinkType("NVLink 3 bridge", 12e9, 14.0625e9, "NCCL, SM86 (RTX 3090, A40)"),
        LinkType("NVLink 4", 20.6e9, 25e9, "NCCL, SM90 (H100, H200)"),
        LinkType("NVLink 5", 40.1e9, 50e9, "NCCL, SM100 (B200)"),
        LinkType("XGMI 2", 24e9, 46e9, "RCCL, VEGA (MI50, MI100)"),
        LinkType("XGMI 3", 36e9, 50e9, "RCCL, MI200"),
        LinkType("XGMI 4", 48e9, 64e9, "RCCL, GFX94X (MI300)"),
        LinkType("PCIe 1.0", 3e9, 4e9, "NCCL, 2.5 GT/s, 16 lanes"),
        LinkType("PCIe 2.0", 6e9, 8e9, "NCCL, 5 GT/s, 16 lanes"),
        LinkType("PCIe 3.0", 12e9, 15.75e9, "NCCL, 8 GT/s, 16 lanes"),
        LinkType("PCIe 4.0", 24e9, 31.5e9, "NCCL, 16 GT/s, 16 lanes"),
        LinkType("PCIe 5.0", 48e9, 63e9, "NCCL, 32 GT/s, 16 lanes"),
        LinkType("PCIe 6.0", 96e9, 121e9, "NCCL, 64 GT/s, 16 lanes"),
        LinkType("QPI", 6e9, 19.2e9, "NCCL, BDW (Intel up to Broadwell)"),
        LinkType("UPI", 10e9, 20.8e9, "NCCL, SKL (Intel Skylake to Ice Lake)"),
        LinkType("UPI 2.0", 22e9, 32e9, "NCCL, SRP (Intel Sapphire Rapids)"),
        LinkType("Infinity Fabric, Zen 2", 16e9, 36e9, "NCCL, AMD_ZEN12"),
        LinkType("Infinity Fabric, Zen 4", 24e9, 64e9, "NCCL, AMD_ZEN34"),
        LinkType("Infinity Fabric, Zen 5", 32e9, 64e9, "NCCL, AMD_ZEN5"),
        LinkType("X-bus", 32e9, 64e9, "NCCL, P9 (POWER)"),
        LinkType("Arm socket link", 6e9, 6e9, "NCCL, ARM"),
    )
}
"""The table, by name. PCIe is for 16 lanes."""

MEMORY = LinkType("memory", 80e9, 80e9, "six channels of DDR4-2666, of which copies get about two thirds")
"""What joins a processor to its memory: seldom what limits an exchange."""

_PCIE_BY_SPEED = {2.5: "1.0", 5.0: "2.0", 8.0: "3.0", 16.0: "4.0", 32.0: "5.0", 64.0: "6.0"}


@dataclass(frozen=True, slots=True)
class Rates:
    """Bandwidths to use instead of the defaults, in bytes/s of one link and one direction; None keeps the default.

    nvlink: of one NVLink.
    xgmi: of one XGMI link.
    pcie: of the PCIe connection of a device, a network card or a switch.
    socket: between two sockets.
    """

    nvlink: float | None = None
    xgmi: float | None = None
    pcie: float | None = None
    socket: float | None = None


def nvlink_of(compute_capability: int) -> LinkType:
    """The NVLink of a device of this compute capability, without the point: 70 for a V100."""
    if compute_capability >= 100:
        return LINK_TYPES["NVLink 5"]
    if compute_capability >= 90:
        return LINK_TYPES["NVLink 4"]
    if compute_capability == 86:
        return LINK_TYPES["NVLink 3 bridge"]
    if compute_capability >= 80:
        return LINK_TYPES["NVLink 3"]
    return LINK_TYPES["NVLink 2" if compute_capability >= 70 else "NVLink 1"]


def xgmi_of(architecture: str) -> LinkType:
    """The XGMI of a device of this architecture: "908", "910" or "gfx90a", "gfx942"."""
    name = architecture.removeprefix("gfx")
    if name in ("90a", "910"):
        return LINK_TYPES["XGMI 3"]
    return LINK_TYPES["XGMI 2" if name in ("900", "906", "908") else "XGMI 4"]


def pcie(speed: str = "", lanes: int = 16) -> tuple[float, str]:
    """Bandwidth and name of a PCIe connection: `speed` as the system writes it, "8 GT/s" or "16.0 GT/s PCIe".

    Where it says nothing of use, 8 GT/s and 16 lanes are assumed, as NCCL does.
    """
    match = re.match(r"\s*(\d+(?:\.\d+)?)", speed)
    generation = _PCIE_BY_SPEED.get(float(match[1]) if match else 8.0, "3.0")
    width = lanes if 1 <= lanes <= 32 else 16
    return LINK_TYPES[f"PCIe {generation}"].bandwidth * width / 16, f"PCIe {generation} x{width}"


def socket_of(architecture: str, vendor: str, family: int, model: int) -> LinkType:
    """What joins the sockets of such processors; `family` and `model` as in /proc/cpuinfo."""
    if vendor == "AuthenticAMD":
        if family >= 0x80:  # RCCL writes the bits of CPUID: base family, and above it the extended one
            family = (family & 15) + (family >> 4)
        if family >= 26:
            return LINK_TYPES["Infinity Fabric, Zen 5"]
        return LINK_TYPES["Infinity Fabric, Zen 4" if family >= 25 else "Infinity Fabric, Zen 2"]
    if architecture in ("arm64", "aarch64"):
        return LINK_TYPES["Arm socket link"]
    if architecture.startswith("ppc64"):
        return LINK_TYPES["X-bus"]
    if vendor == "GenuineIntel" and family == 6 and model < 0x55:
        return LINK_TYPES["QPI"]
    return LINK_TYPES["UPI 2.0" if vendor == "GenuineIntel" and model >= 0x8F else "UPI"]
