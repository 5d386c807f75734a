"""`samegrad show`: one run, several, some that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from matplotlib.image import imread
from tests.runs.folders import make, records, report

from samegrad.cli import main


def show(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as info:
        main(["show", *map(str, words)])
    assert isinstance(info.value.code, int)
    return info.value.code, *capsys.readouterr()


def test_one_run_is_a_list_of_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = show(capsys, make(tmp_path / "a", records(3), report(3)))
    assert (code, err) == (0, "")
    lines = [line.split(maxsplit=1) for line in out.splitlines()]
    for line in (
        ["state", "finished"],
        ["model", "lenet"],
        ["devices", "cpu × 2"],
        ["train loss", "0.6667"],
        ["accuracy", "83.3 % (best 83.3 %)"],
        ["speed", "2.00 s per epoch, 500 samples/s"],
        ["fingerprint", "ab" * 32],
    ):
        assert " ".join(line).split() in [" ".join(found).split() for found in lines]


def test_several_are_a_table_of_what_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a long path would be folded
    folders = [
        make(Path() / "[red]a", records(3), report(3)),
        make(Path() / "b", records(3), report(3, devices=["cpu"])),
        make(Path() / "c", records(2, test_loss=None, test_accuracy=None)),
    ]
    code, out, err = show(capsys, *folders)
    assert (code, err) == (0, "")
    rows = [" ".join(line.split()) for line in out.splitlines()]
    figures = "3 0.6667 83.3 % 83.3 % 2.00 s 500 abababab finished"
    facts = "lenet sample-digits cpu × 2 8 32 sgd 0.2 0 1"
    assert " ".join((str(folders[0]), facts, figures)) in rows
    unknown = "– – – – – – – – – 2 1.0000 – – 2.00 s 500 – stopped after epoch 2"
    assert f"{folders[2]} {unknown}" in rows
    assert f"Same result, bit for bit (fingerprint abababab): {folders[0]} (cpu × 2), {folders[1]} (cpu)." in out
    code, out, _ = show(capsys, *folders[:2])
    assert "devices" in out.splitlines()[0]
    assert "model" not in out.splitlines()[0]
    assert "all          model lenet, data sample-digits, shards 8, batch 32" in out


def test_folders_that_are_no_runs_are_named_and_the_others_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make(tmp_path / "a", records(3), report(3))
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"epo')
    code, out, err = show(capsys, tmp_path, folder, tmp_path / "none", folder)
    assert code == 1
    assert out.count("fingerprint") == 1
    note, first, second = err.splitlines()
    assert note == f"note: {folder / 'metrics.jsonl'}: line 4 is damaged, or cut off, and left out"
    assert first.startswith(f"error: {tmp_path}: expected the folder of a run")
    assert second.startswith(f"error: {tmp_path / 'none'}: expected the folder of a run")
    code, out, _ = show(capsys, tmp_path, "--json", "--plot", tmp_path / "a.png")
    assert (code, json.loads(out)) == (1, [])
    assert not (tmp_path / "a.png").exists()


def test_json_is_for_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = records(3)
    folders = [make(tmp_path / "a", lines, report(3)), make(tmp_path / "b", records(1))]
    code, out, err = show(capsys, *folders, "--json")
    assert (code, err) == (0, "")
    first, second = json.loads(out)
    assert {name: first[name] for name in report(3)} == report(3)
    assert (first["metrics"], first["best_test_accuracy"], first["epochs_done"]) == (lines, 5 / 6, 3)
    assert (second["state"], second["fingerprint"], second["train_loss"]) == ("stopped", None, 2.0)


@pytest.mark.parametrize("count", [1, 12])
def test_plot_and_page(count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [make(tmp_path / f"_run$ {place}", records(place + 1)) for place in range(count)]
    plot, page = tmp_path / "new" / "a.png", tmp_path / "new" / "a.html"
    code, out, err = show(capsys, *folders, "--plot", plot, "--html", page)
    assert (code, err) == (0, "")
    assert out.splitlines()[-2:] == [f"plot         {plot}", f"page         {page}"]
    assert imread(plot).shape[1] > 1000
    assert str(folders[-1]) in page.read_text(encoding="utf-8")


def test_a_plot_of_another_kind_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = show(capsys, make(tmp_path / "a", records(1)), "--plot", tmp_path / "a.txt")
    assert (code, out) == (1, "")
    assert "expected a picture, which ends in .png" in err
