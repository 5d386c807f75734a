"""Conversion between the units used inside (seconds, bytes, items) and the text that people read.

Inside samegrad there are only seconds, bytes and bytes per second. MB is 10^6 bytes, MiB 2^20.

A number is rounded to three significant digits first and gets its unit then, so that no text says "1000 ms".
"""

from __future__ import annotations

import math
import re

__all__ = [
    "format_bytes",
    "format_count",
    "format_rate",
    "format_seconds",
    "parse_bytes",
    "parse_rate",
    "parse_seconds",
]

_RATE = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<prefix>[kKMGT]?)(?P<binary>i?)(?P<unit>[bB])(?:/s|ps|it/s)?")
_BYTES = re.compile(
    r"(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*(?:(?P<prefix>[kKMGT]?)(?P<binary>i?)B)?"
)
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9, "min": 60.0}  # both letters mu
_POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


def format_seconds(seconds: float) -> str:
    """`seconds` with three significant digits and the unit that suits: "12.3 µs", "1.50 s"; then "2 min 05 s"."""
    if not math.isfinite(seconds):
        return f"{seconds} s"
    if seconds < 0:
        return "-" + format_seconds(-seconds)
    rounded = _round_to_three_digits(seconds)
    if rounded >= 60:
        if round(seconds) < 3600:
            return f"{round(seconds) // 60} min {round(seconds) % 60:02d} s"
        minutes = round(seconds / 60)
        return f"{minutes // 60} h {minutes % 60:02d} min"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if rounded >= factor:
            return f"{_three_digits(rounded / factor)} {unit}"
    return "0 s" if seconds == 0 else f"{_three_digits(rounded / 1e-9)} ns"


def format_bytes(nbytes: float) -> str:
    """`nbytes` in decimal units: "512 B", "1.50 kB", "44.7 MB", "160 MB"."""
    rounded = _round_to_three_digits(nbytes)
    for factor, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if abs(rounded) >= factor:
            return f"{_three_digits(rounded / factor)} {unit}"
    return f"{nbytes:.0f} B"


def format_rate(rate: float) -> str:
    """`rate` in bytes per second, in decimal units: "16.0 GB/s"."""
    return f"{format_bytes(rate)}/s"


def parse_rate(text: str) -> float:
    """The bytes per second that `text` says: "16GB/s", "12.5 GB", "25Gb" and "25Gbps" (bits: 3.125 GB/s), "1GiB/s".

    A capital B is a byte, a small one a bit; "/s" may be left out. Raises ValueError.
    """
    match = _RATE.fullmatch(text.strip())
    if not match or (match["binary"] and not match["prefix"]):
        raise ValueError(f"expected a rate such as 25Gb (bits per second) or 16GB/s (bytes per second); got {text!r}")
    step = 1024.0 if match["binary"] else 1000.0
    bits = 8 if match["unit"] == "b" else 1
    return float(match["number"]) * math.pow(step, _POWERS[match["prefix"]]) / bits


def parse_bytes(text: str) -> float:
    """The number of bytes that `text` says: "160MB", "1.5 GB", "64 MiB", "4096", "160e6". Raises ValueError."""
    match = _BYTES.fullmatch(text.strip())
    if not match or (match["binary"] and not match["prefix"]):
        raise ValueError(f"expected a number of bytes such as 160MB, 64MiB or 4096; got {text!r}")
    step = 1024.0 if match["binary"] else 1000.0
    return float(match["number"]) * math.pow(step, _POWERS[match["prefix"] or ""])


def parse_seconds(text: str) -> float:
    """The seconds that `text` says: "12ms", "1.5 s", "30us", "2 min"; the unit is needed. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-zµμ]+)", text.strip())
    if not match or match[2] not in _SECONDS:
        raise ValueError(f"expected a time with its unit, such as 12ms, 1.5s or 30us; got {text!r}")
    return float(match[1]) * _SECONDS[match[2]]


def format_count(count: float) -> str:
    """`count` with thousands separated, without decimals: "60,000"."""
    return f"{count:,.0f}"


def _round_to_three_digits(value: float) -> float:
    return float(f"{value:.2e}")


def _three_digits(value: float) -> str:
    """Text of a `value` that has three significant digits already, up to the error of one division."""
    for bound, digits in ((9.995, 2), (99.95, 1)):
        if abs(value) < bound:
            return f"{value:.{digits}f}"
    return f"{value:.0f}"
