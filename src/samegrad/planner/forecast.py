"""What is predicted: the records."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from samegrad.planner.workload import Workload
from samegrad.recipe import Recipe
from samegrad.strategy import Strategy

__all__ = ["Forecast", "Limit", "Plan"]


@dataclass(frozen=True, slots=True)
class Forecast:
    """One way to train, and how long a step takes; all times in seconds.

    bucket_bytes: least size of a bucket of gradients; None: all are one. pieces: into which each bucket is cut, which
        follow each other through the rounds.
    computing_s: forward and backward on the device with most to do.
    exchange_s: of all buckets; hidden_s of it goes on while backward runs, exposed_s does not.
    step_s: computing and what is exposed.
    examples_per_s: of the global minibatch. efficiency: that, against as many devices that each are as fast as one.
    traffic: bytes that the busiest rank sends, as a multiple of the gradients.
    """

    strategy: Strategy
    devices: int
    bucket_bytes: float | None
    pieces: int
    computing_s: float
    exchange_s: float
    hidden_s: float
    exposed_s: float
    step_s: float
    examples_per_s: float
    efficiency: float
    traffic: float

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        record = {**asdict(self), "strategy": self.strategy.to_json()}
        return {**record, "follows_tree": self.strategy.follows_tree}


@dataclass(frozen=True, slots=True)
class Limit:
    """The kind of link that the exchange of the fastest way waits for: the one of which more bandwidth would help most.

    links: those of the kind that are busy for longest, as "gpu0 - plx0". kind, bandwidth: of the first, bytes/s.
    busy: part of the exchange for which it is busy, 0 to 1.
    faster_step_s: seconds of a step if all links of this kind had twice the bandwidth.
    """

    links: tuple[str, ...]
    kind: str
    bandwidth: float
    busy: float
    faster_step_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What `plan` found; times in seconds.

    topology: its name. devices: how many are used, the first ones.
    overlap: whether buckets are exchanged while backward runs.
    one_device_s: of a step of the whole minibatch on one device.
    forecasts: of all strategies that fit, the fastest first. With `overlap` each stands there several times, with
        buckets and pieces, unless its busiest link alone makes it slower than another way.
    curve: the fastest way for each of several numbers of devices.
    limit: what the exchange of the first waits for; None if there is none.
    explanation, advice: sentences; `advice` has what speaks against the devices or the shards that were asked for.
    interpolation_error: how far times that were interpolated may be off: the largest relative difference between the
        lines through simulated sizes that were compared there.
    """

    workload: Workload = field(repr=False)
    topology: str
    recipe: Recipe
    devices: int
    overlap: bool
    one_device_s: float
    forecasts: tuple[Forecast, ...] = field(repr=False)
    curve: tuple[Forecast, ...] = field(repr=False)
    limit: Limit | None
    explanation: str
    advice: tuple[str, ...]
    interpolation_error: float

    @property
    def fastest(self) -> Forecast:
        """The first of the forecasts."""
        return self.forecasts[0]

    @property
    def trained(self) -> Forecast:
        """The fastest way without pieces: a Trainer sends each bucket whole."""
        return next(each for each in self.forecasts if each.pieces == 1)

    @property
    def best(self) -> Strategy:
        """The strategy of `trained`, as `Trainer(strategy=...)` takes it; with `overlap`, with its buckets."""
        found = self.trained
        if not self.overlap or found.devices == 1:
            return found.strategy
        nbytes = self.workload.nbytes if found.bucket_bytes is None else found.bucket_bytes
        return replace(found.strategy, bucket_bytes=math.ceil(nbytes))

    def to_json(self) -> dict[str, Any]:
        """As JSON values; "strategy" is the best one for a Trainer."""
        return {
            "strategy": self.best.to_json(),
            "step_s": self.fastest.step_s,
            "devices": self.devices,
            "topology": self.topology,
            "overlap": self.overlap,
            "recipe": self.recipe.to_json(),
            "model": self.workload.name,
            "gradient_bytes": self.workload.nbytes,
            "forward_s": self.workload.forward_s,
            "backward_s": self.workload.backward_s,
            "batch": self.workload.batch,
            "one_device_s": self.one_device_s,
            "forecasts": [each.to_json() for each in self.forecasts],
            "curve": [each.to_json() for each in self.curve],
            "limit": None if self.limit is None else asdict(self.limit),
            "explanation": self.explanation,
            "advice": list(self.advice),
            "interpolation_error": self.interpolation_error,
        }
