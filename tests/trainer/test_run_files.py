from __future__ import annotations

import json
from pathlib import Path

import pytest

from samegrad.errors import OutputError
from samegrad.trainer.run_files import prepare_folder, write_report


def test_the_report_is_replaced_whole(tmp_path: Path) -> None:
    for report in ({"a": 1}, {"b": [1.5, "x"]}):
        assert json.loads(write_report(tmp_path, report).read_bytes()) == report
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_folder_is_prepared(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_what_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(OutputError, match=r"--out .*file: expected a folder .* got: File exists"):
        prepare_folder(file)
    with pytest.raises(OutputError, match=r"report\.json: could not be written: File exists"):
        write_report(file, {})
