from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import samegrad.data
from samegrad.data import DATA, LabelledImages, Split, load
from samegrad.errors import ConfigurationError, DataMissing


def test_the_names() -> None:
    assert list(DATA) == ["sample-digits", "fashion-mnist", "synthetic"]
    assert set(samegrad.data.__all__) == {"DATA", "LabelledImages", "Split", "load"}


def test_loading_by_name() -> None:
    split = load("synthetic")
    assert isinstance(split, Split)
    assert isinstance(split.train, LabelledImages)
    assert (len(split.train), len(split.test)) == (2048, 512)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fashion_mnist", "unknown data set 'fashion_mnist'; did you mean 'fashion-mnist'"),
        ("digits", "did you mean 'sample-digits'"),
        ("synth", "did you mean 'synthetic'"),
        ("zzz", r"unknown data set 'zzz'\. The known ones are: sample-digits, fashion-mnist, synthetic"),
    ],
)
def test_an_unknown_name_gets_the_nearest(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load(name)


def test_a_folder_is_for_data_that_has_files(tmp_path: Path) -> None:
    for name in ("sample-digits", "synthetic"):
        with pytest.raises(ConfigurationError, match=rf"'{name}' .*--data-dir {tmp_path}"):
            load(name, tmp_path)
    with pytest.raises(DataMissing, match="nowhere"):
        load("fashion-mnist", tmp_path / "nowhere")


def test_the_package_has_no_other_attributes() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        samegrad.data.nothing  # noqa: B018


def test_importing_it_is_cheap() -> None:
    code = "import sys, samegrad.data; sys.exit(any(m in sys.modules for m in ('torch', 'numpy', 'urllib.request')))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
