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
        fields = {
            name for name, member in obj.members.items() if not name.startswith("_")
        }
        return fields | (_names(init) if isinstance(init, griffe.Function) else set())
    return set()


def as_markdown(text: str, names: set[str]) -> str:
    """`text` as Markdown; a line that starts with one of `names` and a colon becomes an item of a list."""
    return "\n\n".join(
        _paragraph(paragraph, names)
        for paragraph in re.split(r"\n\s*\n", text.strip("\n"))
    )


def _paragraph(paragraph: str, names: set[str]) -> str:
    if all(line.startswith("    ") for line in paragraph.splitlines()):
        return paragraph  # code, or a drawing
    described, *raised = re.split(r"(?:\n|(?<=\.) )(?=Raises )", paragraph, maxsplit=1)
    entries = list(_entries(described, names))
    if not any(terms for terms, _ in entries):
        return _escaped(paragraph)
    items = (
        f"- {', '.join(f'`{term}`' for term in terms)}{': ' * bool(terms)}{text}"
        for terms, text in entries
    )
    return "\n\n".join(["\n".join(items), *map(_escaped, raised)])


def _entries(paragraph: str, names: set[str]) -> Iterator[tuple[list[str], str]]:
    """The names and the text of each `name: text`; one begins with a line, or with a sentence within it."""
    terms: list[str] = []
    text: list[str] = []
    for part in re.split(r"\n|(?<=\.) ", paragraph):
        match = _ITEM.match(part)
        found = re.split(r", | and ", match[1]) if match else []
        if match and names.issuperset(found):
            if text:
                yield terms, _escaped(" ".join(text))
            terms, text = found, [match[2]]
        else:
            text.append(part.strip())
    yield terms, _escaped(" ".join(text))


def _escaped(text: str) -> str:
    """`text` with nothing outside of backticks taken for markup; names with underscores become code."""
    parts = text.split("`")
    for place in range(0, len(parts), 2):
        plain = re.sub(r"([<*\[\]])", r"\\\1", parts[place])
        parts[place] = re.sub(r"(?<![\w.])(\w*_\w*(?:\(\))?)", r"`\1`", plain)
    return "`".join(parts)
