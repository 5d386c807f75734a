"""Fashion-MNIST: 60,000 training and 10,000 test images of clothes, 28x28 grey, 10 classes.

Xiao, Rasul and Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning Algorithms", 2017;
MIT licence. Four IDX files, read from a folder, downloaded into it first where they are missing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from samegrad.data.cache import default_cache_dir
from samegrad.data.download import Published, download_gzip
from samegrad.data.idx import format_idx, read_idx
from samegrad.errors import DataCorrupt, DataMissing

if TYPE_CHECKING:
    from samegrad.data.images import LabelledImages, Split

__all__ = ["BASE_URL", "FILES", "fashion_mnist"]

BASE_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
"""Where the authors publish the files, each as name.gz, according to the README of zalandoresearch/fashion-mnist."""

FILES: Mapping[str, Published] = {
    "train-images-idx3-ubyte": Published(
        16 + 60_000 * 28 * 28, "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"
    ),
    "train-labels-idx1-ubyte": Published(
        8 + 60_000, "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"
    ),
    "t10k-images-idx3-ubyte": Published(
        16 + 10_000 * 28 * 28, "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"
    ),
    "t10k-labels-idx1-ubyte": Published(8 + 10_000, "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
}
"""The four files; sizes and SHA-256 are of the decompressed IDX files, so they hold however a copy was compressed."""

_CLASSES = 10
_IMAGE_SIZE = (28, 28)


def fashion_mnist(
    data_dir: Path | None = None, download: bool = True, *, base_url: str = BASE_URL, timeout_s: float = 30.0
) -> Split:
    """Fashion-MNIST, or another set of 28x28 images in 10 classes that is laid out in the same four files.

    The files are looked for in `data_dir` and in its subfolder FashionMNIST/raw (torchvision's layout), plain or with
    .gz. Without `data_dir`: ~/.cache/samegrad/fashion-mnist, made if needed. With `download`, missing files are fetched
    from `base_url`, `timeout_s` seconds at most for each wait, and checked against the published SHA-256.

    What is in the folder already is checked for format, sizes, counts and labels only, so that one's own subset can be
    used; but it must be the published one where a download completes it, so that two data sets are never mixed.

    Raises `DataMissing` if `data_dir` is not a folder, or files are missing and cannot be fetched; `DataCorrupt` if a
    file is not what it should be.
    """
    from samegrad.data.images import Split

    folder = default_cache_dir() / "fashion-mnist" if data_dir is None else Path(data_dir)
    if data_dir is not None and folder.exists() and not folder.is_dir():
        raise DataMissing(
            f"--data-dir {folder}: expected a folder with the files of Fashion-MNIST, got {_kind_of(folder)}; name the "
            f"folder that it is in"
        )
    if data_dir is not None and not folder.is_dir():
        raise DataMissing(f"{folder}: expected a folder with the files of Fashion-MNIST, but there is no such folder")
    missing = [name for name in FILES if _find(folder, name) is None]
    if missing and not download:
        raise DataMissing(
            f"{folder}: expected the four files of Fashion-MNIST, plain or .gz, missing: {', '.join(missing)}; "
            f"allow the download, or get them from {base_url}"
        )
    if missing:
        _complete(folder, missing, base_url, timeout_s)
    return Split("fashion-mnist", train=_read(folder, "train"), test=_read(folder, "t10k"))


def _find(folder: Path, name: str) -> Path | None:
    for parent in (folder, folder / "FashionMNIST" / "raw"):
        for path in (parent / name, parent / f"{name}.gz"):
            if path.is_file():
                return path
            if path.exists():
                raise DataCorrupt(
                    f"{path}: expected a file of Fashion-MNIST, got {_kind_of(path)}; remove or rename it"
                )
    return None


def _kind_of(path: Path) -> str:
    if path.is_dir():
        return "a folder"
    return "a file" if path.is_file() else "a pipe, a socket or a device"


def _complete(folder: Path, missing: list[str], base_url: str, timeout_s: float) -> None:
    for name, published in FILES.items():
        path = _find(folder, name)
        if path is not None:
            got = hashlib.sha256(format_idx(read_idx(path, _ndim(name)))).hexdigest()
            if got != published.sha256:
                raise DataCorrupt(
                    f"{path}: expected the published file, with SHA-256 {published.sha256} when decompressed, got "
                    f"{got}: the files missing beside it ({', '.join(missing)}) cannot be downloaded to complete "
                    f"another data set; add its own, or remove this one"
                )
    for name in missing:
        url = f"{base_url.rstrip('/')}/{name}.gz"
        try:
            download_gzip(url, folder / f"{name}.gz", FILES[name], timeout_s)
        except DataMissing as error:
            raise DataMissing(
                f"{error}. So Fashion-MNIST is not complete in {folder}: get the files "
                f"{', '.join(f'{name}.gz' for name in FILES)} by other means, and put them there or name their folder "
                f"with --data-dir"
            ) from error


def _read(folder: Path, part: str) -> LabelledImages:
    from samegrad.data.images import LabelledImages

    names = (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
    images_path, labels_path = (_find(folder, name) or folder / name for name in names)
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if images.shape[1:] != _IMAGE_SIZE:
        raise DataCorrupt(f"{images_path}: expected images of 28x28, got {images.shape[1]}x{images.shape[2]}")
    return LabelledImages.from_numpy(images, labels, _CLASSES, source=f"{images_path} and {labels_path.name}")


def _ndim(name: str) -> int:
    return 3 if "-images-" in name else 1
