"""Every error that samegrad raises on purpose.

    SamegradError
    +-- ConfigurationError (ValueError)      an argument, or a combination of arguments, that cannot work
    |   +-- DeviceUnavailable                a device that this machine does not have
    |   +-- ScheduleError                    a schedule that does not compute what it says
    |   `-- TopologyError                    devices and links that cannot be, or a text that does not describe any
    +-- DataError (ValueError)               what is wrong with the data that training reads
    |   +-- DataMissing (FileNotFoundError)  not there, and not to be had
    |   `-- DataCorrupt                      there, but not what it should be
    +-- TrainingError (RuntimeError)         the model or the loss did something that training cannot go on from
    |   +-- NonFiniteLoss (FloatingPointError)
    |   `-- ModelsDiffer                     seen by all ranks: their models are no longer the same
    +-- GroupError (RuntimeError)            what happened to a rank of the group
    |   +-- WorkerFailed                     the function raised in a worker; carries its traceback
    |   +-- WorkerDied (ChildProcessError)   a worker ended without an answer: killed, or it left by itself
    |   +-- LoaderDied (ChildProcessError)   a process that read data for a rank ended before its time
    |   +-- PeerFailed (ConnectionError)     seen by a rank: another one failed, this one stops too
    |   +-- PeerTimeout (TimeoutError)       seen by a rank: another one did not arrive before the deadline
    |   `-- CallMismatch                     seen by all ranks: they do not make the same calls in the same order
    +-- StoreError (RuntimeError)            what happened between a key-value store and who uses it
    |   +-- RequestRefused (ValueError)      what was asked cannot be done: a wrong shape, a clock that runs back
    |   |   `-- UnknownKey (KeyError)        a key that nobody has initialised
    |   +-- FrameRefused (ValueError)        bytes that are no message of the store
    |   +-- AccessRefused (PermissionError)  another secret, another version, another host
    |   `-- ServerLost (ConnectionError)     a server has ended, or does not answer
    `-- OutputError (OSError)                a result could not be written or read back

Each class also derives from the builtin that a caller would guess. A message answers four questions: what failed,
where, what was expected and what came instead, and what to do about it. All of them pickle.
"""

from __future__ import annotations

__all__ = [
    "AccessRefused",
    "CallMismatch",
    "ConfigurationError",
    "DataCorrupt",
    "DataError",
    "DataMissing",
    "DeviceUnavailable",
    "FrameRefused",
    "GroupError",
    "LoaderDied",
    "ModelsDiffer",
    "NonFiniteLoss",
    "OutputError",
    "PeerFailed",
    "PeerTimeout",
    "RequestRefused",
    "SamegradError",
    "ScheduleError",
    "ServerLost",
    "StoreError",
    "TopologyError",
    "TrainingError",
    "UnknownKey",
    "WorkerDied",
    "WorkerFailed",
]


class SamegradError(Exception):
    """Base of all errors that samegrad raises on purpose."""


class ConfigurationError(SamegradError, ValueError):
    """An argument, or a combination of arguments, that cannot work."""


class DeviceUnavailable(ConfigurationError):
    """A device was asked for that this machine does not have."""


class ScheduleError(ConfigurationError):
    """A schedule does not compute what it says. The message names round, rank, slot and chunk."""


class TopologyError(ConfigurationError):
    """Devices and links that cannot be, or a text that describes none. The message names the node, link or line."""


class DataError(SamegradError, ValueError):
    """Something is wrong with the data that training reads."""


class DataMissing(DataError, FileNotFoundError):
    """A file or data set is not there and cannot be fetched."""


class DataCorrupt(DataError):
    """A file is there but is not what it should be: cut off, of another format, with impossible values."""


class TrainingError(SamegradError, RuntimeError):
    """The model or the loss did something that training cannot go on from."""


class NonFiniteLoss(TrainingError, FloatingPointError):
    """The loss of a shard is NaN or infinite; the parameters are those of the step before."""


class ModelsDiffer(TrainingError):
    """The models of the ranks are no longer the same. tensor: the first that differs. rank: the first where it does."""

    def __init__(self, message: str, tensor: str = "", rank: int = -1) -> None:
        super().__init__(message)
        self.tensor = tensor
        self.rank = rank


class GroupError(SamegradError, RuntimeError):
    """Something happened to a rank of the group."""

    def __init__(self, message: str, rank: int = -1) -> None:
        super().__init__(message)
        self.rank = rank


class WorkerFailed(GroupError):
    """The launched function raised in a worker. `worker_traceback` is what the worker would have printed."""

    def __init__(self, message: str, rank: int = -1, worker_traceback: str = "") -> None:
        super().__init__(message, rank)
        self.worker_traceback = worker_traceback


class WorkerDied(GroupError, ChildProcessError):
    """A worker ended without giving its answer. `exit_code` is negative for a signal, as in `subprocess`."""

    def __init__(self, message: str, rank: int = -1, exit_code: int = 0) -> None:
        super().__init__(message, rank)
        self.exit_code = exit_code


class LoaderDied(GroupError, ChildProcessError):
    """A loader worker, a process that reads data for a rank, was killed or left. `rank` is the one it read for."""


class PeerFailed(GroupError, ConnectionError):
    """Another rank failed, so this one stops too."""


class PeerTimeout(GroupError, TimeoutError):
    """Another rank did not arrive before the deadline."""


class CallMismatch(GroupError):
    """The ranks meet in an exchange, but for different operations: they do not make the same calls."""


class StoreError(SamegradError, RuntimeError):
    """Something happened between a key-value store and those who use it."""


class RequestRefused(StoreError, ValueError):
    """A server cannot do what it was asked; the message names the key, and what was expected."""


class UnknownKey(RequestRefused, KeyError):
    """A key was pushed or pulled that nobody has initialised."""

    __str__ = Exception.__str__  # that of KeyError puts the message in quotes


class FrameRefused(StoreError, ValueError):
    """Bytes arrived that are no message of the store: cut off, damaged, too large, or of another program."""


class AccessRefused(StoreError, PermissionError):
    """The two sides of a connection do not share a secret, or speak different versions."""


class ServerLost(StoreError, ConnectionError):
    """A server of the store has ended, or does not answer."""


class OutputError(SamegradError, OSError):
    """A result could not be written, or could not be read back."""
