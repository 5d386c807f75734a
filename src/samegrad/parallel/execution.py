"""The settings of torch that a recipe needs on a device, and the differences between kinds of device, in one place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.utils import deterministic

from samegrad.errors import TrainingError
from samegrad.parallel.compilation import compiling
from samegrad.recipe import Recipe

__all__ = ["as_recipe_says", "on_one_thread"]


@contextlib.contextmanager
def as_recipe_says(recipe: Recipe, device: torch.device) -> Iterator[None]:
    """Computes with the recipe's threads and, where it is exact, with operations that repeat their bits.

    Everything is put back afterwards. On CUDA, and on the CPU with several threads, an operation without a
    deterministic kernel raises TrainingError. What is compiled meanwhile is compiled for the recipe, too.
    """
    threads = torch.get_num_threads()
    if threads != recipe.threads:
        torch.set_num_threads(recipe.threads)
    try:
        with contextlib.ExitStack() as settings:
            if recipe.exact and (device.type == "cuda" or recipe.threads > 1):
                settings.enter_context(_deterministic())
            if torch.is_autocast_enabled(device.type):  # the caller's; forward and loss have that of the recipe
                settings.enter_context(torch.autocast(device.type, enabled=False))
            if recipe.compile:
                settings.enter_context(compiling(recipe))
            yield
    finally:
        if threads != recipe.threads:
            torch.set_num_threads(threads)


@contextlib.contextmanager
def on_one_thread() -> Iterator[None]:
    """torch computes on the CPU with one thread within."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    was = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    filling = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # every value we read has been written
    try:
        yield
    except RuntimeError as error:
        if "does not have a deterministic implementation" not in str(error):
            raise
        raise TrainingError(
            f"the recipe is exact, but {str(error).split('.')[0]}. Replace the operation, or give up the guarantee "
            f"with Recipe(exact=False)"
        ) from error
    finally:
        torch.use_deterministic_algorithms(was[0], warn_only=was[1])
        torch.backends.cudnn.benchmark = benchmark
        deterministic.fill_uninitialized_memory = filling  # type: ignore[attr-defined]
