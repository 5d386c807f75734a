"""Starting workers on this host, one for each device, and carrying the first failure back to the caller."""

from samegrad.workers.context import WorkerContext, context, report
from samegrad.workers.devices import parse_devices
from samegrad.workers.launcher import launch

__all__ = ["WorkerContext", "context", "launch", "parse_devices", "report"]
