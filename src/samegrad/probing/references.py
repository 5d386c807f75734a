"""Well-known figures to hold this machine's against, with year and source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["REFERENCES", "Reference", "reference_of"]

_DEAN = "Dean, Designs, Lessons and Advice from Building Large Distributed Systems, LADIS"
_D2L = "Zhang et al., Dive into Deep Learning, section 13.4"


@dataclass(frozen=True, slots=True)
class Reference:
    """value: in the unit of the row. what: what it is a figure of, where that is not plain from the row."""

    value: float
    year: int
    source: str
    what: str = ""


REFERENCES: Mapping[str, Reference] = {
    "level 1 cache, load": Reference(1.5e-9, 2023, _D2L),
    "level 2 cache, load": Reference(5e-9, 2023, _D2L),
    "level 3 cache, load": Reference(16e-9, 2023, _D2L),
    "memory, load": Reference(100e-9, 2009, _DEAN),
    "sequential read, 1 thread": Reference(25.6e9, 2012, "JEDEC JESD79-4", "one channel of DDR4-3200"),
    "read 4 KB at random, past the cache": Reference(120e-6, 2023, _D2L, "NVMe SSD"),
    "write 4 KB at random, past the cache": Reference(30e-6, 2023, _D2L, "NVMe SSD"),
    "read 1 MB after 1 MB, past the cache": Reference(4.8e9, 2023, _D2L, "NVMe SSD"),
    "round trip over TCP": Reference(500e-6, 2009, _DEAN, "within a data centre"),
    "take a free lock and give it back": Reference(25e-9, 2009, _DEAN, "not from Python"),
    r"gpu\d+: launch a kernel": Reference(10e-6, 2023, _D2L),
    r"gpu\d+: copy to the GPU, pinned": Reference(12e9, 2023, _D2L, "PCIe 3.0 x16"),
    r"gpu\d+: memory": Reference(2.039e12, 2021, "NVIDIA, A100 80GB data sheet"),
    r"gpu\d+: product of \d+ × \d+, fp32": Reference(19.5e12, 2020, "NVIDIA, A100 data sheet"),
    r"gpu\d+: product of \d+ × \d+, (bf|fp)16": Reference(312e12, 2020, "NVIDIA, A100 data sheet"),
    r"gpu\d+: product of \d+ × \d+, fp64": Reference(19.5e12, 2020, "NVIDIA, A100 data sheet", "tensor cores"),
    r"product of \d+ × \d+, fp32, 1 thread": Reference(
        96e9, 2013, "Intel, Haswell", "peak of a core: 2 FMA of 8 numbers per cycle at 3 GHz"
    ),
    r"product of \d+ × \d+, fp64, 1 thread": Reference(
        48e9, 2013, "Intel, Haswell", "peak of a core: 2 FMA of 4 numbers per cycle at 3 GHz"
    ),
}
"""Name of a row, or a pattern of names -> the figure."""


def reference_of(name: str) -> Reference | None:
    """The well-known figure for the row of this name, if there is one."""
    if name in REFERENCES:
        return REFERENCES[name]
    return next((found for pattern, found in REFERENCES.items() if re.fullmatch(pattern, name)), None)
