from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from samegrad.callbacks import curves
from samegrad.callbacks.curves import Curves, draw_curves
from samegrad.callbacks.metrics_file import MetricsFile
from samegrad.callbacks.reports import EpochReport
from samegrad.errors import OutputError


def records(count: int, **changed: Any) -> list[dict[str, Any]]:
    return [
        {"epoch": i, "train_loss": 2 / i, "test_loss": 2.2 / i, "test_accuracy": 1 - 0.9 / i, **changed}
        for i in range(1, count + 1)
    ]


@pytest.mark.parametrize("count", [1, 2, 15, 100])
def test_any_number_of_epochs_is_drawn(count: int, tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    draw_curves(records(count), path, "lenet on synthetic, cpu × 2")
    image = imread(path)
    assert image.shape[0] > 300
    assert image.shape[1] > 600
    assert 0.01 < (image[:, :, :3] < 0.9).any(axis=2).mean() < 0.3  # there are lines and text on white
    assert [entry.name for entry in tmp_path.iterdir()] == ["curves.png"]


@pytest.mark.parametrize("count", [1, 2, 15, 100])
def test_lines_axes_and_titles_can_be_read(count: int) -> None:
    figure = curves._figure(records(count), "lenet on synthetic")
    losses, accuracy = figure.axes
    assert figure.get_suptitle() == "lenet on synthetic"
    assert {line.get_label(): np.size(line.get_xdata()) for line in losses.lines} == {"train": count, "test": count}
    assert [line.get_label() for line in accuracy.lines] == ["test"]
    assert (losses.get_ylabel(), accuracy.get_ylabel()) == ("mean loss per example", "accuracy in %")
    assert losses.get_title() == f"Loss at the end: train {2 / count:.3g}, test {2.2 / count:.3g}"
    end = 100 * (1 - 0.9 / count)
    assert accuracy.get_title() == f"Test accuracy: {end:.1f} % at the end, best {end:.1f} %"
    figure.draw_without_rendering()
    for axes in figure.axes:
        legend = axes.get_legend()
        assert legend is not None
        assert [text.get_text() for text in legend.get_texts()] == [line.get_label() for line in axes.lines]
        assert axes.get_xlabel() == "epoch"
        first, last = axes.get_xlim()
        ticks = [tick for tick in axes.get_xticks() if first <= tick <= last]
        assert ticks
        assert all(tick == int(tick) for tick in ticks)
        low, high = axes.get_ylim()
        assert len([tick for tick in axes.get_yticks() if low <= tick <= high]) >= 3
        values = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in axes.lines])
        assert low <= values.min() <= values.max() <= high


@pytest.mark.parametrize("loss", [0.0, None])
def test_losses_that_have_no_scale_are_drawn(loss: float | None, tmp_path: Path) -> None:
    draw_curves(records(3, train_loss=0.0, test_loss=loss), tmp_path / "curves.png", "title")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_drawing_needs_neither_torch_nor_pyplot(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from pathlib import Path\n"
        "from samegrad.callbacks.curves import draw_curves\n"
        "assert 'matplotlib' not in sys.modules\n"
        f"draw_curves({records(2)!r}, Path(sys.argv[1]), 'title')\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.png")], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "a.png").exists()


def test_a_path_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match=r"a\.png: could not be written"):
        draw_curves(records(1), tmp_path / "file" / "a.png", "title")


def test_without_accuracy_there_are_losses_only(tmp_path: Path) -> None:
    draw_curves([{"epoch": 1, "train_loss": 0.5}], tmp_path / "a.png", "title")
    draw_curves(records(2), tmp_path / "b.png", "title")
    assert imread(tmp_path / "a.png").shape[1] < imread(tmp_path / "b.png").shape[1]


def epoch(number: int) -> EpochReport:
    return EpochReport(number, 100, 0.5, {"loss": 0.4, "accuracy": 0.9}, 2.0, 0.1, 10 * number, 9, lr=0.1)


def test_curves_are_drawn_after_an_epoch_but_sparingly_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    drawn: list[int] = []

    def draw(epochs: list[dict[str, Any]], path: Path, title: str) -> None:
        nonlocal now
        assert (path, title) == (tmp_path / "curves.png", "title")
        drawn.append(len(epochs))
        now += 1.0

    monkeypatch.setattr("samegrad.callbacks.curves.draw_curves", draw)
    monkeypatch.setattr("time.monotonic", lambda: now)
    metrics, drawer = MetricsFile(tmp_path), Curves(tmp_path, "title")
    for number in range(30):
        now += 1.0
        metrics.on_epoch(epoch(number))
        drawer.on_epoch(epoch(number))
    assert drawn == [1, 21]  # a drawing takes a second, so the next one comes after twenty
    drawer.close()
    drawer.close()
    assert drawn == [1, 21, 30]


def test_curves_need_a_metrics_file_before_them(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="List a MetricsFile of this folder before Curves"):
        Curves(tmp_path).on_epoch(epoch(0))


def test_other_ranks_draw_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("samegrad.callbacks.curves.is_first_rank", lambda: False)
    Curves(tmp_path).on_epoch(epoch(0))
    assert list(tmp_path.iterdir()) == []
