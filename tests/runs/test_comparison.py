from __future__ import annotations

from typing import Any

import pytest
from tests.runs.folders import records, report

from samegrad.runs import Comparison, Run
from samegrad.runs.texts import fact_text


def run(name: str, **changed: Any) -> Run:
    return Run(name, "finished", report(2, **changed), tuple(records(2)))


def test_what_all_share_and_what_differs() -> None:
    comparison = Comparison([run("a"), run("b", devices=["cpu"], lr=0.1), Run("c", "running")])
    assert comparison.common == {}  # nothing is known of the third
    comparison = Comparison([run("a"), run("b", devices=["cpu"], lr=0.1)])
    assert comparison.differing == ["devices", "lr"]
    assert comparison.common["model"] == "lenet"
    assert comparison.common["batch_size"] == "32"


def test_shares_are_no_part_of_the_recipe() -> None:
    auto = run("b", fingerprint="cd" * 32, shares="auto", shards_by_rank=[5, 3])
    given = run("c", shares=[2.0, 1.0], shards_by_rank=[6, 2])
    comparison = Comparison([run("a", shares="equal", shards_by_rank=[4, 4]), auto, given])
    texts = [fact_text(each.facts, "shares") for each in comparison.runs]
    assert texts == ["", "auto: 5 + 3 on the devices", "2,1: 6 + 2 on the devices"]
    assert "shares" in comparison.differing
    assert any(finding.startswith("Equal recipes") for finding in comparison.findings())


def test_equal_fingerprints_are_the_same_result() -> None:
    runs = [run("a"), run("b", devices=["cuda:0"]), run("c", fingerprint="cd" * 32, seed=1), Run("d", "stopped")]
    assert Comparison(runs).findings() == ["Same result, bit for bit (fingerprint abababab): a (cpu × 2), b (cuda:0)."]
    assert Comparison(runs[2:]).findings() == []


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"devices": ["cuda:0"]}, "They differ in kind of device, and the guarantee"),
        ({"torch_version": "2.12.0", "platform": "Mac"}, "They differ in torch version and platform, and"),
        ({"devices": ["cpu"]}, "Versions and kind of device are equal too: they should be the same."),
    ],
)
def test_equal_recipes_with_different_results_are_said(changed: dict[str, Any], reason: str) -> None:
    (finding,) = Comparison([run("a"), run("b", fingerprint="cd" * 32, **changed)]).findings()
    assert finding.startswith("Equal recipes, different results: a (cpu × 2), b (")
    assert reason in finding
