"""Starting workers on this host, one for each device, and carrying the first failure back to the caller."""

from samegrad.workers.context import WorkerContext, context, report, stop_wanted
from samegrad.workers.devices import parse_devices
from samegrad.workers.launcher import launch
from samegrad.workers.stopping import StopSwitch

__all__ = ["StopSwitch", "WorkerContext", "context", "launch", "parse_devices", "report", "stop_wanted"]
