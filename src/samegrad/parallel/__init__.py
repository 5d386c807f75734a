"""What every rank does alike: its place in the world, flat buffers, gradients, buffers and generators of the shards."""

from samegrad.parallel.agreement import check_agreement
from samegrad.parallel.distributed_data_parallel import DistributedDataParallel
from samegrad.parallel.fingerprint import fingerprint
from samegrad.parallel.from_scratch import devices, replicate_parameters, split_batch
from samegrad.parallel.reduction import allreduce
from samegrad.parallel.sync_batch_norm import SyncBatchNorm
from samegrad.parallel.tracing import Trace, trace
from samegrad.parallel.world import World, current_world

__all__ = [
    "DistributedDataParallel",
    "SyncBatchNorm",
    "Trace",
    "World",
    "allreduce",
    "check_agreement",
    "current_world",
    "devices",
    "fingerprint",
    "replicate_parameters",
    "split_batch",
    "trace",
]
