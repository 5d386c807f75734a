"""What a data set says of itself and gives: its length, and as many rows as it was asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.trainer.loading_cases import make

from samegrad.errors import ConfigurationError, DataError, SamegradError
from samegrad.recipe import Recipe
from samegrad.trainer import DistributedSampler, Loading, batches
from samegrad.trainer.examples import dataset_length, fetch


class Rows:
    """40 examples, many at once: `change` more of them than were asked for, where there are 4 or more."""

    def __init__(self, change: int = 0) -> None:
        self.change = change

    def __len__(self) -> int:
        return 40

    def batch(self, indices: torch.Tensor) -> Any:
        rows = len(indices) + (self.change if len(indices) > 3 else 0)
        return torch.ones(rows, 6), torch.zeros(rows, dtype=torch.int64)


USES: dict[str, Callable[[Any, Loading | None], Any]] = {
    "fit": lambda data, loading: make().fit(data, loading=loading),
    "evaluate": lambda data, loading: make().evaluate(data, loading=loading),
    "predict": lambda data, loading: make().predict(data, loading=loading),
    "batches": lambda data, loading: list(batches(data, 16, loading=loading)),
}


@pytest.mark.parametrize("loading", [None, Loading(1)], ids=["itself", "loader worker"])
@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("use", list(USES))
def test_other_numbers_of_rows_than_were_asked_for_are_refused(use: str, change: int, loading: Loading | None) -> None:
    USES[use](Rows(), loading)
    asked = 4 if use == "fit" else 16
    named = r"(\d+, ){3}\d+" if use == "fit" else r"(\d+, ){10}\.\.\."
    message = (
        rf"^{use}: epoch 0, step 0: Rows\.batch gave {asked + change} rows for {asked} examples \({named}\): "
        rf"X \[{asked + change}, 6\] float32, y \[{asked + change}\] int64\. Each tensor must hold one row"
    )
    with pytest.raises(DataError, match=message):
        USES[use](Rows(change), loading)


@pytest.mark.parametrize(
    "batch",
    [
        (torch.ones(3, 2), torch.ones(4)),
        (torch.ones(4, 2), torch.ones(3)),
        ({"a": torch.ones(4), "b": [torch.ones(4), torch.ones(5)]}, torch.ones(4)),
        (np.ones((3, 2)), torch.ones(4)),
        (torch.ones(0, 2), torch.ones(0)),
    ],
)
def test_each_tensor_and_array_is_counted(batch: Any) -> None:
    class Given:
        def __len__(self) -> int:
            return 9

        def batch(self, indices: torch.Tensor) -> Any:
            return batch

    with pytest.raises(DataError, match=r"epoch 3: Given.batch gave \d rows for 4 examples \(5, 6, 7, 8\)"):
        fetch(Given(), torch.arange(5, 9), Recipe(), 3)


def test_what_belongs_to_no_example_is_not_counted() -> None:
    class Given:
        def __len__(self) -> int:
            return 9

        def batch(self, indices: torch.Tensor) -> Any:
            return {"x": torch.ones(len(indices)), "scale": torch.tensor(3.0), "name": "all"}, np.ones(len(indices))

    X, y = fetch(Given(), torch.arange(4), Recipe(), 0)
    assert len(X["x"]) == len(y) == 4


class Length:
    """Says `length`, or raises it."""

    def __init__(self, length: Any) -> None:
        self.length = length

    def __len__(self) -> int:
        if isinstance(self.length, Exception):
            raise self.length
        return self.length  # type: ignore[no-any-return]

    def __getitem__(self, index: int) -> Any:
        return torch.ones(6), 0


@pytest.mark.parametrize(
    ("length", "kind", "message"),
    [
        (-1, ConfigurationError, r"__len__ of the data set \(Length\) must return .* at least 1; got -1"),
        (2.5, ConfigurationError, r"__len__ of the data set \(Length\) must return .* at least 1; got 2\.5"),
        (None, ConfigurationError, r"__len__ of the data set \(Length\) must return .* at least 1; got None"),
        (0, ConfigurationError, r"the data set \(Length\) has no examples"),
        (
            OSError("gone"),
            DataError,
            "length of the data set could not be read: __len__ of Length raised OSError: gone",
        ),
        (
            TypeError("odd"),
            DataError,
            "length of the data set could not be read: __len__ of Length raised TypeError: odd",
        ),
    ],
)
def test_a_length_that_cannot_be_used_is_said(length: Any, kind: type[SamegradError], message: str) -> None:
    def sample(data: Any, _: Loading | None) -> Any:
        return DistributedSampler(data, num_replicas=1, rank=0)

    for use in (*USES.values(), sample):
        with pytest.raises(kind, match=message) as caught:
            use(Length(length), None)
        assert caught.value.__cause__ is (length if isinstance(length, Exception) else None)
    with pytest.raises(kind, match="the data set to validate on"):
        make().fit(Rows(), validate=Length(length))


def test_a_length_may_be_any_whole_number() -> None:
    assert dataset_length(Length(np.int64(7))) == 7
    assert type(dataset_length(Length(np.int64(7)))) is int
