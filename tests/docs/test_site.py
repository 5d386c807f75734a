"""The site: builds without a warning, needs nothing from elsewhere, and covers what there is."""

from __future__ import annotations

import ast
import html
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from docs.hooks.command_line import commands, reference
from docs.hooks.repository_files import FILES, linked
from mkdocs.config import load_config
from tests.docs.pages import DOCS, PAGES, ROOT, fences

import samegrad
from samegrad import errors
from samegrad.cli import EXIT_CODES

OTHERS = {
    "torchrun": ["--master-addr", "--master-port", "--nnodes", "--node-rank", "--nproc-per-node"],
    "rocm-smi": ["--showtopo"],
    "tensorboard": ["--logdir"],
}
"""Options of other programs that the pages name."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    names = {page.stem for page in [*PAGES, *map(Path, FILES)]}
    assert names <= {path.stem for path in site.glob("*.html")}
    assert not (site / "hooks").exists()


def test_every_page_is_in_the_navigation() -> None:
    nav = load_config(str(ROOT / "mkdocs.yml")).nav
    assert nav

    def pages(entries: list[dict[str, str | list[object]]]) -> Iterator[str]:
        for entry in entries:
            for value in entry.values():
                if isinstance(value, str):
                    yield value
                else:
                    yield from pages(value)  # type: ignore[arg-type]

    assert sorted(pages(nav)) == sorted([*(page.name for page in PAGES), *FILES])


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=[\"']?(?:https?:)?//[^>]*>", text)
        assert not loaded, f"{path.name}: {loaded}"
    for path in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//", path.read_text(encoding="utf-8")), path.name


def test_the_picture_of_a_ring_is_drawn(site: Path) -> None:
    assert 'src="assets/ring.svg"' in (site / "schedules.html").read_text(encoding="utf-8")
    assert (site / "assets" / "ring.svg").read_bytes().startswith(b"<?xml")


def test_the_search_finds_text_of_a_page_without_a_server(site: Path) -> None:
    index = (site / "search" / "search_index.js").read_text(encoding="utf-8")
    assert index.startswith("var __index = ")
    assert "bit for bit" in index
    assert "iframe-worker" in (site / "index.html").read_text(encoding="utf-8")


def test_the_reference_has_every_command_option_default_and_exit_code(site: Path) -> None:
    text = html.unescape(re.sub(r"<[^>]+>", "", (site / "cli.html").read_text(encoding="utf-8")))
    words = " ".join(text.split())
    options = 0
    for name, command in commands().items():
        assert name in words
        for parameter in command.params:
            options += 1
            for option in parameter.opts:
                assert option in words or option.upper() in words
            assert " ".join((parameter.help or "").split()) in words
            if parameter.default not in (None, False, ()) and not callable(parameter.default):
                assert f"Default: {parameter.default}. " in words
    assert options > 20
    assert all(meaning in words for meaning in EXIT_CODES.values())


def test_the_reference_takes_nothing_for_markup() -> None:
    assert "STEPS|EPOCH" in reference()
    assert r"~/.cache/samegrad" in reference()


def test_the_library_page_has_every_public_name_and_error(site: Path) -> None:
    text = (site / "api.html").read_text(encoding="utf-8")
    headings = " ".join(re.findall(r"<h[2-5] id=\"(samegrad[^\"]*)\"", text))
    modules = {"data", "errors", "models"}
    for name in [*samegrad.__all__, *errors.__all__]:
        listed = name in modules or re.search(rf"\.{name}\b", headings)
        assert listed, f"{name} is public: give it a place in docs/api.md, as ::: samegrad.{name}"


def known_options() -> set[str]:
    opts = {
        option for command in commands().values() for p in command.params for option in (*p.opts, *p.secondary_opts)
    }
    return {option for option in opts if option.startswith("-")} | {"--help"}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_pages_name_no_option_that_does_not_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", text))
    known = known_options().union(*OTHERS.values())
    assert not named - known, f"{page.name}: {named - known}"


def test_environment_variables_that_the_package_knows_are_documented() -> None:
    pages = " ".join(page.read_text(encoding="utf-8") for page in PAGES)
    found = set(variables())
    assert "CUBLAS_WORKSPACE_CONFIG" in found
    assert not {name for name in found if name not in pages}


def test_messages_that_foot_guns_quote_exist() -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    code += inspect.getsource(torch.nn.functional)
    quoted = re.findall(r"^### \"(.+)\"$", (DOCS / "footguns.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(quoted) > 5
    for piece in (piece.strip() for message in quoted for piece in re.split(r"[\d…]+", message)):
        assert piece in code, piece


def variables() -> Iterator[str]:
    """What looks like an environment variable in the modules that use the environment."""
    for path in (ROOT / "src" / "samegrad").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "environ" in text:
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield from re.findall(r"\A[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\Z", node.value)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[the log](../CHANGELOG.md)", "[the log](CHANGELOG.md)"),
        ("[the log](../CHANGELOG.md#unreleased)", "[the log](CHANGELOG.md#unreleased)"),
        ("[why](docs/design.md)", "[why](design.md)"),
        ("[why](design.md), ../CHANGELOG.md", "[why](design.md), ../CHANGELOG.md"),
    ],
)
def test_links_between_docs_and_the_root_lead_to_pages(before: str, after: str) -> None:
    assert linked(before) == after


def test_pages_and_their_code_have_no_wide_lines() -> None:
    for page in PAGES:
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            assert len(line) <= 120 or line.startswith("|"), f"{page.name}:{number} has {len(line)} characters"
        for fence in fences(page):
            for number, line in enumerate(fence.text.splitlines(), fence.line):
                assert len(line) <= 88 or fence.language != "python", (
                    f"{page.name}:{number}: {len(line)} characters of code; the site is as wide as 88"
                )
