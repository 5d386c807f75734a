"""Pictures show every round and rank, and are refused where nobody could look at them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch

from samegrad.errors import ConfigurationError, OutputError
from samegrad.schedules.catalog import ALGORITHMS, build, build_for
from samegrad.schedules.cut import Cut
from samegrad.schedules.picture import draw, save_picture
from samegrad.shards import shares

UNEVEN = [range(3), range(3, 6), range(6, 8)]


def texts_of(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("leaves", [3, 8])
def test_every_transfer_between_ranks_is_an_arrow(name: str, leaves: int) -> None:
    cut = Cut.of(UNEVEN if leaves == 8 else shares(3, 3), leaves, ALGORITHMS[name].helpers)
    schedule = build_for(name, cut)
    sent = [move for each in schedule.rounds for move in each if move.read.rank != move.written.rank]
    figure = draw(schedule)
    (axes,) = figure.axes
    texts = texts_of(axes)
    signs = sum(text.startswith("sent and") for text in texts)
    assert sum(isinstance(each, FancyArrowPatch) for each in axes.patches) == len(sent) + signs
    assert len([text for text in texts if text.startswith("rank ")]) == schedule.ranks
    width, height = figure.get_size_inches()
    assert width / height == pytest.approx(16 / 9, rel=0.01)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("ranks", [1, 3, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (2, 4, 5))])
def test_arrows_end_beside_boxes_and_nothing_leaves_the_page(name: str, ranks: int) -> None:
    figure = draw(build(name, ranks))
    (axes,) = figure.axes
    (boxes,) = axes.collections
    width, height = figure.get_size_inches()
    corners = np.array([path.get_extents().get_points() for path in boxes.get_paths()], dtype=np.float64)
    assert corners.min() >= 0
    assert (corners.max((0, 1)) <= (width, height)).all()
    for arrow in axes.patches:
        assert isinstance(arrow, FancyArrowPatch)
        for point in np.asarray(arrow.get_path().vertices, dtype=np.float64)[[0, -1]]:
            assert not ((corners[:, 0] + 0.01 < point) & (point < corners[:, 1] - 0.01)).all(1).any()


def test_rounds_within_ranks_are_one_step() -> None:
    (axes,) = draw(build("sharded", 8)).axes
    rounds = [text for text in texts_of(axes) if text.startswith("round")]
    assert rounds == ["round 0", "rounds 1 to 3:\nwithin ranks", "round 4"]
    assert texts_of(axes).count("3") == 4 * 8 + 7  # in each frame and rank a box of chunk 3, and what rank 3 received


def test_a_long_name_is_shortened_and_taken_literally() -> None:
    name = "$a_schedule$ " * 20
    (axes,) = draw(dataclasses.replace(build("ring", 3), name=name)).axes
    (title,) = [text for text in texts_of(axes) if "$" in text]
    assert title.startswith("$a_schedule$ $a")
    assert title.endswith("… on 3 ranks")
    assert len(title) < 80


def test_only_the_signs_that_occur_are_explained() -> None:
    (axes,) = draw(build("sharded", 3, collective="all-gather")).axes
    assert "sent and copied" in texts_of(axes)
    assert not {"sent and added", "added within a rank", "not needed any more"} & set(texts_of(axes))


@pytest.mark.parametrize("ending", ["png", "svg", "pdf", "PNG"])
def test_files(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"ring.{ending}"
    save_picture(build("ring", 2), path)
    assert path.read_bytes()[:4] in (b"\x89PNG", b"<?xm", b"%PDF")


def test_other_endings(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"ring.txt: expected a picture, .* or .pdf; got '.txt'"):
        save_picture(build("ring", 2), tmp_path / "ring.txt")


def test_too_large() -> None:
    draw(build("binomial-tree", 16))
    with pytest.raises(ConfigurationError, match=r"at most 16 ranks, 160 boxes side by .* would have 17, 33 and 10"):
        draw(build("binomial-tree", 17))
    with pytest.raises(ConfigurationError, match=r"would have 13, 181 and 24\. Draw it for fewer ranks"):
        draw(build("ring", 13))


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"ring\.png: could not be written: "):
        save_picture(build("ring", 2), tmp_path / "file" / "ring.png")
