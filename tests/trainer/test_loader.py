"""Loader workers: the same result for any number of them, errors that say what failed, and no process left behind."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from tests.trainer.loading_cases import Drawing, DrawingStream, fit, make
from tests.workers.processes import is_gone, own_children, wait_until
from torch.utils.data import DataLoader, TensorDataset

from samegrad.errors import ConfigurationError, DataError, LoaderDied, SamegradError
from samegrad.parallel import current_world
from samegrad.trainer import Loading, Saving, batches, loader
from samegrad.workers import launch, report

LOADINGS = [None, Loading(1), Loading(2, prefetch=1)]


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    before = {child.pid for child in own_children()}
    yield
    left = {child.pid: child for child in own_children() if child.pid not in before}
    for pid, child in left.items():
        assert is_gone(pid), child


@pytest.mark.parametrize("kind", [Drawing, DrawingStream])
def test_the_result_does_not_depend_on_loader_workers(kind: type[Any]) -> None:
    expected = fit(kind)
    assert len(set(expected["losses"])) == 6
    for loading in (*LOADINGS[1:], Loading(1, start="forkserver")):
        assert fit(kind, loading) == expected


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize(("ranks", "loading"), [(2, Loading(2)), pytest.param(3, Loading(1), marks=pytest.mark.slow)])
def test_nor_on_the_number_of_ranks(ranks: int, loading: Loading) -> None:
    found = launch(lambda: [fit(Drawing, loading), fit(DrawingStream, loading)], devices=f"cpu:{ranks}")
    assert found == [fit(Drawing), fit(DrawingStream)]


class Staged:
    """Examples and their number depend on the stage that training is in, which a callback sets."""

    def __init__(self) -> None:
        self.stage = 0

    def __len__(self) -> int:
        return 20 + 9 * self.stage

    def __getitem__(self, index: int) -> Any:
        return torch.linspace(0, index + self.stage, 6) / 50, (index + self.stage) % 3


class StagedStream:
    """The same as a stream."""

    def __init__(self) -> None:
        self.stage = 0

    def __iter__(self) -> Iterator[Any]:
        now = Staged()
        now.stage = self.stage
        return (now[index] for index in range(len(now)))


def fit_in_stages(kind: type[Any], loading: Loading | None) -> list[str]:
    data, trainer, found = kind(), make(), []

    def on_epoch(_: Any) -> None:
        data.stage += 1
        found.append(trainer.fingerprint())

    trainer.fit(data, 3, loading=loading, on_epoch=on_epoch)
    return found


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("kind", [Staged, StagedStream])
def test_loader_workers_see_what_was_changed_between_epochs(kind: type[Any]) -> None:
    expected = fit_in_stages(kind, None)
    assert fit_in_stages(kind, Loading(1)) == expected
    assert fit_in_stages(kind, Loading(1, start="forkserver")) == expected
    if kind is Staged:
        assert launch(lambda: fit_in_stages(kind, Loading(2)), devices="cpu:2") == expected


@pytest.mark.parametrize("loading", LOADINGS[:2], ids=["itself", "loader worker"])
def test_what_can_be_gone_through_once_serves_for_one_epoch(loading: Loading | None) -> None:
    def generate() -> Iterator[Any]:
        yield from ((torch.ones(6), 0) for _ in range(8))

    make().fit(generate(), loading=loading)
    for once in (generate(), iter([(torch.ones(6), 0)])):
        with pytest.raises(ConfigurationError, match=r"has no examples in epoch 1; can it be gone through only once\?"):
            make().fit(once, 2, loading=loading)


class Rewinding:
    """Its own iterator, which begins anew."""

    def __iter__(self) -> Iterator[Any]:
        self.left = 8
        return self

    def __next__(self) -> Any:
        self.left -= 1
        if self.left < 0:
            raise StopIteration
        return torch.full((6,), float(self.left)), 0


def test_an_iterator_that_begins_anew_serves_for_every_epoch() -> None:
    expected = [report.train_loss for report in make().fit(Rewinding(), 3)]
    assert [report.train_loss for report in make().fit(Rewinding(), 3, loading=Loading(1))] == expected


class Numbers:
    """Examples that are nothing but random numbers, from each kind of generator."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return torch.rand(1, dtype=torch.float64), (random.random(), float(np.random.rand()))


@pytest.mark.dist
def test_all_ranks_and_loader_workers_draw_different_numbers() -> None:
    """Two ranks with two loader workers each; the runs repeat, the epochs differ."""

    def run() -> list[list[float]]:
        epochs = []
        for epoch in (0, 1, 0):
            parts = batches(Numbers(), 8, epoch=epoch, loading=Loading(2))
            own = torch.cat([torch.cat([X[:, 0], *y]) for X, y in parts])
            records = current_world().group.gather(json.dumps(own.tolist()).encode(), "test")
            epochs.append([value for record in records for value in json.loads(record)])
        return epochs

    first, second, again = launch(run, devices="cpu:2")
    assert len(first) == len(second) == 3 * 24
    assert len({*first, *second}) == 2 * 3 * 24
    assert first == again


class Threads:
    """Says with how many threads torch computes where examples are read."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        return torch.full((6,), float(torch.get_num_threads())), 0


@pytest.mark.parametrize("loading", LOADINGS[:2])
def test_examples_are_read_with_one_thread_whatever_the_recipe_says(loading: Loading | None) -> None:
    """So that loader workers, which have one, give the same bits."""
    from samegrad.recipe import Recipe
    from samegrad.trainer import Trainer

    seen: list[float] = []

    class Model(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.extend(x[:, 0].tolist())
            return super().forward(x)

    loss = torch.nn.functional.cross_entropy
    trainer = Trainer(Model(6, 3), loss, lambda p: torch.optim.SGD(p, 0.1), Recipe(batch_size=8, threads=2))
    trainer.fit(Threads(), loading=loading)
    assert seen == [1.0] * 16


@pytest.mark.dist
def test_only_the_shards_of_a_rank_are_read(tmp_path: Path) -> None:
    """By three ranks with a loader worker each; the first example by each, to compare what they were given."""

    def run() -> list[list[str]]:
        trainer = make()
        path = tmp_path / str(os.getpid())
        trainer.fit(Noted(path), 2, loading=Loading(1))
        records = trainer.world.group.gather(path.read_bytes(), "test")
        return [record.decode().split() for record in records]

    found = launch(run, devices="cpu:3")
    assert sorted(int(index) for part in found for index in part) == sorted([*range(37), *range(37), 0, 0, 0])
    assert min(map(len, found)) > 10


class Noted(Drawing):
    """Writes down which examples are read."""

    def __init__(self, path: Path) -> None:
        super().__init__(37)
        self.path = path

    def __getitem__(self, index: int) -> Any:
        with self.path.open("a") as file:
            file.write(f"{index}\n")
        return super().__getitem__(index)


# What fails


class Broken(Drawing):
    """Example 20 fails."""

    def __getitem__(self, index: int) -> Any:
        if index == 20:
            raise KeyError("lost")
        return super().__getitem__(index)


class Lying(Drawing):
    """Has 20 examples, and says that it has 37."""

    def __getitem__(self, index: int) -> Any:
        return [super(Lying, self).__getitem__(i) for i in range(20)][index]


class Changing(Drawing):
    """Example 20 is larger than the others."""

    def __getitem__(self, index: int) -> Any:
        X, y = super().__getitem__(index)
        return (torch.cat([X, X]), y) if index == 20 else (X, y)


@pytest.mark.parametrize("loading", LOADINGS[:2], ids=["itself", "loader worker"])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Broken, "example 20 could not be read: Broken raised KeyError: 'lost'"),
        (Lying, r"example \d+ could not be read: Lying raised IndexError: .*; it says that it has 37 examples"),
        (
            Changing,
            r"the examples [\d, .]+ cannot be put into one batch: example \d+ is X \[\d+\] float32, y int, but example "
            r"\d+ is X \[\d+\] float32, y int",
        ),
    ],
)
def test_what_is_wrong_with_an_example_is_said(kind: type[Any], message: str, loading: Loading | None) -> None:
    with pytest.raises(DataError, match=rf"fit: epoch 0, step \d: {message}") as caught:
        make().fit(kind(37), loading=loading)
    assert "in __getitem__" in str(caught.getrepr(chain=True)) or "collate" in str(caught.getrepr(chain=True))
    for method in (make().evaluate, make().predict):
        with pytest.raises(DataError, match=rf"{method.__name__}: epoch 0, step \d: {message}"):
            method(kind(37), loading=loading)


def test_a_data_set_that_fails_many_at_once_is_named() -> None:
    class Many(Drawing):
        def batch(self, indices: torch.Tensor) -> Any:
            raise OSError("gone")

    with pytest.raises(DataError, match=r"fit: epoch 0, step 0: the examples \d+, .*Many raised OSError: gone"):
        make().fit(Many(37))


class Dying(Drawing):
    """Reading example 20 ends the process that reads."""

    def __init__(self, how: Callable[[], object]) -> None:
        super().__init__(37)
        self.how = how

    def __getitem__(self, index: int) -> Any:
        if index == 20:
            self.how()
        return super().__getitem__(index)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def left() -> None:
    os._exit(3)


@pytest.mark.parametrize("start", ["fork", "forkserver"])
@pytest.mark.parametrize(("how", "said"), [(killed, "was killed by SIGKILL"), (left, "ended with exit code 3")])
def test_a_loader_worker_that_dies_is_named(how: Callable[[], object], said: str, start: Any) -> None:
    begin = time.monotonic()
    with pytest.raises(LoaderDied, match=rf"rank 0: loader worker \d of 2 \(process \d+\) {said}") as caught:
        make().fit(Dying(how), loading=Loading(2, start=start))
    assert caught.value.rank == 0
    assert time.monotonic() - begin < 30


@pytest.mark.dist
def test_a_loader_worker_that_is_killed_ends_the_job_and_is_named() -> None:
    def run() -> None:
        rank = current_world().rank
        make().fit(Dying(killed) if rank == 1 else Drawing(37), 9, loading=Loading(1))

    with pytest.raises(
        LoaderDied, match=r"rank 1: loader worker 0 of 1 \(process \d+\) was killed by SIGKILL"
    ) as caught:
        launch(run, devices="cpu:2")
    assert caught.value.rank == 1


class Hanging(Drawing):
    def __getitem__(self, index: int) -> Any:
        if index == 20:
            threading.Event().wait()
        return super().__getitem__(index)


def test_one_that_hangs_is_given_up() -> None:
    message = r"rank 0 has waited 0\.5 s for its 1 loader workers to read one minibatch"
    with pytest.raises(DataError, match=message):
        make().fit(Hanging(37), loading=Loading(1, timeout_s=0.5))


def test_one_that_is_killed_after_the_loader_has_ended_raises_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_GRACE_S", 0.0)
    before = {child.pid for child in own_children()}
    with pytest.raises(DataError, match="rank 0 has waited"):
        make().fit(Hanging(37), loading=Loading(2, timeout_s=0.5))
    wait_until(lambda: all(is_gone(child.pid) for child in own_children() if child.pid not in before), within_s=20)


_SCRIPT = """
import sys, threading, time
from tests.trainer.test_loader import Hanging, make
from samegrad.trainer import Loading

class Told(Hanging):
    def __getitem__(self, index):
        if index == 20:
            print("at work", flush=True)
        return super().__getitem__(index)

class SlowToStart(Hanging):
    def __setstate__(self, state):
        print("at work", flush=True)
        time.sleep(2)
        self.__dict__.update(state)

if __name__ == "__main__":
    dataset = SlowToStart(37) if "early" in sys.argv else Told(37)
    make().fit(dataset, loading=Loading(2, start=sys.argv[1]))
"""


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """One whose name leaves room for those of sockets in it, of which all may be 107 bytes long."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.parametrize(
    "arguments",
    [["fork"], *(pytest.param(each, marks=pytest.mark.slow) for each in (["forkserver"], ["forkserver", "early"]))],
    ids=" ".join,
)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_when_a_rank_is_killed(
    arguments: list[str], number: signal.Signals, tmp_path: Path, short_folder: Path
) -> None:
    """Neither its loader workers, even if they are about to start, with what starts them, nor temporary files."""
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT, encoding="utf-8")
    temporary = short_folder
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": path}
    with subprocess.Popen([sys.executable, script, *arguments], stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"at work\n"
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 2
        process.send_signal(number)
        wait_until(lambda: all(is_gone(child.pid) for child in children), 20 if "forkserver" in arguments else 4)
    assert list(temporary.glob("pymp-*")) == []


@pytest.mark.slow
@pytest.mark.dist
def test_no_temporary_file_is_made_to_hand_tensors_over(tmp_path: Path) -> None:
    """So none can be left, whoever is killed."""

    def run() -> list[Path]:
        tempfile.tempdir = str(tmp_path)
        make().fit(Drawing(37), 2, on_step=lambda _: found.extend(tmp_path.glob("pymp-*")), loading=Loading(1))
        return found

    found: list[Path] = []
    assert launch(run, devices="cpu:2") == []
    assert not any(tmp_path.iterdir())


@pytest.mark.dist
def test_loader_workers_end_when_a_rank_fails() -> None:
    def run() -> None:
        rank = current_world().rank

        def on_step(report: Any) -> None:
            if rank == 1 and report.step == 1:
                raise ZeroDivisionError

        make().fit(Hanging(37) if rank == 0 else Drawing(37), 3, on_step=on_step, loading=Loading(1, prefetch=9))

    with pytest.raises(SamegradError):
        launch(run, devices="cpu:2")
    # What is left is looked for by the fixture.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"workers": -1}, "workers must be a whole number of at least 0; got -1"),
        ({"workers": True}, "workers must be"),
        ({"prefetch": 0}, "prefetch must be a whole number of at least 1; got 0"),
        ({"start": "spawn"}, "start must be 'fork' or 'forkserver'; got 'spawn'"),
        ({"timeout_s": 0}, "timeout_s must be a number of seconds above 0; got 0"),
        ({"timeout_s": "1"}, "timeout_s must be"),
    ],
)
def test_loading_is_checked_when_it_is_made(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"loading: {message}"):
        Loading(**fields)


def test_a_data_set_that_cannot_be_pickled_is_refused_where_it_must_be() -> None:
    data = Drawing(37)
    data.lock = threading.Lock()  # type: ignore[attr-defined]
    make().fit(data, loading=Loading(1))
    with pytest.raises(ConfigurationError, match=re.escape("Loading(start='forkserver'): the data set cannot be pick")):
        make().fit(data, loading=Loading(1, start="forkserver"))


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("epochs", [4, pytest.param(50, marks=pytest.mark.slow)])
def test_loaders_of_ones_own_beside_a_trainer_leave_its_exchange_alone(epochs: int) -> None:
    """A DataLoader with forked workers in each epoch: as they exit, they close nothing that ranks share."""

    def run(workers: int) -> str:
        trainer = make()
        X = torch.arange(96.0).view(16, 6) / 96
        data = TensorDataset(X, torch.arange(16) % 3)
        for _ in range(epochs):
            how = "fork" if workers else None
            for batch in DataLoader(data, batch_size=16, num_workers=workers, multiprocessing_context=how):
                trainer.step(*batch)
        report({"rank": trainer.world.rank})  # over the socket to the launcher
        return trainer.fingerprint()

    reports: list[dict[str, Any]] = []
    assert launch(lambda: run(2), devices="cpu:2", on_report=reports.append) == run(0)
    assert sorted(record["rank"] for record in reports) == [0, 1]


def test_resumed_in_the_middle_what_was_read_ahead_comes_again(tmp_path: Path) -> None:
    whole = fit(Drawing)
    first = fit(Drawing, Loading(2), Saving(tmp_path), stop_after=1)
    rest = fit(Drawing, Loading(1), Saving(tmp_path))
    assert first["losses"] + rest["losses"] == whole["losses"]
    assert rest["fingerprint"] == whole["fingerprint"]


@pytest.mark.dist
@pytest.mark.slow
def test_resumed_on_other_numbers_of_ranks(tmp_path: Path) -> None:
    """Of a data set and of a stream; stopped on four ranks, gone on with on three."""
    kinds: list[tuple[type[Any], Loading | None]] = [(Drawing, Loading(1)), (DrawingStream, None)]
    places = [Saving(tmp_path / "data"), Saving(tmp_path / "stream")]

    def run(stop_after: int | None) -> list[dict[str, Any]]:
        return [fit(*kind, place, stop_after) for kind, place in zip(kinds, places, strict=True)]

    first = launch(lambda: run(2), devices="cpu:4")
    rest = launch(lambda: run(None), devices="cpu:3")
    for one, other, (kind, _) in zip(first, rest, kinds, strict=True):
        whole = fit(kind)
        assert one["losses"] + other["losses"] == whole["losses"]
        assert other["fingerprint"] == whole["fingerprint"]
