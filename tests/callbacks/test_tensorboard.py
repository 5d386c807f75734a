"""Events are read back with TensorBoard's own reader."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from samegrad.callbacks import tensorboard
from samegrad.callbacks.reports import EpochReport, StepReport
from samegrad.callbacks.tensorboard import TensorBoard
from samegrad.errors import ConfigurationError, OutputError

STEPS, EPOCHS = 5, 4


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def tell(board: TensorBoard, first: int, last: int) -> None:
    """Steps `first` to `last` of all, which count from 1; the loss of a step is its number."""
    for done in range(first, last + 1):
        epoch, step = divmod(done - 1, STEPS)
        board.on_step(StepReport(epoch, step, STEPS, 32, float(done), 0.5, done, EPOCHS, lr=1 / done))
        if step + 1 == STEPS:
            metrics = {"loss": 2.0 * done, "accuracy": 0.5, "f1": math.nan}
            board.on_epoch(EpochReport(epoch, 160, 1.0 * done, metrics, 2.0, 0.1, done, EPOCHS, 0.1))


def test_every_curve_counts_steps(tmp_path: Path) -> None:
    board = TensorBoard(tmp_path / "made", every=2)
    tell(board, 1, 10)
    found = scalars(tmp_path / "made")  # it is all there when the epoch has ended, before the file is closed
    board.close()
    assert found["loss/step"] == [(done, float(done)) for done in (2, 4, 6, 8, 10)]
    assert dict(found["learning_rate"]) == pytest.approx({done: 1 / done for done in (2, 4, 6, 8, 10)})
    assert found["loss/train"] == [(5, 5.0), (10, 10.0)]
    assert found["loss/test"] == [(5, 10.0), (10, 20.0)]
    assert found["accuracy/test"] == [(5, 0.5), (10, 0.5)]
    assert found["samples_per_second"] == [(5, 80.0), (10, 80.0)]
    assert found["epoch"] == [(5, 1.0), (10, 2.0)]
    assert [math.isnan(value) for _, value in found["f1/test"]] == [True, True]
    assert repr(scalars(tmp_path / "made")) == repr(found)


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Lets the next event file be named as if it had been begun later: TensorBoard reads files by their names."""

    class Clock:
        @staticmethod
        def time() -> float:
            return 1e9 + seconds

    monkeypatch.setattr("tensorboard.summary.writer.event_file_writer.time", Clock)


def test_a_resumed_training_has_no_step_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for count, (first, last) in enumerate([(1, 14), (8, 12), (10, 20)]):  # stopped at 14; resumed after 7 and after 9
        later(monkeypatch, 10 * count)
        board = TensorBoard(tmp_path, every=1)
        tell(board, first, last)
        board.close()
    found = scalars(tmp_path)
    assert found["loss/step"] == [(done, float(done)) for done in range(1, 21)]
    assert [step for step, _ in found["loss/train"]] == [5, 10, 15, 20]


def test_a_training_that_begins_anew_replaces_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for count, last in enumerate((20, 5)):
        later(monkeypatch, 10 * count)
        board = TensorBoard(tmp_path, every=1)
        tell(board, 1, last)
        board.close()
    assert [step for step, _ in scalars(tmp_path)["loss/step"]] == [1, 2, 3, 4, 5]


def test_other_ranks_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "is_first_rank", lambda: False)
    board = TensorBoard(tmp_path / "none")
    tell(board, 1, 10)
    board.close()
    assert not (tmp_path / "none").exists()


def test_a_missing_package_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"not installed\. Install it: pip install 'samegrad\[tensorboard\]'"):
        TensorBoard(tmp_path)


@pytest.mark.parametrize("every", [0, -1, 1.5, "2"])
def test_every_is_a_number_of_steps(every: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="every must be a number of steps of at least 1"):
        TensorBoard(tmp_path, every)


def test_a_folder_that_cannot_be_made_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="file/events: could not be written"):
        tell(TensorBoard(tmp_path / "file" / "events"), 1, 1)


def test_writing_is_quiet(tmp_path: Path) -> None:
    code = (
        "import sys; from samegrad.callbacks import TensorBoard; assert 'torch' not in sys.modules\n"
        "from samegrad.callbacks import EpochReport\n"
        "board = TensorBoard(sys.argv[1])\n"
        "board.on_epoch(EpochReport(0, 9, 0.5, {}, 1.0, 0.0, 9, 1, 0.1)); board.close()"
    )
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert scalars(tmp_path)["epoch"] == [(9, 1.0)]
