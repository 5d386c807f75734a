"""Texts for people, with the cases on both sides of every change of unit or of decimals."""

from __future__ import annotations

import re

import pytest

from samegrad.units import (
    format_bytes,
    format_count,
    format_rate,
    format_seconds,
    parse_bytes,
    parse_rate,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (-0.0, "0 s"),
        (5e-9, "5.00 ns"),
        (999.4e-9, "999 ns"),
        (999.6e-9, "1.00 µs"),
        (1e-6, "1.00 µs"),
        (12.34e-6, "12.3 µs"),
        (999.4e-6, "999 µs"),
        (999.6e-6, "1.00 ms"),
        (0.001, "1.00 ms"),
        (0.009994, "9.99 ms"),
        (0.009996, "10.0 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (1, "1.00 s"),
        (1.5, "1.50 s"),
        (9.994, "9.99 s"),
        (9.996, "10.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (60, "1 min 00 s"),
        (60.4, "1 min 00 s"),
        (119.6, "2 min 00 s"),
        (125, "2 min 05 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (3629, "1 h 00 min"),
        (3631, "1 h 01 min"),
        (7199, "2 h 00 min"),
        (360_000, "100 h 00 min"),
        (-1.5, "-1.50 s"),
        (-125, "-2 min 05 s"),
        (float("inf"), "inf s"),
        (float("-inf"), "-inf s"),
        (float("nan"), "nan s"),
    ],
)
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (512, "512 B"),
        (999, "999 B"),
        (999.4, "999 B"),
        (999.6, "1.00 kB"),
        (1000, "1.00 kB"),
        (1500, "1.50 kB"),
        (9_994, "9.99 kB"),
        (9_996, "10.0 kB"),
        (99_940, "99.9 kB"),
        (99_960, "100 kB"),
        (999_400, "999 kB"),
        (999_600, "1.00 MB"),
        (44_712_345, "44.7 MB"),
        (160e6, "160 MB"),
        (999_400_000, "999 MB"),
        (999_600_000, "1.00 GB"),
        (999_600_000_000, "1.00 TB"),
        (2e12, "2.00 TB"),
        (-1500, "-1.50 kB"),
        (float("inf"), "inf TB"),
    ],
)
def test_format_bytes(nbytes: float, text: str) -> None:
    assert format_bytes(nbytes) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (999, "999"), (1000, "1,000"), (60_000, "60,000"), (-1234, "-1,234"), (1e6, "1,000,000")],
)
def test_format_count(count: float, text: str) -> None:
    assert format_count(count) == text


@pytest.mark.parametrize("exponent", range(-9, 2))
def test_a_time_below_a_minute_has_exactly_three_digits_and_no_thousand(exponent: int) -> None:
    for mantissa in range(100, 1000):
        for offset in (-0.49, 0.0, 0.49):
            seconds = (mantissa + offset) * 10.0 ** (exponent - 2)
            if 1e-9 <= seconds < 59.9:
                number, _ = format_seconds(seconds).split(" ")
                assert re.fullmatch(r"\d\.\d\d|\d\d\.\d|\d\d\d", number), (seconds, number)


@pytest.mark.parametrize("exponent", range(3, 14))
def test_a_size_from_a_kilobyte_on_has_exactly_three_digits_and_no_thousand(exponent: int) -> None:
    for mantissa in range(1000, 10_000):
        nbytes = mantissa * 10 ** (exponent - 3)
        number, _ = format_bytes(nbytes).split(" ")
        assert re.fullmatch(r"\d\.\d\d|\d\d\.\d|\d\d\d", number), (nbytes, number)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("25Gb", 3.125e9),
        ("25 Gbps", 3.125e9),
        ("100Gbit/s", 12.5e9),
        ("16GB/s", 16e9),
        (" 12.5 GB ", 12.5e9),
        ("1GiB/s", 2**30),
        (".5MB", 5e5),
        ("8b", 1),
    ],
)
def test_rates_are_read(text: str, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "25", "Gb", "-1Gb", "1e9B", "1iB", "25 Gb fast", "nanGB"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(ValueError, match="expected a rate such as 25Gb"):
        parse_rate(text)


def test_rates_are_written() -> None:
    assert format_rate(3.125e9) == "3.12 GB/s"


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("160MB", 160e6),
        ("1.5 GB", 1.5e9),
        ("64MiB", 64 * 2**20),
        ("4096", 4096),
        (" 160e6 ", 160e6),
        (".5kB", 500),
        ("2 TiB", 2**41),
        ("7B", 7),
    ],
)
def test_parse_bytes(text: str, nbytes: float) -> None:
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "MB", "1 Mb", "1iB", "-1", "1 XB", "nan", "inf", "1e9999", "1_000", "1MBs"])
def test_what_is_no_number_of_bytes(text: str) -> None:
    with pytest.raises(ValueError, match="expected a number of bytes such as 160MB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("12ms", 0.012),
        (" 1.5 s ", 1.5),
        (".5s", 0.5),
        ("30us", 30e-6),
        ("30 µs", 30e-6),
        ("7ns", 7e-9),
        ("2min", 120.0),
    ],
)
def test_parse_seconds(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "12", "ms", "-1ms", "1e3ms", "1 h", "1ms 2", "nan s", "1.2.3s"])
def test_parse_seconds_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time with its unit"):
        parse_seconds(text)
