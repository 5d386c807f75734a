"""Pictures show every round and rank, and are refused where nobody could look at them."""

from __future__ import annotations

from pathlib import Path

import pytest

from samegrad.errors import ConfigurationError, OutputError
from samegrad.schedules.catalog import ALGORITHMS, build
from samegrad.schedules.picture import draw, save_picture


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_transfer_is_an_arrow(name: str) -> None:
    schedule = build(name, 3)
    (axes,) = draw(schedule).axes
    texts = [text.get_text() for text in axes.texts]
    assert texts.count("") == sum(len(each) for each in schedule.rounds)  # arrows have no text
    assert [text for text in texts if text.startswith("round")] == [f"round {n}" for n in range(len(schedule.rounds))]
    assert len([text for text in texts if text.startswith("rank")]) == schedule.ranks


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_files(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"ring.{ending}"
    save_picture(build("ring", 2), path)
    assert path.read_bytes()[:4] in (b"\x89PNG", b"<?xm", b"%PDF")


def test_other_endings(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"ring.txt: a picture ends in .png, .svg or .pdf; got '.txt'"):
        save_picture(build("ring", 2), tmp_path / "ring.txt")


def test_too_large() -> None:
    with pytest.raises(
        ConfigurationError, match="a picture is for at most 16 ranks and 6000 boxes; this would have 17"
    ):
        draw(build("ring", 17))
    with pytest.raises(ConfigurationError, match="sharded: a picture is for"):
        draw(build("sharded", 16))


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"ring\.png: could not be written: "):
        save_picture(build("ring", 2), tmp_path / "file" / "ring.png")
