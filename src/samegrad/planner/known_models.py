"""The gradients of the models of `samegrad.models`, which needs torch: names, sizes, and when each is ready.

Backward of a layer is taken to last in proportion to its multiplications for a 28x28 image; batch normalisation, which
has next to none, takes no time. A test compares names and sizes with the models themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from samegrad.errors import ConfigurationError
from samegrad.nearest import meant
from samegrad.planner.workload import Gradient

__all__ = ["KNOWN_MODELS", "gradients_of"]

_Layer = tuple[str, int, int]
"""Name of a parameter, its elements, and multiplications for an example that backward needs about twice."""


def _layer(name: str, weights: int, biases: int, positions: int = 1) -> list[_Layer]:
    found = [(f"{name}.weight", weights, weights * positions)]
    return [*found, (f"{name}.bias", biases, 0)] if biases else found


def _norm(name: str, channels: int) -> list[_Layer]:
    return [(f"{name}.weight", channels, 0), (f"{name}.bias", channels, 0)]


def _lenet() -> list[_Layer]:
    return [
        *_layer("conv1", 20 * 9, 20, 26 * 26),
        *_layer("conv2", 50 * 20 * 25, 50, 9 * 9),
        *_layer("linear1", 128 * 800, 128),
        *_layer("linear2", 10 * 128, 10),
    ]


def _mlp() -> list[_Layer]:
    sizes = (784, 512, 256, 10)
    return [
        each
        for number in range(1, len(sizes))
        for each in _layer(f"linear{number}", sizes[number - 1] * sizes[number], sizes[number])
    ]


def _resnet18() -> list[_Layer]:
    found = [*_layer("conv1", 64 * 9, 0, 28 * 28), *_norm("bn1", 64)]
    inputs = 64
    for stage, (outputs, side) in enumerate([(64, 28), (128, 14), (256, 7), (512, 4)], start=1):
        for block in range(2):
            name, positions = f"stage{stage}.{block}", side * side
            found += _layer(f"{name}.conv1", outputs * inputs * 9, 0, positions)
            found += _norm(f"{name}.bn1", outputs)
            found += _layer(f"{name}.conv2", outputs * outputs * 9, 0, positions)
            found += _norm(f"{name}.bn2", outputs)
            if inputs != outputs:
                found += _layer(f"{name}.shortcut", outputs * inputs, 0, positions)
            inputs = outputs
    return [*found, *_layer("linear", 512 * 10, 10)]


KNOWN_MODELS: Mapping[str, Callable[[], Iterable[_Layer]]] = {"lenet": _lenet, "resnet18": _resnet18, "mlp": _mlp}
"""Name -> parameters in the order of the model."""


def gradients_of(name: str) -> tuple[Gradient, ...]:
    """The float32 gradients of the model called `name`, last layers first."""
    if name not in KNOWN_MODELS:
        raise ConfigurationError(
            f"unknown model {name!r}{meant(name, KNOWN_MODELS)} The known ones are {', '.join(KNOWN_MODELS)}; others "
            "are described by a JSON file"
        )
    layers = list(KNOWN_MODELS[name]())[::-1]
    total, done, found = sum(work for _, _, work in layers), 0, []
    for parameter, elements, work in layers:
        done += work
        found.append(Gradient(parameter, 4 * elements, done / total))
    return tuple(found)
