"""The files of an earlier run go aside, whole."""

from __future__ import annotations

from pathlib import Path

from samegrad.trainer.earlier_run import set_aside

FILES = ["metrics.jsonl", "report.json", "report.html", "curves.png", "checkpoint-8.json", "checkpoint-8.safetensors"]


def fill(folder: Path, text: str) -> None:
    for name in FILES:
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "tensorboard").mkdir()
    (folder / "tensorboard" / "events").write_text(text, encoding="utf-8")


def test_every_run_has_a_folder_of_its_own_and_foreign_files_stay(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("mine", encoding="utf-8")
    (tmp_path / "earlier-notes").mkdir()
    assert set_aside(tmp_path) is None
    for number in (1, 2, 3):
        fill(tmp_path, f"run {number}")
        aside = set_aside(tmp_path)
        assert aside == tmp_path / f"earlier-{number}"
        assert set_aside(tmp_path) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("earlier-1", "earlier-2", "earlier-3", "earlier-notes", "train.log")
    ]
    for number in (1, 2, 3):
        found = {path: path.read_text(encoding="utf-8") for path in (tmp_path / f"earlier-{number}").rglob("*.*")}
        assert sorted(path.name for path in found) == sorted(FILES)
        assert set(found.values()) == {f"run {number}"}
