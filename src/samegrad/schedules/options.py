"""What some algorithms can be told besides the cut."""

from __future__ import annotations

from dataclasses import dataclass, fields

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """Each field is for the algorithms that name it; the others refuse it.

    groups: sizes of the groups of ranks, hosts say, in the order of the ranks; then of the groups of those, racks say,
        and so on: ((2, 2, 2, 2), (2, 2)) is two racks of two hosts of two ranks. For `hierarchical`.
    ways: the ways within the innermost groups, within the next ones, ..., between the outermost. For `hierarchical`.
    share: "servers": the ranks without leaves serve; "all": the workers serve a part, too, such that every link is
        equally busy. For `servers`.
    orders: the ranks in the order of each ring. For `rings` and `two-way-rings`.
    speeds: relative sizes of what each ring carries, whole numbers. For `rings` and `two-way-rings`.
    """

    groups: tuple[tuple[int, ...], ...] | None = None
    ways: tuple[str, ...] | None = None
    share: str | None = None
    orders: tuple[tuple[int, ...], ...] | None = None
    speeds: tuple[int, ...] | None = None

    def given(self) -> list[str]:
        """The names of the fields that are set."""
        return [field.name for field in fields(self) if getattr(self, field.name) is not None]
