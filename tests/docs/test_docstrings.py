"""Docstrings as Markdown."""

from __future__ import annotations

import pytest
from docs.hooks.docstrings import as_markdown


@pytest.mark.parametrize(
    ("text", "names", "markdown"),
    [
        ("What it does.", {"x"}, "What it does."),
        (
            "x: the first,\n    and more. y: second. Odd. w: no\nz: third",
            {"x", "y", "z"},
            "- `x`: the first, and more.\n- `y`: second. Odd. w: no\n- `z`: third",
        ),
        ("x, y: both", {"x", "y"}, "- `x`, `y`: both"),
        ("x and y: both", {"x", "y"}, "- `x`, `y`: both"),
        ("x counts from 0. y: the other", {"x", "y"}, "- x counts from 0.\n- `y`: the other"),
        ("x: it. Raises E if not.\ny: no", {"x"}, "- `x`: it.\n\nRaises E if not.\ny: no"),
        ("note: not a parameter", {"x"}, "note: not a parameter"),
        ("Drawn:\n\n    <x>\n        of_two *lines*", set(), "Drawn:\n\n    <x>\n        of_two *lines*"),
        ("cuda:<index>, not `<index>` nor *", set(), r"cuda:\<index>, not `<index>` nor \*"),
        ("has no __getitem__ and no `__len__`", set(), "has no `__getitem__` and no `__len__`"),
        ("scores (n, classes) of [0, 1]", set(), r"scores (n, classes) of \[0, 1\]"),
    ],
)
def test_as_markdown(text: str, names: set[str], markdown: str) -> None:
    assert as_markdown(text, names) == markdown
