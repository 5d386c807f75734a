"""What the tests of the documentation read: the pages, their fences, and the options that they name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))

_FENCE = re.compile(
    r"(?:<!-- not run: (?P<reason>.+?) -->\n+)?^```(?P<language>[a-z]*)[^\n]*\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Fence:
    """A block of code in `page`, whose first line is line `line`. `reason`: why it cannot be run here, if it cannot."""

    page: Path
    line: int
    language: str
    text: str
    reason: str | None


def fences(page: Path) -> list[Fence]:
    """The blocks of code of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Fence(page, text.count("\n", 0, found.start("text")) + 1, found["language"], found["text"], found["reason"])
        for found in _FENCE.finditer(text)
    ]


def command_lines(page: Path, program: str) -> Iterator[str]:
    """The command lines of `program` in the page's blocks for a shell, without comments, prompts and line breaks."""
    for fence in fences(page):
        if fence.language in ("", "console", "bash", "sh"):
            for line in fence.text.replace("\\\n", " ").splitlines():
                words = re.sub(r"\s#.*", "", line.removeprefix("$ ")).strip()
                if words.startswith(f"{program} "):
                    yield words
