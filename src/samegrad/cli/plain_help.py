"""Commands whose `--help` is listed as the flag that it is, without a type of its value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup

__all__ = ["Command", "Group"]

if TYPE_CHECKING:
    _Base = TyperCommand
else:
    _Base = object


class _PlainHelp(_Base):
    def get_help_option(self, ctx: Any) -> Any:
        """See typer."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.metavar = ""
        return option


class Command(_PlainHelp, TyperCommand):
    """A command."""


class Group(_PlainHelp, TyperGroup):
    """A group of commands."""
