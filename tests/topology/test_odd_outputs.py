"""Outputs as people paste them, which must come to the same as the plain ones."""

from __future__ import annotations

import pytest

from samegrad.topology import Topology

NVSWITCH = """\
\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tNV18\tNV18\tPIX\tSYS\t0-55,112-167\t0\t\tN/A
GPU1\tNV18\t X \tNV18\tNV18\tNODE\tSYS\t0-55,112-167\t0\t\tN/A
GPU2\tNV18\tNV18\t X \tNV18\tSYS\tPIX\t56-111,168-223\t1\t\tN/A
GPU3\tNV18\tNV18\tNV18\t X \tSYS\tNODE\t56-111,168-223\t1\t\tN/A
NIC0\tPIX\tNODE\tSYS\tSYS\t X \tSYS
NIC1\tSYS\tSYS\tPIX\tNODE\tSYS\t X

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""
ROCM = """\
============================ ROCm System Management Interface ============================
=============================== Link Type between two GPUs ===============================
       GPU0         GPU1         GPU2
GPU0   0            XGMI         PCIE
GPU1   XGMI         0            PCIE
GPU2   PCIE         PCIE         0
======================================= Numa Nodes =======================================
GPU[0]\t\t: (Topology) Numa Node: 0
GPU[1]\t\t: (Topology) Numa Node: 0
GPU[2]\t\t: (Topology) Numa Node: 1
================================== End of ROCm SMI Log ===================================
"""
ACCESS = """\
================================ Access between two GPUs =================================
       GPU0         GPU1         GPU2
GPU0   True         True         True
GPU1   True         True         True
GPU2   True         True         True

"""
BANDWIDTH = """\
=============================== Bandwidth between two GPUs ===============================
       GPU0         GPU1         GPU2
GPU0   N/A          50000-50000  N/A
GPU1   50000-50000  N/A          N/A
GPU2   N/A          N/A          N/A
"""


def before_lines(prefix: str, text: str) -> str:
    return "\n".join(prefix + line for line in text.splitlines())


@pytest.mark.parametrize(
    "text",
    [
        NVSWITCH.replace("\n", "\r\n"),
        NVSWITCH.expandtabs(8),
        NVSWITCH.replace("\t", "\u00a0\u00a0"),
        f"host1$ nvidia-smi topo -m\n{NVSWITCH}host2$ nvidia-smi topo -m\n{NVSWITCH}",
        before_lines("[pod/gpu-0/main] ", NVSWITCH),
        before_lines("2026-01-01T00:00:00.123Z ", NVSWITCH),
        before_lines("> ", NVSWITCH),
        f"<html><body><pre>{NVSWITCH}</pre></body></html>",
    ],
)
def test_matrices_of_nvidia_smi(text: str) -> None:
    plain = Topology.from_text(NVSWITCH)
    assert len(plain.devices) == 4
    assert [link.count for link in plain.links if link.kind.startswith("NVLink")] == [18] * 4
    found = Topology.from_text(text)
    assert (found.nodes, found.links) == (plain.nodes, plain.links)


@pytest.mark.parametrize(
    "text",
    [
        ROCM.replace("\n", "\r\n"),
        "WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status\n\n" + ROCM,
        ACCESS.join(ROCM.split("\n", 1)).replace(ACCESS, "\n" + ACCESS),
        ROCM.replace("==\n====", f"==\n{BANDWIDTH}====", 1),
    ],
)
def test_matrices_of_rocm_smi(text: str) -> None:
    plain = Topology.from_text(ROCM)
    assert len(plain.devices) == 3
    assert sum(link.kind.startswith("XGMI") for link in plain.links) == 1
    found = Topology.from_text(text)
    assert (found.nodes, found.links) == (plain.nodes, plain.links)
