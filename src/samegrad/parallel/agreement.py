"""Whether the models of all ranks are still the same, bit for bit; and if not, which tensor differs first.

They are made the same by every step. Something else may change one of them: code that depends on the rank, a step that
was left out somewhere, memory that fails.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from samegrad.errors import ConfigurationError, ModelsDiffer
from samegrad.executors import Group
from samegrad.parallel.fingerprint import fingerprint
from samegrad.parallel.world import current_world

__all__ = ["AgreementCheck", "check_agreement", "require_agreement"]

_DIGEST_BYTES = 32


def check_agreement(model: nn.Module, repair: bool = False) -> list[str]:
    """Compares parameters and buffers of `model` over all ranks, which call this together.

    repair: whether rank 0's are sent again to all, if they differ; the names of those that differed are returned, and
        named in a warning on rank 0. What an optimizer keeps (momentum, say) is neither compared nor sent.

    Raises ModelsDiffer, on all ranks alike, if they differ and are not repaired. A tensor is read once, so this takes
    about a second for each gigabyte.
    """
    return require_agreement(model, current_world().group, "now", repair)


def require_agreement(model: nn.Module, group: Group, when: str, repair: bool) -> list[str]:
    """`check_agreement` over the ranks of `group`. when: where in training that is, alike on all ranks."""
    if group.size == 1:
        return []
    operation = f"comparing the models of the ranks {when}"
    named = list(_tensors(model))
    own = b"".join(bytes.fromhex(fingerprint({"": tensor})) for _, tensor in named)
    if len(set(group.gather(hashlib.sha256(own).digest(), operation))) == 1:
        return []
    digests = group.gather(own, operation)
    others: dict[str, list[str]] = {}
    for at, (name, _) in enumerate(named):
        place = slice(at * _DIGEST_BYTES, (at + 1) * _DIGEST_BYTES)
        differing = [str(rank) for rank, found in enumerate(digests) if found[place] != digests[0][place]]
        if differing:
            others[name] = differing
    first, ranks = next(iter(others.items()))
    more = f", and {len(others) - 1} more differ" if len(others) > 1 else ""
    found = (
        f"{when}: the models of the ranks differ: {first} of rank{'s' * (len(ranks) > 1)} {', '.join(ranks)} is not "
        f"that of rank 0{more}"
    )
    if not repair:
        raise ModelsDiffer(
            f"{found}. Something has changed it on some ranks only: code that depends on the rank, a step that was "
            f"left out there, or memory that fails. Look for that; repair=True sends rank 0's model and goes on",
            first,
            int(ranks[0]),
        )
    with torch.no_grad():
        group.broadcast([tensor for name, tensor in named if name in others], f"{operation}: sending rank 0's")
    if group.rank == 0:
        warnings.warn(f"{found}. Those of rank 0 were sent to all", RuntimeWarning, stacklevel=2)
    return list(others)


@dataclass(frozen=True, slots=True)
class AgreementCheck:
    """Compares the models of the ranks after every `every` steps; see `check_agreement` for `repair`.

    Raises ConfigurationError for an `every` that is no positive number.
    """

    every: int
    repair: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.every, int) or isinstance(self.every, bool) or self.every < 1:
            raise ConfigurationError(f"check_every must be a number of steps, at least 1; got {self.every!r}")

    def after(self, steps: int, model: nn.Module, group: Group) -> None:
        """`steps` steps are done; compares if it is time. Raises ModelsDiffer."""
        if steps % self.every == 0:
            require_agreement(model, group, f"after step {steps}", self.repair)


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """What is compared, once each, as plain memory that can be written to."""
    for name, parameter in model.named_parameters():
        yield f"parameter {name}", parameter.data
    for name, buffer in model.named_buffers():
        yield f"buffer {name}", buffer.data
