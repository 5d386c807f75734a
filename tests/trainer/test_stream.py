"""Iterable data sets: no length, every rank the same stream, and the position within it."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.loading_cases import Drawing, DrawingStream, fit, make
from torch.utils.data import IterableDataset, TensorDataset

from samegrad.callbacks import StepReport
from samegrad.errors import ConfigurationError, DataError
from samegrad.parallel import current_world
from samegrad.recipe import Recipe
from samegrad.trainer import Loading, Saving, loader
from samegrad.trainer.feed import Feed


class Recorded(IterableDataset[Any]):
    """The examples of a data set, one after the other; notes which were given, and that nobody asks for a length."""

    def __init__(self, examples: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.data = TensorDataset(torch.randn(examples, 6, generator=generator), torch.arange(examples) % 3)
        self.given: list[int] = []

    def __len__(self) -> int:
        raise AssertionError("asked for a length")

    def __iter__(self) -> Iterator[Any]:
        for index in range(len(self.data)):
            self.given.append(index)
            yield self.data[index]


@pytest.mark.parametrize("examples", [1, 2, 15, 16, 17, 32, 37])
def test_minibatches_are_the_next_examples_of_the_stream(examples: int) -> None:
    """With the result of the same examples as a map-style data set that is not shuffled."""
    stream = Recorded(examples)
    steps: list[StepReport] = []
    trainer = make()
    reports = trainer.fit(stream, 2, on_step=steps.append, validate=stream)
    assert [report.examples for report in reports] == [examples] * 2
    sizes = [16] * (examples // 16) + [examples % 16] * (examples % 16 > 0)
    assert [(step.examples, step.steps) for step in steps] == [(size, None) for size in sizes * 2]
    assert stream.given == list(range(examples)) * 4
    assert trainer.predict(stream).shape == (examples, 3)


def test_the_result_is_that_of_the_same_examples_in_order() -> None:
    stream = Recorded(37)
    by_stream, by_index = make(), make(shuffle=False)
    found = [trainer.fit(data, 2, validate=data) for trainer, data in ((by_stream, stream), (by_index, stream.data))]
    assert by_stream.fingerprint() == by_index.fingerprint()
    assert [report.metrics for report in found[0]] == [report.metrics for report in found[1]]
    assert torch.equal(by_stream.predict(stream), by_index.predict(stream.data))


def test_what_a_stream_draws_depends_on_seed_and_epoch() -> None:
    first, again = fit(DrawingStream), fit(DrawingStream)
    assert first == again
    assert len(set(first["losses"])) == 6


@pytest.mark.parametrize("stop_after", [1, 2, 3, 4])
@pytest.mark.parametrize("loading", [None, Loading(1)], ids=["itself", "loader worker"])
def test_resumed_in_the_middle_it_goes_on_where_it_was(tmp_path: Path, stop_after: int, loading: Loading) -> None:
    """What was read ahead, but not trained on, comes again; also at the end of an epoch."""
    whole = fit(DrawingStream)
    first = fit(DrawingStream, loading, Saving(tmp_path), stop_after)
    rest = fit(DrawingStream, loading, Saving(tmp_path))
    assert first["losses"] + rest["losses"] == whole["losses"]
    assert rest["fingerprint"] == whole["fingerprint"]
    assert rest["metrics"] == whole["metrics"][-len(rest["metrics"]) :]


def test_saved_every_few_steps_as_a_map_style_data_set_is(tmp_path: Path) -> None:
    saved: list[int] = []
    make().fit(
        Recorded(48), 2, saving=Saving(tmp_path, every=3, keep=9), on_save=lambda report: saved.append(report.steps)
    )
    assert saved == [3, 6]  # the ends of the epochs, once each


def _group_after(dataset: Any, skip: int, timeout_s: float) -> Any:
    """The group that follows `skip` examples, read by a loader worker."""
    recipe, world = Recipe(batch_size=16, shards=1), current_world()
    loading = Loading(1, timeout_s=timeout_s)
    with Feed(dataset, recipe, world, world.device, 16, _all, "test", loading) as feed:
        return next(feed.in_stream(0, skip // 16, skip)).get(0)


def _all(_: int, examples: int) -> dict[int, range]:
    return {0: range(examples)}


@pytest.mark.parametrize("skip", [0, 1, 16, 17, 320])
def test_leaving_examples_out_may_take_longer_than_a_minibatch(monkeypatch: pytest.MonkeyPatch, skip: int) -> None:
    monkeypatch.setattr(loader, "_POLL_S", 0.05)

    class Slow(Recorded):
        def __iter__(self) -> Iterator[Any]:
            for index in range(len(self.data)):
                threading.Event().wait(0.004)
                yield self.data[index][0], index

    _, y = _group_after(Slow(320 + 16), skip, timeout_s=0.8)
    assert y.tolist() == list(range(skip, skip + 16))


def test_but_one_that_hangs_meanwhile_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "_POLL_S", 0.05)

    class Hanging(Recorded):
        def __iter__(self) -> Iterator[Any]:
            yield from itertools.islice(super().__iter__(), 40)
            threading.Event().wait()

    with pytest.raises(DataError, match=r"rank 0 has waited 0\.5 s for its 1 loader workers"):
        _group_after(Hanging(320), 320, timeout_s=0.5)


def test_another_or_a_shorter_stream_is_refused_when_resuming(tmp_path: Path) -> None:
    fit(DrawingStream, saving=Saving(tmp_path), stop_after=2)
    trainer = make()
    trainer.resume(tmp_path)
    with pytest.raises(ConfigurationError, match="begun with a data set of unknown length; this one has 37 examples"):
        trainer.fit(Drawing(37))
    with pytest.raises(DataError, match=r"37 examples were trained on .* before, but .* ends after 20"):
        trainer.fit(DrawingStream(20))
    (tmp_path / "map").mkdir()
    fit(Drawing, saving=Saving(tmp_path / "map"), stop_after=2)
    trainer.resume(tmp_path / "map")
    with pytest.raises(ConfigurationError, match="data set of 37 examples; this one has unknown length"):
        trainer.fit(DrawingStream(37))


def test_a_generator_serves_for_one_epoch() -> None:
    def generated() -> Iterator[Any]:
        return iter(Recorded(20))

    make().fit(generated())
    with pytest.raises(ConfigurationError, match="no examples in epoch 1; can it be gone through only once"):
        make().fit(generated(), 2)


@pytest.mark.parametrize("loading", [None, Loading(1)], ids=["itself", "loader worker"])
def test_an_example_that_cannot_be_read_is_named(loading: Loading | None) -> None:
    class Broken(Recorded):
        def __iter__(self) -> Iterator[Any]:
            yield from itertools.islice(super().__iter__(), 21)
            raise KeyError("lost")

    message = "fit: epoch 0, step 1: example 21 of the stream could not be read: Broken raised KeyError: 'lost'"
    with pytest.raises(DataError, match=message):
        make().fit(Broken(37), loading=loading)

    class NoBegin(Recorded):
        def __iter__(self) -> Iterator[Any]:
            raise OSError("no connection")

    with pytest.raises(DataError, match="evaluate: epoch 0, step 0: the stream could not be begun: NoBegin raised OSE"):
        make().evaluate(NoBegin(3), loading=loading)


def test_an_endless_stream_is_read_as_far_as_it_is_trained_on() -> None:
    counts: Counter[str] = Counter()

    class Endless(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            while True:
                counts["given"] += 1
                yield torch.ones(6), 1

    trainer = make()
    for loading in (None, Loading(1)):
        counts.clear()
        trainer.fit(Endless(), on_step=lambda report: trainer.stop() if report.step == 9 else None, loading=loading)
        assert trainer.stopped
        assert counts["given"] == (11 * 16 + 1 if loading is None else 0)
        trainer.epoch += 1
