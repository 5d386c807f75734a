"""Measuring a machine: memory, storage, network, processes, arithmetic, GPUs. `probe` does it, `Machine` is the result.

Each group has a module of its own, which lists its tasks; `probe` runs them. Importing this package needs no torch.
"""

from samegrad.probing.probe import probe
from samegrad.probing.record import Curve, Machine, Row
from samegrad.probing.references import Reference, reference_of

__all__ = ["Curve", "Machine", "Reference", "Row", "probe", "reference_of"]
