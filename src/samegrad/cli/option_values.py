"""Values of the options of `samegrad train`, checked when they are given, and what they mean."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal

import typer

from samegrad.trainer.job import SaveEvery

__all__ = ["checked_save_every", "checked_shares", "one_of", "parse_save_every", "parse_shares", "positive"]


def one_of(known: Collection[str]) -> Callable[[str], str]:
    """A check that a value is one of `known`."""

    def check(value: str) -> str:
        if value not in known:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(known)}")
        return value

    return check


def positive(value: float | None) -> float | None:
    """Checks `value`."""
    if value is not None and not 0 < value < float("inf"):
        raise typer.BadParameter(f"{value} is not a positive number")
    return value


def checked_shares(text: str) -> str:
    """Checks `text`; a callback may not change the type."""
    try:
        parse_shares(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither auto nor equal, nor a list of numbers such as 2,1, one for each device"
        ) from None
    return text


def parse_shares(text: str) -> tuple[float, ...] | Literal["auto"] | None:
    """What `TrainJob.shares` is to be. Raises ValueError."""
    if text == "equal":
        return None
    return "auto" if text == "auto" else tuple(float(word) for word in text.split(","))


def checked_save_every(text: str | None) -> str | None:
    """Checks `text`; a callback may not change the type."""
    if text is not None and parse_save_every(text) is None:
        raise typer.BadParameter(f"{text!r} is neither a number of steps of at least 1 nor epoch")
    return text


def parse_save_every(text: str | None) -> SaveEvery:
    """What `TrainJob.save_every` is to be; None for what cannot be."""
    if text is None or text.lower() == "epoch":
        return None if text is None else "epoch"
    return int(text) if text.isdecimal() and int(text) > 0 else None
