"""What launch may be told."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from samegrad.errors import ConfigurationError
from samegrad.workers.settings import Settings

SETTINGS = Settings(
    ("cpu:2", "cuda"), threads=2, timeout_s=1.5, at_most=8, preload=("torch", "json"), argv=("a.py", "-x")
)


@pytest.mark.parametrize("settings", [SETTINGS, replace(SETTINGS, timeout_s=math.inf, preload=(), threads=1)])
def test_settings_travel(settings: Settings) -> None:
    assert Settings.from_json(settings.to_json()) == settings


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("threads", 0, "threads must be a whole number of at least 1; got 0"),
        ("threads", -1, "got -1"),
        ("threads", 1.0, "got 1.0"),
        ("threads", True, "got True"),
        ("threads", "2", "got '2'"),
        ("at_most", 0, "at_most must be a whole number of at least 1; got 0"),
        ("at_most", None, "got None"),
        ("timeout_s", 0, "timeout_s must be a number of seconds above 0; got 0"),
        ("timeout_s", -1.0, "got -1.0"),
        ("timeout_s", math.nan, "got nan"),
        ("timeout_s", "1", "got '1'"),
        ("timeout_s", True, "got True"),
        ("preload", ("torch", 3), "preload must be a list of names of modules; got ('torch', 3)"),
        ("preload", ("",), "got ('',)"),
        ("devices", ("gpu",), "did you mean cuda?"),
        ("devices", (), "the list is empty"),
    ],
)
def test_settings_that_cannot_work(field: str, value: Any, text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        replace(SETTINGS, **{field: value})
    assert text in str(caught.value)
