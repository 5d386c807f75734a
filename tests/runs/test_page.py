"""The page of a run: well-formed, escaped, complete, without anything from elsewhere; and as a browser shows it."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.runs.folders import records, report

from samegrad.errors import OutputError
from samegrad.runs import Run, write_page
from samegrad.runs.page import make_page

HOSTILE = "<script>alert('x')</script>&amp;\"{{ 7 * 7 }}"
VOID = {"meta", "link"}  # elements without an end that the page uses


class Reader(HTMLParser):
    """Checks that elements are closed in order; collects the visible text and all attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def finished(folder: str = "runs/a", count: int = 3, **changed: object) -> Run:
    return Run(folder, "finished", report(count, **changed), tuple(records(count)))


def pages() -> list[str]:
    running = Run("runs/c", "running", {}, tuple(records(1)), ("line 2 is damaged",))
    return [
        make_page(runs)
        for runs in ([finished()], [finished(count=300)], [running], [Run("e", "stopped")], [finished(), running])
    ]


def test_pages_are_well_formed_and_need_nothing_from_elsewhere() -> None:
    for page in pages():
        reader = read(page)
        assert not re.search(r"https?:|//[a-z]|@import|url\(", page)
        loading = [
            (tag, value) for tag, name, value in reader.attributes if name in ("src", "href", "srcset", "action")
        ]
        assert loading == [("link", "data:,")]
        assert not any(tag == "script" or name.startswith("on") for tag, name, _ in reader.attributes)
        assert 'name="viewport"' in page
        assert "prefers-color-scheme: dark" in page


def test_a_page_says_all_of_a_run() -> None:
    run = finished()
    text = " ".join(" ".join(read(make_page([run])).text).split())
    for part in (
        *(
            "lenet on sample-digits",
            "runs/a, finished, cpu × 2",
            "ab" * 32,
            "83.3 % test accuracy",
            "0.6667 train loss",
        ),
        *("batch size 32", "learning rate 0.2", "devices cpu × 2", "PyTorch 2.13.0", "samegrad train --model lenet"),
        "2 1.0000 1.2500 75.0 % 2.00 s 500",  # a line of the table
    ):
        assert part in text


def test_several_runs_stand_beside_each_other() -> None:
    page = make_page([finished(), finished("runs/b", devices=["cpu"]), Run("runs/c", "running", {}, tuple(records(1)))])
    text = " ".join(" ".join(read(page).text).split())
    assert "Same result, bit for bit (fingerprint abababab): runs/a (cpu × 2), runs/b (cpu)." in text
    assert "running at epoch 2" in text
    assert "runs/b lenet sample-digits cpu 8 32 sgd 0.2 0 1 3 0.6667 83.3 % 83.3 % 2.00 s 500 abababab finished" in text


def test_text_is_escaped() -> None:
    run = Run(HOSTILE, "finished", report(2, model=HOSTILE, command=HOSTILE, platform=HOSTILE), tuple(records(2)))
    for runs in ([run], [run, finished()]):
        page = make_page(runs)
        assert "<script" not in page
        assert "49" not in re.sub(r"[\d.,]*\d[\d.,]+", "", page)
        assert html.escape(HOSTILE).replace("&#x27;", "&#39;").replace("&quot;", "&#34;") in page
        assert HOSTILE in " ".join(read(page).text)


def test_a_page_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match=r"a\.html: could not be written"):
        write_page([finished()], tmp_path / "file" / "a.html")


def browser() -> str | None:
    return next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )


@pytest.mark.skipif(browser() is None, reason="there is no Chromium")
@pytest.mark.parametrize("width", [390, 1200])
def test_a_browser_shows_it_without_complaint(width: int, tmp_path: Path) -> None:
    program = browser()
    assert program is not None
    path = tmp_path / "report.html"
    write_page([finished(count=20)], path)
    measure = "<script>document.title = document.documentElement.scrollWidth + '/' + innerWidth</script>"
    path.write_text(path.read_text(encoding="utf-8").replace("</body>", f"{measure}</body>"), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", f"--window-size={width},900"]
    shown = subprocess.run(
        [program, *options, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert "CONSOLE" not in shown.stderr
    reader = read(shown.stdout)
    assert "ab" * 32 in reader.text
    title = re.search("<title>(.*?)</title>", shown.stdout)
    assert title is not None
    needed, there = map(int, title[1].split("/"))
    assert needed <= there  # nothing sticks out at the side
