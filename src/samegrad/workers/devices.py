"""Which devices are meant by "auto", "2", "cpu:2" or "cuda:0,cuda:1". Pure: the caller says what the machine has."""

from __future__ import annotations

import re
from collections.abc import Sequence

from samegrad.errors import ConfigurationError, DeviceUnavailable
from samegrad.nearest import nearest

__all__ = ["device_words", "parse_devices"]

_WORD = re.compile(r"auto|(?:(cpu|cuda)(?::([0-9]{1,18}))?|([0-9]{1,18}))")
_OTHER_NAMES = {"gpu": "cuda", "gpus": "cuda", "nvidia": "cuda", "core": "cpu", "cores": "cpu", "cpus": "cpu"}
_MOST = 1024  # workers; more is a slip of the keyboard, and would take the machine down


def parse_devices(
    devices: str | int | Sequence[str], *, cuda: int = 0, cores: int = 1, threads: int = 1, at_most: int = 8
) -> list[str]:
    """The devices meant by `devices`, one name per worker ("cpu" or "cuda:<index>"), in order.

    "auto": every CUDA device, or else one CPU worker for every `threads` cores; at most `at_most`.
    2 or "2": that many CUDA devices if the machine has any, else CPU workers (more than cores is allowed).
    "cpu": one CPU worker; "cpu:2": two. "cuda": every CUDA device; "cuda:1": the one of index 1 (twice: two workers).
    Several are separated by commas, or given as a sequence. Case and blanks around a word do not matter.

    Raises DeviceUnavailable for a CUDA device that the machine does not have, ConfigurationError for anything else.
    """
    names: list[str] = []
    for word in device_words(devices):
        names += _devices_of(word, cuda, cores, threads, at_most)
    _check_count(len(names))
    return names


def device_words(devices: str | int | Sequence[str]) -> list[str]:
    """The words that `devices` is made of, in lower case, each of them known; at least one.

    Raises ConfigurationError for a word that means nothing on any machine.
    """
    if isinstance(devices, int) and not isinstance(devices, bool):
        if not 1 <= devices <= _MOST:
            amount = devices if abs(devices) < 10**9 else f"a number of {devices.bit_length()} bits"
            raise ConfigurationError(f"devices (--devices): {amount} is no number of workers; expected 1 to {_MOST}")
        return [str(devices)]
    words = devices.split(",") if isinstance(devices, str) else devices
    if not isinstance(words, Sequence):
        raise ConfigurationError(f"devices must be text, a whole number or a list of names; got {devices!r}")
    for word in words:
        if not isinstance(word, str):
            raise ConfigurationError(
                f"devices (--devices): a list holds names, such as ['cuda:0', 'cuda:1'] or ['cpu:2']; got "
                f"{word!r} in it"
            )
    if not words:
        raise ConfigurationError("devices (--devices): the list is empty; say for example 2, cpu:2 or cuda:0,cuda:1")
    return [_check(word.strip().lower(), devices) for word in words]


def _check(word: str, devices: object) -> str:
    match = _WORD.fullmatch(word)
    if match is None:
        raise ConfigurationError(
            f"devices (--devices): {word!r} in {devices!r} is not known{_nearest(word)}; expected auto, a "
            f"number of workers (2), cpu, cpu:2 (two workers), cuda or cuda:0 (an index), or several of them separated "
            f"by commas"
        )
    kind, number, count = match.groups()
    _check_count(int(count or (number if kind == "cpu" else None) or 1))
    if count is not None and int(count) == 0:
        raise ConfigurationError(
            f"devices (--devices): {word!r} asks for no worker; expected at least 1. The first CUDA device is cuda:0"
        )
    if kind == "cpu" and number is not None and int(number) == 0:
        raise ConfigurationError(
            f"devices (--devices): {word!r} asks for no worker: the number after cpu: says how many; use cpu "
            f"for one, cpu:2 for two"
        )
    return word


def _check_count(workers: int) -> None:
    if workers > _MOST:
        raise ConfigurationError(
            f"devices (--devices): {workers} workers were asked for; one host takes at most {_MOST}"
        )


def _nearest(word: str) -> str:
    kind, colon, number = word.partition(":")
    near = _OTHER_NAMES.get(kind.lower()) or nearest(kind, ("auto", "cpu", "cuda"))
    found = [near + colon + number, near] if near else []
    return next((f"; did you mean {guess}?" for guess in found if _WORD.fullmatch(guess) and guess != "cpu:0"), "")


def _devices_of(word: str, cuda: int, cores: int, threads: int, at_most: int) -> list[str]:
    """The devices meant by a word that `_check` has let pass."""
    if word == "auto":
        count = min(cuda or max(cores // threads, 1), at_most)
        return [f"cuda:{index}" for index in range(count)] if cuda else ["cpu"] * count
    match = _WORD.fullmatch(word)
    assert match is not None
    kind, number, count_alone = match.groups()
    if kind == "cpu" or (count_alone is not None and not cuda):
        return ["cpu"] * int(count_alone or number or 1)
    if count_alone is not None:
        wanted = range(int(count_alone))
    else:
        wanted = range(int(number), int(number) + 1) if number else range(max(cuda, 1))
    if wanted.stop > cuda:
        seen = {0: "torch sees none on this machine", 1: "torch sees only cuda:0"}
        raise DeviceUnavailable(
            f"devices (--devices): {word!r} asks for cuda:{wanted.stop - 1}, but "
            f"{seen.get(cuda, f'torch sees only cuda:0 to cuda:{cuda - 1}')}; use cpu:2 for two CPU workers"
        )
    return [f"cuda:{index}" for index in wanted]
