"""XML as a tree whose elements know their lines. Document types, and with them entities, are refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn
from xml.parsers import expat

from samegrad.errors import TopologyError

__all__ = ["LARGEST_XML", "Element", "parse_xml"]

LARGEST_XML = 1 << 24
"""Characters of a text. More is not a topology."""

_DEEPEST = 64


@dataclass(slots=True)
class Element:
    """An element: its tag, its attributes, the elements in it, the line that it starts in."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)

    def all(self, tag: str) -> list[Element]:
        """The elements of this tag directly within."""
        return [child for child in self.children if child.tag == tag]


def parse_xml(text: str) -> Element:
    """The root of `text`. Raises TopologyError, with the line: not well-formed, a document type, too large or deep."""
    if len(text) > LARGEST_XML:
        raise TopologyError(f"{len(text)} characters are too many for a topology; at most {LARGEST_XML}")
    parser = expat.ParserCreate("utf-8")
    top = Element("", {}, 0)
    path = [top]

    def start(tag: str, attributes: dict[str, str]) -> None:
        if len(path) > _DEEPEST:
            raise TopologyError(f"line {parser.CurrentLineNumber}: more than {_DEEPEST} elements within each other")
        element = Element(tag, attributes, parser.CurrentLineNumber)
        path[-1].children.append(element)
        path.append(element)

    def end(_: str) -> None:
        path.pop()

    def refuse(*_: object) -> NoReturn:
        raise TopologyError(
            f"line {parser.CurrentLineNumber}: a document type or an entity is declared, which a topology has no use "
            "for; it is not read"
        )

    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = refuse
    try:
        parser.Parse(text.removeprefix("\ufeff").encode("utf-8", "replace"), True)
    except expat.ExpatError as error:
        raise TopologyError(
            f"line {error.lineno}: the XML is not well-formed: {expat.ErrorString(error.code)}"
        ) from None
    return top.children[0]
