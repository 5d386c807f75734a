"""The recipe: all that determines the bits of a training run, and nothing else. Pure: no torch.

Two runs with equal recipes, data, model and optimizer on the same kind of device have equal fingerprints, whatever the
number of devices. What only determines how the result is computed (devices, shares, the way of updating) is not here.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, get_args

from samegrad.errors import ConfigurationError

__all__ = ["MODES", "PRECISIONS", "Mode", "Precision", "Recipe"]

Precision = Literal["fp32", "bf16", "fp16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

Mode = Literal["sync", "stale", "async"]
MODES: tuple[Mode, ...] = get_args(Mode)
"""How far ranks may run apart: not at all; by a bound; as they like."""

_BOUNDS = {"batch_size": (1, 1 << 40), "shards": (1, 1 << 16), "seed": (0, 1 << 128), "threads": (1, 1024)}


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that determines the bits; every field is checked when it is made, so that a Recipe is always possible.

    batch_size: examples of the global minibatch, over all devices; the last minibatch of an epoch may be shorter.
    shards: parts that the minibatch is cut into, each computed alone; at most `batch_size`. At least the number of
        devices that shall share it, now or later.
    seed: of the order of the examples and of every generator that the model draws from.
    shuffle: whether each epoch has its own random order, or the order of the data set.
    threads: CPU threads of each worker; libraries cut their work by it, so it changes the bits.
    clip_norm: the largest norm that the gradient of all parameters together may have; it is scaled down to it.
    exact: refuse operations that do not give the same bits twice, which exist on CUDA and with several threads. False
        trades the guarantee for them.
    precision: the number format of forward and backward where that is safe (autocast). bf16 has the range of fp32 and 8
        bits of precision; fp16 has 11 bits and little range, so its loss is scaled. Parameters, gradients and their
        sums stay in float32.
    compile: whether the model is compiled by torch.compile, whose code rounds in other places.
    consistency: "sync": all ranks share out a minibatch, and each step follows from the one before. "stale" and
        "async": a minibatch is one rank's, whoever is free, and the servers of a store make a step of its gradient when
        it comes; ranks then are at most `staleness` steps apart, or as far as they get. Which depends on who comes
        when: no two runs are alike, so these need exact=False.
    staleness: for "stale".
    """

    batch_size: int = 256
    shards: int = 8
    seed: int = 0
    shuffle: bool = True
    threads: int = 1
    clip_norm: float | None = None
    exact: bool = True
    precision: Precision = "fp32"
    compile: bool = False
    consistency: Mode = "sync"
    staleness: int = 0

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigurationError(f"recipe: {name} must be a whole number of at least {least}; got {value!r}")
            if value > most:
                raise ConfigurationError(f"recipe: {name} must be at most {most}; got {value}")
        clip = self.clip_norm
        is_number = isinstance(clip, int | float) and not isinstance(clip, bool)
        if clip is not None and not (is_number and 0 < clip < float("inf")):
            raise ConfigurationError(f"recipe: clip_norm must be a positive number or None; got {clip!r}")
        for name in ("shuffle", "exact", "compile"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigurationError(f"recipe: {name} must be True or False; got {getattr(self, name)!r}")
        if self.precision not in PRECISIONS:
            raise ConfigurationError(
                f"recipe: precision must be one of {', '.join(PRECISIONS)}; got {self.precision!r} (--precision)"
            )
        self._check_consistency()
        if self.batch_size < self.shards:
            raise ConfigurationError(
                f"recipe: a minibatch of {self.batch_size} examples cannot be cut into {self.shards} shards of at "
                f"least one. Use a batch size of at least {self.shards}, or at most {self.batch_size} shards "
                f"(--batch-size, --shards)"
            )

    def _check_consistency(self) -> None:
        mode, staleness = self.consistency, self.staleness
        if mode not in MODES:
            raise ConfigurationError(
                f"recipe: consistency must be one of {', '.join(MODES)}; got {mode!r} (--consistency)"
            )
        if not isinstance(staleness, int) or isinstance(staleness, bool) or not 0 <= staleness <= 1 << 32:
            raise ConfigurationError(
                f"recipe: staleness must be a whole number of at least 0; got {staleness!r} (--staleness)"
            )
        if staleness and mode != "stale":
            raise ConfigurationError(
                f"recipe: staleness is for consistency 'stale'; {mode!r} takes none (--staleness, --consistency)"
            )
        if mode == "sync":
            return
        contradicting = {
            "exact=True: no two runs are alike, so it needs exact=False (--inexact)": self.exact,
            "precision 'fp16': its loss scale is one for all steps; bf16 needs none": self.precision == "fp16",
        }
        for what, is_so in contradicting.items():
            if is_so:
                raise ConfigurationError(f"recipe: consistency {mode!r} contradicts {what}")

    def to_json(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Recipe:
        """The inverse of `to_json`; unknown fields are refused, since they might have determined the bits."""
        unknown = sorted(set(record) - {field.name for field in dataclasses.fields(cls)})
        if unknown:
            raise ConfigurationError(
                f"recipe: unknown fields {', '.join(unknown)}; was it written by a newer version of samegrad?"
            )
        return cls(**record)
