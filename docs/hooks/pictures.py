"""The picture on the page about schedules, drawn by the package itself when the site is built."""

from __future__ import annotations

import io

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from samegrad.schedules import build
from samegrad.schedules.picture import draw

__all__ = ["PLACE", "on_files", "on_page_markdown"]

PLACE = "<!-- the picture of a ring -->"
"""The line of a page that the picture replaces."""

_NAME = "assets/ring.svg"


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Adds the picture to the site."""
    image = io.BytesIO()
    draw(build("ring", 4)).savefig(image, format="svg")
    files.append(File.generated(config, _NAME, content=image.getvalue()))


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Puts the picture in its place."""
    return markdown.replace(PLACE, f"![A ring of 4 ranks, round by round]({_NAME})")
