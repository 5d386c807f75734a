"""What a training step computes and sends: gradients, when they are ready, and the time of a device. JSON in and out.

{
  "name": "two layers",
  "forward_s": 0.012, "backward_s": 0.024, "batch": 256,
  "gradients": [
    {"name": "head.weight", "bytes": 4000000, "ready": 0.4},
    {"name": "stem.weight", "bytes": 1000000, "ready": 1.0}
  ]
}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samegrad.errors import ConfigurationError, DataMissing

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Gradient", "Workload", "split_step"]

_MOST_GRADIENTS = 1_000_000
_MOST_BYTES = 1e16
_LEAST_SECONDS = 1e-12
_MOST_SECONDS = 1e7  # four months
_MOST_EXAMPLES = 1 << 40
_LARGEST_FILE = 1 << 28
_FIELDS = ("name", "forward_s", "backward_s", "batch", "gradients")


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient of one parameter.

    nbytes: its size. ready: when backward has made it, as a fraction of backward, from 0 to 1.
    """

    name: str
    nbytes: int
    ready: float

    def __post_init__(self) -> None:
        _check(isinstance(self.name, str) and self.name.isprintable() and self.name != "", "name", "text", self.name)
        _check(_is_whole(self.nbytes, 1, _MOST_BYTES), "bytes", "a whole number of at least 1, below 1e16", self.nbytes)
        _check(_is_number(self.ready, 0, 1), "ready", "a fraction of backward, from 0 to 1", self.ready)


@dataclass(frozen=True, slots=True)
class Workload:
    """One step of training on one device, checked when it is made.

    gradients: in the order in which backward makes them ready.
    forward_s, backward_s: seconds that forward and backward of `batch` examples take on one device.

    Raises ConfigurationError, which names the field.
    """

    name: str
    gradients: tuple[Gradient, ...]
    forward_s: float
    backward_s: float
    batch: int

    def __post_init__(self) -> None:
        _check(isinstance(self.name, str) and self.name.isprintable() and self.name != "", "name", "text", self.name)
        for field in ("forward_s", "backward_s"):
            seconds = getattr(self, field)
            _check(_is_number(seconds, 0, _MOST_SECONDS), field, "seconds, 0 or more, at most 1e7", seconds)
        wanted = f"a whole number from 1 to {_MOST_EXAMPLES:,}"
        _check(_is_whole(self.batch, 1, _MOST_EXAMPLES), "batch", wanted, self.batch)
        _check(self.step_s >= _LEAST_SECONDS, "forward_s and backward_s", "more than 0 seconds together", self.step_s)
        count = len(self.gradients)
        _check(1 <= count <= _MOST_GRADIENTS, "gradients", f"from 1 to {_MOST_GRADIENTS:,} of them", count)
        _check(self.nbytes <= _MOST_BYTES, "gradients", "at most 1e16 bytes together", self.nbytes)
        earlier = 0.0
        for number, gradient in enumerate(self.gradients):
            wanted = f"at least {earlier}, that of the one before, since they stand in the order of backward"
            _check(gradient.ready >= earlier, f"gradients[{number}].ready", wanted, gradient.ready)
            earlier = gradient.ready

    @property
    def nbytes(self) -> int:
        """Bytes of all gradients together."""
        return sum(gradient.nbytes for gradient in self.gradients)

    @property
    def step_s(self) -> float:
        """Seconds of forward and backward together."""
        return self.forward_s + self.backward_s

    @classmethod
    def known(cls, name: str, forward_s: float, backward_s: float, batch: int) -> Workload:
        """A model of `samegrad.models` by its name: lenet, resnet18 or mlp, with 10 classes and float32 gradients.

        Raises ConfigurationError, with the nearest name, for another one.
        """
        from samegrad.planner.known_models import gradients_of

        return cls(name, gradients_of(name), forward_s, backward_s, batch)

    @classmethod
    def of(cls, module: nn.Module, forward_s: float, backward_s: float, batch: int) -> Workload:
        """The parameters of `module` that get gradients, each once. The last ones are taken to be ready first, at even
        distances: what backward really takes for each is not known from the module alone."""
        found = [(name, each) for name, each in module.named_parameters() if each.requires_grad and each.numel()]
        gradients = tuple(
            Gradient(name, each.numel() * each.element_size(), number / len(found))
            for number, (name, each) in enumerate(reversed(found), start=1)
        )
        return cls(type(module).__name__, gradients, forward_s, backward_s, batch)

    @classmethod
    def load(cls, path: str | Path, given: Mapping[str, Any] | None = None) -> Workload:
        """What a JSON file says; fields that are `given` replace its own.

        Raises ConfigurationError, which names the file and the key; DataMissing if it cannot be read.
        """
        source = str(path)
        try:
            if (size := Path(path).stat().st_size) > _LARGEST_FILE:
                raise ConfigurationError(f"{source}: {size} bytes are too many for a workload")
            text = Path(path).read_text(encoding="utf-8-sig", errors="replace")
        except OSError as error:
            raise DataMissing(f"{source}: could not be read: {error.strerror or error}") from error
        try:
            record = json.loads(text)
        except json.JSONDecodeError as error:
            raise ConfigurationError(
                f"{source}: line {error.lineno}: expected JSON with {', '.join(_FIELDS)}; {error.msg}"
            ) from None
        except (RecursionError, ValueError) as error:
            raise ConfigurationError(f"{source}: expected JSON with {', '.join(_FIELDS)}; {error}") from None
        if isinstance(record, dict):
            record = {**record, **(given or {})}
        return cls.from_json(record, source)

    @classmethod
    def from_json(cls, record: Any, source: str = "workload") -> Workload:
        """The inverse of `to_json`. Raises ConfigurationError, which names `source` and the key."""
        try:
            _check_keys(record, _FIELDS, "")
            _check(isinstance(record["gradients"], list), "gradients", "a list", record["gradients"])
            gradients = []
            for number, each in enumerate(record["gradients"]):
                where = f"gradients[{number}]"
                _check_keys(each, ("name", "bytes", "ready"), f"{where}.")
                try:
                    gradients.append(Gradient(each["name"], each["bytes"], each["ready"]))
                except ConfigurationError as error:
                    raise ConfigurationError(str(error).replace("workload: ", f"workload: {where}.", 1)) from None
            plain = {key: record[key] for key in _FIELDS if key != "gradients"}
            return cls(gradients=tuple(gradients), **plain)
        except ConfigurationError as error:
            raise ConfigurationError(f"{source}: {str(error).removeprefix('workload: ')}") from None

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        gradients = [{"name": each.name, "bytes": each.nbytes, "ready": each.ready} for each in self.gradients]
        return {**asdict(self), "gradients": gradients}


def split_step(step_s: float) -> tuple[float, float]:
    """Forward and backward of a step of which only the whole is known: backward computes twice as much as forward."""
    return step_s / 3, step_s * 2 / 3


def _check_keys(record: Any, keys: tuple[str, ...], where: str) -> None:
    _check(isinstance(record, dict), where.rstrip(".") or "the file", f"an object with {', '.join(keys)}", record)
    for key in keys:
        _check(key in record, f"{where}{key}", "a value", "nothing")
    unknown = sorted(set(record) - set(keys))
    _check(not unknown, f"{where}{unknown[0] if unknown else ''}", f"no keys but {', '.join(keys)}", "this one")


def _check(right: bool, where: str, expected: str, got: Any) -> None:
    if not right:
        text = got if got in ("nothing", "this one") else repr(got)
        raise ConfigurationError(
            f"workload: {where}: expected {expected}; got {text if len(text) <= 80 else text[:77] + '...'}"
        )


def _is_number(value: Any, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most < math.inf


def _is_whole(value: Any, least: int, most: float) -> bool:
    return isinstance(value, int) and _is_number(value, least, most)
