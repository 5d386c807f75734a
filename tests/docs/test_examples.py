"""The code in the documentation runs: the Python blocks of a page in order, in one namespace, in an empty folder.

A block that cannot run here is preceded by `<!-- not run: why -->`. A block of text (```text) right after one of Python
is what that prints; one right after a command line (```sh) is what this prints. `<!-- slow -->` anywhere in a page
makes its test one of the slow ones.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from docs.hooks.command_line import commands
from tests.docs.pages import PAGES, ROOT, command_lines, fences

from samegrad.cli import main


def _marks(page: Path) -> list[pytest.MarkDecorator]:
    text = page.read_text(encoding="utf-8")
    return [pytest.mark.dist] * ("launch(" in text) + [pytest.mark.slow] * ("<!-- slow -->" in text)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=_marks(page))
        for page in PAGES
        if any(fence.language == "python" for fence in fences(page))
    ],
)
def test_python_blocks_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    random.seed(0)
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = None
    for fence in fences(page):
        if fence.language == "python" and fence.reason is None:
            capfd.readouterr()
            # The lines before are blank, so that a traceback names the line of the page.
            code = compile("\n" * (fence.line - 1) + fence.text, str(page), "exec")
            exec(code, names)
            printed = capfd.readouterr().out
        elif fence.language == "text" and printed is not None:
            assert printed.strip() == fence.text.strip(), f"{page.name}:{fence.line}"
            printed = None
        else:
            printed = None


def test_what_command_lines_print_is_true(capsys: pytest.CaptureFixture[str]) -> None:
    compared = 0
    for page in PAGES:
        for command, output in itertools.pairwise(fences(page)):
            if (command.language, output.language) == ("sh", "text"):
                with pytest.raises(SystemExit):
                    main(shlex.split(command.text)[1:])
                assert capsys.readouterr().out == output.text, f"{page.name}:{output.line}"
                compared += 1
    assert compared


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_command_lines_can_be_understood(page: Path) -> None:
    for line in command_lines(page, "samegrad"):
        parse(line)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("samegrad train --no-such", "(?i)no such option"),
        ("samegrad train --epochs none", "valid int"),
        ("samegrad train --model none", "is not one of"),
        ("samegrad train stray", "unexpected extra argument"),
        ("samegrad none", "no command none"),
    ],
)
def test_a_command_line_that_is_wrong_is_found(line: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        parse(line)


def parse(line: str) -> None:
    """Reads a command line as the program would, without running it; raises what is wrong with it."""
    words, known = shlex.split(line), commands()
    count = next(count for count in range(len(words), 0, -1) if " ".join(words[:count]) in known)
    name, rest = " ".join(words[:count]), words[count:]
    if hasattr(known[name], "commands") and rest and not rest[0].startswith("-"):
        raise ValueError(f"{name} has no command {rest[0]}")
    with contextlib.suppress(typer.Exit):  # --help and --version
        known[name].make_context(name, rest)
