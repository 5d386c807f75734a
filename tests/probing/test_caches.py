"""Cache sizes from curves of latencies: made-up ones, of which the sizes are known."""

from __future__ import annotations

import pytest

from samegrad.probing.caches import levels

KIB, MIB = 1 << 10, 1 << 20


def curve(caches: dict[int, float], memory: float, growth: float) -> tuple[list[float], list[float]]:
    """Working sets, and the mean latency of random loads: what fits in a cache comes from it, the rest from below."""
    sizes: list[float] = []
    size = 4.0 * KIB
    while size <= 256 * MIB * 1.001:
        sizes.append(size)
        size *= growth
    seconds = []
    for size in sizes:
        total, covered = 0.0, 0.0
        for capacity, latency in caches.items():
            part = min(capacity, size) - covered
            if part > 0:
                total, covered = total + part * latency, covered + part
        seconds.append((total + (size - covered) * memory) / size)
    return sizes, seconds


@pytest.mark.parametrize("growth", [2.0, 2**0.5, 2**0.25])
@pytest.mark.parametrize(
    ("caches", "memory"),
    [
        ({32 * KIB: 1.4e-9, 1 * MIB: 5e-9, 32 * MIB: 14e-9}, 100e-9),
        ({48 * KIB: 1.2e-9, 2 * MIB: 4e-9, 24 * MIB: 20e-9}, 110e-9),
        ({64 * KIB: 1.0e-9, 4 * MIB: 5e-9}, 90e-9),
        ({}, 80e-9),
    ],
)
def test_steps_are_found_where_they_are(caches: dict[int, float], memory: float, growth: float) -> None:
    *found, last = levels(*curve(caches, memory, growth))
    assert [level.size for level in found] == [pytest.approx(size, rel=growth - 1 + 0.35) for size in caches]
    assert [level.seconds for level in found] == pytest.approx(list(caches.values()), rel=0.35)
    assert last.size is None
    assert last.seconds == pytest.approx(memory, rel=0.3)


def test_what_seems_slower_in_less_memory_was_disturbed() -> None:
    sizes, seconds = curve({32 * KIB: 1e-9, 1 * MIB: 5e-9}, 100e-9, 2.0)
    assert seconds[1] == 1e-9
    disturbed = [3 * each if at in (1, 6) else each for at, each in enumerate(seconds)]
    assert levels(sizes, disturbed) == levels(sizes, seconds)
