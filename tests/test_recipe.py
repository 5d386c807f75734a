"""The recipe: what it accepts, that it is a value, and its way through JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from samegrad.errors import ConfigurationError
from samegrad.recipe import Recipe


def test_the_defaults_are_the_published_ones() -> None:
    """A change of a default changes the result of everyone who relies on it, so it should be seen here."""
    assert dataclasses.asdict(Recipe()) == {
        "batch_size": 256,
        "shards": 8,
        "seed": 0,
        "shuffle": True,
        "threads": 1,
        "clip_norm": None,
        "exact": True,
        "precision": "fp32",
        "compile": False,
        "consistency": "sync",
        "staleness": 0,
    }


def test_a_recipe_is_a_value() -> None:
    assert Recipe(seed=1) == Recipe(seed=1)
    assert len({Recipe(seed=1), Recipe(seed=1), Recipe(seed=2)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        Recipe().seed = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    "fields",
    [
        {"batch_size": 1, "shards": 1},
        {"batch_size": 8, "shards": 8},
        {"seed": 0},
        {"seed": 2**70},
        {"clip_norm": 1},
        {"clip_norm": 1e-9},
        {"shuffle": False, "exact": False, "threads": 64},
        {"precision": "bf16", "compile": True},
    ],
)
def test_edges_that_are_allowed(fields: dict[str, Any]) -> None:
    assert all(getattr(Recipe(**fields), name) == value for name, value in fields.items())


@pytest.mark.parametrize("name", ["batch_size", "shards", "seed", "threads"])
@pytest.mark.parametrize("value", [-1, 1.0, "8", None, True, float("nan")])
def test_what_is_no_whole_number_is_refused(name: str, value: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"recipe: {name} must be a whole number of at least \d; got"
    ) as caught:
        Recipe(**{name: value})
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("name", ["batch_size", "shards", "threads"])
def test_nothing_is_too_little(name: str) -> None:
    fields: dict[str, Any] = {name: 0}
    with pytest.raises(ConfigurationError, match=f"{name} must be a whole number of at least 1; got 0"):
        Recipe(**fields)


@pytest.mark.parametrize("value", [0, -1.0, float("inf"), float("nan"), "1", True])
def test_a_norm_that_cannot_limit_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="clip_norm must be a positive number or None"):
        Recipe(clip_norm=value)


@pytest.mark.parametrize("value", ["float32", "FP16", 16, None])
def test_a_precision_that_is_not_known_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"precision must be one of fp32, bf16, fp16; got {value!r}"):
        Recipe(precision=value)


@pytest.mark.parametrize("name", ["shuffle", "exact", "compile"])
@pytest.mark.parametrize("value", [0, 1, None, "yes"])
def test_a_switch_is_true_or_false(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} must be True or False; got {value!r}"):
        Recipe(**{name: value})


def test_a_minibatch_that_cannot_fill_its_shards_is_refused_with_both_ways_out() -> None:
    with pytest.raises(ConfigurationError, match="a minibatch of 7 examples cannot be cut into 8 shards") as caught:
        Recipe(batch_size=7)
    assert "--batch-size" in str(caught.value)
    assert "--shards" in str(caught.value)


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(),
        Recipe(32, 4, 7, False, 2, 0.5, False),
        Recipe(clip_norm=1),
        Recipe(seed=2**70),
        Recipe(precision="fp16"),
    ],
)
def test_json_gives_back_the_same_recipe(recipe: Recipe) -> None:
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


def test_json_with_an_unknown_field_is_refused_since_it_may_have_determined_the_bits() -> None:
    with pytest.raises(ConfigurationError, match="unknown fields colour, size"):
        Recipe.from_json({**Recipe().to_json(), "size": 1, "colour": 2})


def test_json_is_checked_like_any_recipe() -> None:
    with pytest.raises(ConfigurationError, match="shards must be"):
        Recipe.from_json({**Recipe().to_json(), "shards": 0})
