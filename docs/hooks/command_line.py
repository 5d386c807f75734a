"""The reference of the command line, written from the commands themselves when the site is built."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

from samegrad.cli import EXIT_CODES
from samegrad.cli.app import app

__all__ = ["PLACE", "commands", "on_page_markdown", "reference"]

PLACE = "<!-- the commands -->"
"""The line of a page that the reference replaces."""


def on_page_markdown(
    markdown: str, page: Page, config: MkDocsConfig, files: Files
) -> str:
    """Puts the reference in its place."""
    return markdown.replace(PLACE, reference()) if PLACE in markdown else markdown


def commands() -> dict[str, Any]:
    """Every command by its full name, "samegrad train", in the order of the help; the program itself comes first."""
    return dict(_commands("samegrad", typer.main.get_command(app)))


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield name, command
    for word, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from _commands(f"{name} {word}", below)


def reference() -> str:
    """The page's part about commands and exit codes, as Markdown."""
    parts = [
        part for name, command in commands().items() for part in _command(name, command)
    ]
    codes = [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    table = "\n".join(["| Code | Meaning |", "|-----:|---------|", *codes])
    return "\n\n".join([*parts, "## Exit codes", table])


def _command(name: str, command: Any) -> Iterator[str]:
    yield f"## {name}"
    yield from map(_paragraph, command.help.split("\n\n"))
    below = [
        word
        for word, other in getattr(command, "commands", {}).items()
        if not other.hidden
    ]
    if below:
        yield "\n".join(
            f"- [`{name} {word}`](#{_anchor(name, word)})" for word in below
        )
    panels: dict[str, list[Any]] = {}
    for parameter in command.params:
        if not getattr(parameter, "hidden", False):
            usual = "Options" if parameter.opts[0].startswith("-") else "Arguments"
            panels.setdefault(
                getattr(parameter, "rich_help_panel", None) or usual, []
            ).append(parameter)
    for panel, members in panels.items():
        yield f"### {panel} {{ #{_anchor(name, panel)} }}"
        yield from (_parameter(name, parameter) for parameter in members)


def _paragraph(text: str) -> str:
    """A paragraph of a help text; an example becomes a block of code."""
    example = re.fullmatch(r"Examples?:\s*(samegrad .*)", text.strip(), re.DOTALL)
    return f"```sh\n{example[1]}\n```" if example else _plain(text)


def _parameter(command: str, parameter: Any) -> str:
    """An option or an argument, as a heading, so that the search and links find it, and its text."""
    name = parameter.opts[0]
    if name.startswith("-"):
        metavar = (
            ""
            if parameter.metavar == ""
            else f" {parameter.metavar or parameter.name.upper()}"
        )
        terms = [
            f"`{other}{metavar}`"
            for other in (*parameter.opts, *parameter.secondary_opts)
        ]
    else:
        terms = [f"`{parameter.metavar or name.upper()}`"]
    default = parameter.default
    if parameter.required:
        text = "Required. "
    elif default is None or default is False or default == () or callable(default):
        text = ""
    else:
        text = f"Default: `{default}`. "
    attributes = f"#{_anchor(command, name)} data-toc-label='{name}'"
    return f"#### {', '.join(terms)} {{ {attributes} }}\n\n{text}{_plain(parameter.help or '')}"


def _plain(text: str) -> str:
    """A help text as Markdown in which nothing is markup."""
    return re.sub(r"([\\`*_<>\[\]|{}])", r"\\\1", re.sub(r"\s+", " ", text)).strip()


def _anchor(*words: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()).strip("-")
