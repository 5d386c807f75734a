"""Docstrings as Markdown: paragraphs like `name: what it is` become lists, and nothing else is taken for markup."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe

__all__ = ["AsMarkdown", "as_markdown"]

_ITEM = re.compile(r"((?:[A-Za-z_]\w*)(?:(?:, | and )[A-Za-z_]\w*)*): (.*)", re.DOTALL)


class AsMarkdown(griffe.Extension):
    """Rewrites the docstring of every object that is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each object when it and its members are complete."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value, _names(obj))


def _names(obj: griffe.Object) -> set[str]:
    """What a docstring may describe by `name: text`: parameters of a function, parameters and fields of a class."""
    if isinstance(obj, griffe.Function):
        return {parameter.name for parameter in obj.parameters}
    if isinstance(obj, griffe.Class):
        init = obj.members.get("__init__")
        fields = {name for name, member in obj.members.items() if not name.startswith("_")}
        return fields | (_names(init) if isinstance(init, griffe.Function) else set())
    return set()


def as_markdown(text: str, names: set[str]) -> str:
    """`text` as Markdown; a line that starts with one of `names` and a colon becomes an item of a list."""
    return "\n\n".join(_paragraph(paragraph, names) for paragraph in re.split(r"\n\s*\n", text.strip("\n")))


def _paragraph(paragraph: str, names: set[str]) -> str:
    if all(line.startswith("    ") for line in paragraph.splitlines()):
        return paragraph  # code, or a drawing
    entries = list(_entries(paragraph))
    found = [_ITEM.fullmatch(entry) for entry in entries]
    if not any(match and names.issuperset(re.split(r", | and ", match[1])) for match in found):
        return _escaped(paragraph)
    lines = []
    for entry, match in zip(entries, found, strict=True):
        if match is None:
            lines.append(f"- {_escaped(entry)}")
        else:
            terms = ", ".join(f"`{name}`" for name in re.split(r", | and ", match[1]))
            lines.append(f"- {terms}: {_escaped(match[2])}")
    return "\n".join(lines)


def _entries(paragraph: str) -> Iterator[str]:
    """The entries of a list of `name: text`, each with its continuation lines, as one line."""
    entry: list[str] = []
    for line in paragraph.splitlines():
        if entry and _ITEM.match(line):
            yield " ".join(entry)
            entry = []
        entry.append(line.strip())
    yield " ".join(entry)


def _escaped(text: str) -> str:
    """`text` with nothing outside of backticks taken for markup; names with underscores become code."""
    parts = text.split("`")
    for place in range(0, len(parts), 2):
        plain = re.sub(r"([<*\[\]])", r"\\\1", parts[place])
        parts[place] = re.sub(r"(?<![\w.])(\w*_\w*(?:\(\))?)", r"`\1`", plain)
    return "`".join(parts)
