"""Files of the repository's root as pages of the site; links to and from them then lead there."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

__all__ = ["FILES", "linked", "on_files", "on_page_markdown"]

FILES = ("CHANGELOG.md", "CONTRIBUTING.md")


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Adds them to the pages."""
    root = Path(config.docs_dir).parent
    for name in FILES:
        files.append(
            File.generated(
                config, name, content=(root / name).read_text(encoding="utf-8")
            )
        )


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Lets links that lead to a file in the repository lead to its page."""
    return linked(markdown)


def linked(markdown: str) -> str:
    """`markdown` with `](../CHANGELOG.md)` and `](docs/design.md)` as links between pages."""
    markdown = re.sub(
        rf"\]\(\.\./({'|'.join(map(re.escape, FILES))})", r"](\1", markdown
    )
    return re.sub(r"\]\(docs/([a-z-]+\.md)", r"](\1", markdown)
