"""What carries bytes between ranks: a group to talk in, and schedules run in it.

`base` says what every executor offers; `local` and `cells` are the obvious way to run a schedule, in one process;
`shared_memory` serves the processes of one host, which read each other's buffers in place; `process_group` serves CUDA
devices through NCCL and several hosts through Gloo, where ranks of one host read each other's messages in place, and
has the backend's own all-reduce (`native`); `device_staging` serves mixed devices, through memory of the host.
"""

from samegrad.executors.base import Exchange, Executor, Group, Work
from samegrad.executors.local import SoloGroup, local_tree_sum

__all__ = ["Exchange", "Executor", "Group", "SoloGroup", "Work", "local_tree_sum"]
