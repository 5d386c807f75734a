"""Outputs of tools as they are pasted, made up for these tests, and the folder with real ones where it exists."""

from __future__ import annotations

from pathlib import Path

SHARED = Path(__file__).resolve().parents[3] / "shared" / "topologies"

# Two sockets of two devices: NVLink within pairs, a network card on the PCIe switch of GPU2.
MATRIX = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV2\tSYS\tSYS\tSYS\t0-7,16-23\t0\t\tN/A
GPU1\tNV2\t X \tSYS\tSYS\tSYS\t0-7,16-23\t0\t\tN/A
GPU2\tSYS\tSYS\t X \tNV2\tPIX\t8-15,24-31\t1\t\tN/A
GPU3\tSYS\tSYS\tNV2\t X \tNODE\t8-15,24-31\t1\t\tN/A
NIC0\tSYS\tSYS\tPIX\tNODE\t X \t\t\t
"""

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
"""

ROCM = """\
======================= ROCm System Management Interface =======================
============================ Hops between two GPUs =============================
       GPU0         GPU1         GPU2         GPU3
GPU0   0            1            3            3
GPU1   1            0            3            3
GPU2   3            3            0            1
GPU3   3            3            1            0

========================== Link Type between two GPUs ==========================
       GPU0         GPU1         GPU2         GPU3
GPU0   0            XGMI         PCIE         PCIE
GPU1   XGMI         0            PCIE         PCIE
GPU2   PCIE         PCIE         0            XGMI
GPU3   PCIE         PCIE         XGMI         0

================================== Numa Nodes ==================================
GPU[0]\t\t: (Topology) Numa Node: 0
GPU[1]\t\t: (Topology) Numa Node: 0
GPU[2]\t\t: (Topology) Numa Node: 1
GPU[3]\t\t: (Topology) Numa Node: 1
============================= End of ROCm SMI Log ==============================
"""

XML = """\
<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <pci busid="0000:10:00.0" class="0x060400" link_speed="8 GT/s" link_width="16">
      <pci busid="0000:11:00.0" class="0x030200" link_speed="8 GT/s" link_width="16">
        <gpu dev="1" sm="70" rank="1">
          <nvlink target="0000:12:00.0" count="2" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:12:00.0" class="0x030200" link_speed="8 GT/s" link_width="16">
        <gpu dev="0" sm="70" rank="0">
          <nvlink target="0000:11:00.0" count="2" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:13:00.0" class="0x020700" link_speed="8 GT/s" link_width="8">
        <nic>
          <net name="mlx5_0" dev="0" speed="100000"/>
        </nic>
      </pci>
    </pci>
  </cpu>
</system>
"""
