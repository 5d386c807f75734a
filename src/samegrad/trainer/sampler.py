"""A sampler for loops of one's own: each rank's share of the examples, without padding."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sized

from torch.utils.data import Sampler

from samegrad.errors import ConfigurationError
from samegrad.parallel.world import current_world
from samegrad.recipe import Recipe
from samegrad.trainer.examples import dataset_length, epoch_order

__all__ = ["DistributedSampler"]


class DistributedSampler(Sampler[int]):
    """Gives rank r of k the examples r, r + k, r + 2k, ... of the epoch's order, each example to one rank.

    Used like `torch.utils.data.DistributedSampler`: give it to a DataLoader and call `set_epoch` before each epoch.
    Nothing is padded, so ranks may differ by one example, and with fewer examples than ranks some get none. The order
    is that of `Trainer.fit` for (seed, epoch); minibatch j of all ranks together, of b examples each, holds the same
    examples as the Trainer's minibatch j of k * b.

    dataset: a map-style data set, or how many examples it has.
    num_replicas, rank: k and r; by default those of the launch that this process belongs to.
    shuffle: whether each epoch has its own random order, or that of the data set. seed: of the random order.
    drop_last: leaves out up to k - 1 examples at the end of the order, so that all ranks get the same number.

    Raises ConfigurationError for an argument that cannot work. Warns where ranks get nothing.
    """

    def __init__(
        self,
        dataset: Sized | int,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        what = "DistributedSampler"
        length = dataset if isinstance(dataset, int) else dataset_length(dataset)
        if isinstance(length, bool) or length < 1:
            raise ConfigurationError(f"{what}: a data set of at least 1 example is needed; got {length!r} examples")
        self.num_replicas = current_world().size if num_replicas is None else num_replicas
        if not _is_count(self.num_replicas) or self.num_replicas < 1:
            raise ConfigurationError(f"{what}: num_replicas must be a whole number of at least 1; got {num_replicas!r}")
        self.rank = current_world().rank if rank is None else rank
        if not _is_count(self.rank) or not 0 <= self.rank < self.num_replicas:
            given = f"got {self.rank!r}" if rank is not None else f"this process is rank {self.rank} of its launch"
            raise ConfigurationError(
                f"{what}: rank must be a whole number in 0..{self.num_replicas - 1}, as num_replicas is "
                f"{self.num_replicas}; {given}"
            )
        for name, value in (("shuffle", shuffle), ("drop_last", drop_last)):
            if not isinstance(value, bool):
                raise ConfigurationError(f"{what}: {name} must be True or False; got {value!r}")
        if not _is_count(seed) or seed < 0:
            raise ConfigurationError(f"{what}: seed must be a whole number of at least 0; got {seed!r}")
        self.length, self.shuffle, self.seed, self.drop_last = length, shuffle, seed, drop_last
        self.epoch = 0
        self._was_told, self._passes = False, 0
        if length < self.num_replicas:
            if drop_last:
                raise ConfigurationError(
                    f"{what}: {length} examples for {self.num_replicas} ranks: with drop_last no rank gets any; use "
                    f"fewer ranks, or drop_last=False"
                )
            warnings.warn(
                f"{what}: {length} examples for {self.num_replicas} ranks: ranks {length} to {self.num_replicas - 1} "
                f"get none; a loop that steps once per minibatch makes no step there",
                stacklevel=2,
            )

    def set_epoch(self, epoch: int) -> None:
        """Decides which order is given next; to be called before each epoch, alike on all ranks."""
        if not _is_count(epoch) or epoch < 0:
            raise ConfigurationError(f"set_epoch: epoch must be a whole number of at least 0; got {epoch!r}")
        self.epoch, self._was_told = epoch, True

    def __iter__(self) -> Iterator[int]:
        self._passes += 1
        if self._passes == 2 and self.shuffle and not self._was_told:
            warnings.warn(
                "DistributedSampler: this epoch has the order of the one before; call sampler.set_epoch(epoch) before "
                "each epoch",
                stacklevel=2,
            )
        order = epoch_order(Recipe(seed=self.seed, shuffle=self.shuffle), self.length, self.epoch)
        return iter(order[self.rank : self._total : self.num_replicas].tolist())

    def __len__(self) -> int:
        return len(range(self.rank, self._total, self.num_replicas))

    @property
    def _total(self) -> int:
        """How many examples all ranks together get."""
        return self.length - self.length % self.num_replicas if self.drop_last else self.length


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
