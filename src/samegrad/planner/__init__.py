"""How fast training will be, and by which way of adding up: forecasts before owning the hardware. No torch.

    plan = samegrad.plan(workload, topology)        # ranked; plan.best is a samegrad.Strategy

`workload` says what a step computes and sends (`known_models` for the models of samegrad), `bucketing` cuts gradients
into buckets, `candidates` lists the strategies that fit, `exchange_times` simulates them, `step_time` puts computing
and exchanging together, `planning` ranks; `reasons` explains in sentences, `picture` draws. `choosing` takes a strategy
for ranks that are at hand, from what they have measured.
"""

from __future__ import annotations

from samegrad.planner.bucketing import Bucket, bucketing
from samegrad.planner.forecast import Forecast, Limit, Plan
from samegrad.planner.known_models import KNOWN_MODELS
from samegrad.planner.planning import plan
from samegrad.planner.workload import Gradient, Workload, split_step

__all__ = [
    "KNOWN_MODELS",
    "Bucket",
    "Forecast",
    "Gradient",
    "Limit",
    "Plan",
    "Workload",
    "bucketing",
    "plan",
    "split_step",
]
