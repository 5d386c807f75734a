"""Which parameters a model has, where, and of what kind, so that one that was replaced or converted is noticed."""

from __future__ import annotations

from operator import attrgetter, eq, is_

from torch import nn

from samegrad.errors import TrainingError

__all__ = ["Registry"]

_dtype, _shape = attrgetter("dtype"), attrgetter("shape")


class Registry:
    """The parameters of `module` as they are now."""

    def __init__(self, module: nn.Module) -> None:
        owners = list(module.named_modules())
        self._places = [
            (f"{prefix}.{key}".lstrip("."), owner._parameters, key, parameter)
            for prefix, owner in owners
            for key, parameter in owner._parameters.items()
        ]
        self._parameters = {name: parameter for name, _, _, parameter in self._places if parameter is not None}
        self._plain = list(self._parameters.values())
        self._dtypes, self._shapes = list(map(_dtype, self._plain)), list(map(_shape, self._plain))
        self._counts = [(prefix, owner._parameters, len(owner._parameters)) for prefix, owner in owners]
        self._homes = [(owner._parameters, list(owner._parameters.values())) for _, owner in owners]

    def check(self) -> None:
        """Raises TrainingError for a parameter that was replaced, added, removed, or given another dtype or shape."""
        if not all(len(home) == len(own) and all(map(is_, home.values(), own)) for home, own in self._homes):
            self._raise_for_changed()
        # Compared one by one: thousands of shapes at a time would have Python look for garbage in each step.
        have_dtypes = all(map(is_, map(_dtype, self._plain), self._dtypes))
        if have_dtypes and all(map(eq, map(_shape, self._plain), self._shapes)):
            return
        for (name, each), dtype, shape in zip(self._parameters.items(), self._dtypes, self._shapes, strict=True):
            if (each.dtype, each.shape) != (dtype, shape):
                raise TrainingError(
                    f"parameter {name} was {list(shape)} {dtype} when the model was wrapped; now it is "
                    f"{list(each.shape)} {each.dtype}. Convert the model first, then wrap it"
                )

    def _raise_for_changed(self) -> None:
        changed = [name for name, home, key, parameter in self._places if home.get(key) is not parameter]
        changed += [f"those of {prefix or 'the model'}" for prefix, home, count in self._counts if len(home) != count]
        if changed:  # else they stand in another order
            raise TrainingError(
                f"parameters of the model were replaced, added or removed after it was wrapped: "
                f"{', '.join(changed[:5])}{', ...' if len(changed) > 5 else ''}. Their gradients would not be "
                f"exchanged. Wrap the model anew (and make a new optimizer), or change values in place, under no_grad"
            )
