"""Starting workers on this host, one for each device, and carrying the first failure back to the caller; or joining
the ranks that another launcher has started.
"""

from samegrad.workers.context import WorkerContext, context, report, stop_wanted
from samegrad.workers.devices import parse_devices
from samegrad.workers.joining import join
from samegrad.workers.launcher import launch
from samegrad.workers.membership import JoinedContext, place_in_job
from samegrad.workers.signals import saved_on_signal
from samegrad.workers.stopping import StopSwitch

__all__ = [
    "JoinedContext",
    "StopSwitch",
    "WorkerContext",
    "context",
    "join",
    "launch",
    "parse_devices",
    "place_in_job",
    "report",
    "saved_on_signal",
    "stop_wanted",
]
