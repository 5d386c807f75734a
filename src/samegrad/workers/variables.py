"""The variables by which torchrun and other launchers tell a process its place in a job. Pure: callers read them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from samegrad.errors import ConfigurationError
from samegrad.workers.devices import device_words

__all__ = ["DeviceKind", "Place", "attempt", "device_kind"]

DeviceKind = Literal["auto", "cpu", "cuda"]

_TELLING = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
"""One of these makes a process a member of a job. MASTER_ADDR and MASTER_PORT do not: shells and batch scripts export
them for what they are going to start."""

_ALL = (*_TELLING, "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Place:
    """This process is `rank` of `size`, and the one of number `local_rank` on its host; ranks meet at `address`:`port`.

    0 <= rank < size, 0 <= local_rank, 1 <= port <= 65535.
    """

    rank: int
    size: int
    local_rank: int
    address: str
    port: int

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> Place | None:
        """The place that the environment `variables` tell of; None if no launcher has set any.

        Raises ConfigurationError for variables that are missing, that are no numbers or that contradict each other.
        """
        given = {name: variables[name].strip() for name in _ALL if variables.get(name, "").strip()}
        told = [name for name in _TELLING if name in given]
        if not told:
            return None
        missing = [name for name in _ALL if name not in given]
        if missing:
            raise ConfigurationError(
                f"{_and(told)} {_is(told)} set in the environment, so this process is taken for a rank of a job that "
                f"torchrun or another launcher has started; but {_and(missing)} {_is(missing)} not set. Set "
                f"{_and(_ALL)} as torchrun does, or unset them all"
            )
        size = _number("WORLD_SIZE", given["WORLD_SIZE"], 1)
        rank = _number("RANK", given["RANK"], 0)
        local_rank = _number("LOCAL_RANK", given["LOCAL_RANK"], 0)
        port = _number("MASTER_PORT", given["MASTER_PORT"], 1, 65535)
        local_size = variables.get("LOCAL_WORLD_SIZE", "").strip()
        most = size if not local_size else _number("LOCAL_WORLD_SIZE", local_size, 1)
        if rank >= size:
            raise ConfigurationError(f"RANK is {rank}, but WORLD_SIZE is {size}: ranks count from 0 to {size - 1}")
        if most > size:
            raise ConfigurationError(
                f"LOCAL_WORLD_SIZE is {most}, but WORLD_SIZE is {size}: a host cannot have more ranks than the job"
            )
        if local_rank >= most:
            name = "LOCAL_WORLD_SIZE" if local_size else "WORLD_SIZE"
            raise ConfigurationError(
                f"LOCAL_RANK is {local_rank}, but {name} is {most}: the ranks of a host count from 0 to {most - 1}"
            )
        return cls(rank, size, local_rank, given["MASTER_ADDR"], port)

    def without_last(self, count: int) -> Place | None:
        """The same place among all ranks but the last `count`; None for one of these. Raises ConfigurationError."""
        if not 0 <= count < self.size:
            raise ConfigurationError(
                f"{count} of the {self.size} ranks of this job shall serve the others; expected at least 0, and fewer "
                f"than there are, so that one is left to be served"
            )
        left = self.size - count
        # A host may have fewer workers than ranks, so that local ranks, too, may be beyond them.
        return None if self.rank >= left else dataclasses.replace(self, size=left)


def attempt(variables: Mapping[str, str]) -> str:
    """What tells this start of the ranks from the other starts of their job, in which torchrun keeps one store."""
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
    run, restart = (variables.get(name, "").strip() for name in names)
    return f"{run or 'none'}/{restart or '0'}"


def device_kind(devices: str | int | Sequence[str], size: int) -> DeviceKind:
    """The kind of device that every rank of a job of `size` ranks shall use, if `devices` are asked for.

    "auto", "cpu" and "cuda" are kinds; a number of devices is right if it is that of the ranks. Raises
    ConfigurationError for anything else: in such a job, who started it has said how many ranks there are and where.
    """
    words = device_words(devices)
    word = words[0] if len(words) == 1 else ""
    if word in ("auto", str(size)):
        return "auto"
    if word in ("cpu", f"cpu:{size}"):
        return "cpu"
    if word == "cuda":
        return "cuda"
    raise ConfigurationError(
        f"devices: {','.join(words)!r} contradicts the launcher of this job, which has started {size} "
        f"rank{'s' * (size > 1)} (WORLD_SIZE) with one device each. Leave the devices out (--devices), or say only cpu "
        f"or cuda (then a rank's device is that of its LOCAL_RANK); another number of ranks is for torchrun "
        f"--nproc-per-node. To have launch start workers by itself, unset RANK, WORLD_SIZE and LOCAL_RANK"
    )


def _number(name: str, text: str, least: int, most: int | None = None) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least or (most is not None and number > most):
        wanted = f"a whole number of at least {least}" if most is None else f"a number from {least} to {most}"
        raise ConfigurationError(f"{name} must be {wanted}; the environment has {text!r}")
    return number


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
