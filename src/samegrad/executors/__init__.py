"""What carries bytes between ranks: a group to talk in, and the sum along the tree over it.

`base` says what every executor offers; `local` is the obvious reference, in one process, and `cells` runs any schedule
there, on a list of tensors; `shared_memory` serves the processes of one host; `process_group` serves CUDA devices
through NCCL.
"""

from samegrad.executors.base import Group, TreeSum
from samegrad.executors.local import SoloGroup, local_tree_sum

__all__ = ["Group", "SoloGroup", "TreeSum", "local_tree_sum"]
