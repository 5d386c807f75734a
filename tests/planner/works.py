"""Workloads that tests plan for."""

from __future__ import annotations

from samegrad.planner import Gradient, Workload

__all__ = ["even_workload", "one_gradient"]


def one_gradient(nbytes: int, step_s: float = 0.03, batch: int = 256) -> Workload:
    """One gradient, ready at the end of backward, which takes two thirds of the step."""
    return Workload("one gradient", (Gradient("w", nbytes, 1.0),), step_s / 3, step_s * 2 / 3, batch)


def even_workload(count: int, nbytes: int, forward_s: float = 0.08, backward_s: float = 0.16) -> Workload:
    """`count` gradients of `nbytes` bytes each, ready at even distances; 256 examples."""
    gradients = tuple(Gradient(f"w{number}", nbytes, (number + 1) / count) for number in range(count))
    return Workload("even", gradients, forward_s, backward_s, 256)
