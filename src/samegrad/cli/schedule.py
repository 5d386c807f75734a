"""`samegrad schedule`: draws an algorithm for a number of ranks, says what it costs, and proves it meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samegrad.cli.train import Debug
from samegrad.errors import ConfigurationError

if TYPE_CHECKING:
    from samegrad.schedules.ir import Schedule
    from samegrad.schedules.options import Options

__all__ = ["HELP", "schedule"]

HELP = (
    "Draw a way of adding up gradients, and say what it costs.\n\n"
    "Every way is proved when it is built: each rank ends with the sum of all, added in a known order.\n\n"
    "Example: samegrad schedule ring -n 4 --picture ring.png"
)


def schedule(
    name: Annotated[str | None, typer.Argument(help="The algorithm; see --list.", metavar="NAME")] = None,
    ranks: Annotated[int, typer.Option("--ranks", "-n", help="Ranks that hold gradients.")] = 4,
    helpers: Annotated[
        int | None, typer.Option(help="More ranks, that hold none: the host, servers. By default what NAME needs.")
    ] = None,
    shards: Annotated[
        int | None, typer.Option(help="Shards of the minibatch, shared out over the ranks; one for each by default.")
    ] = None,
    collective: Annotated[
        str, typer.Option(help="all-reduce, reduce-scatter, all-gather, reduce or broadcast.", metavar="NAME")
    ] = "all-reduce",
    groups: Annotated[
        str | None,
        typer.Option(help="hierarchical: ranks of each group, as 4,4; groups of groups after a slash, as 2,2,2,2/2,2."),
    ] = None,
    ways: Annotated[
        str | None,
        typer.Option(help="hierarchical: the way within groups, and between them, as sharded,binomial-tree."),
    ] = None,
    share: Annotated[
        str | None, typer.Option(help="servers: who serves, 'servers' only or 'all', the workers too.")
    ] = None,
    order: Annotated[
        list[str] | None, typer.Option(help="rings: ranks in the order of a ring, as 0,2,1,3; once for each ring.")
    ] = None,
    speeds: Annotated[str | None, typer.Option(help="rings: relative sizes of what each carries, as 2,1.")] = None,
    pieces: Annotated[int, typer.Option(help="Cut the buffer into pieces that follow each other.")] = 1,
    read: Annotated[Path | None, typer.Option(help="Take a schedule that --json wrote.", metavar="FILE")] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw it to this file: .png, .svg or .pdf.", metavar="FILE")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the schedule as JSON, nothing else.", metavar="")
    ] = False,
    list_all: Annotated[bool, typer.Option("--list", help="List the algorithms.", metavar="")] = False,
    debug: Debug = False,
) -> None:
    from samegrad.cli.schedule_display import list_algorithms, show_schedule

    if list_all:
        list_algorithms()
        return
    if read is not None:
        made = _read(read)
    elif name is None:
        raise ConfigurationError("schedule: which algorithm? Name one; --list lists them")
    else:
        from samegrad.schedules.options import Options

        options = Options(
            groups=None if groups is None else tuple(_numbers("--groups", level) for level in groups.split("/")),
            ways=None if ways is None else tuple(ways.split(",")),
            share=share,
            orders=None if not order else tuple(_numbers("--order", each) for each in order),
            speeds=None if speeds is None else _numbers("--speeds", speeds),
        )
        made = _build(name, ranks, helpers, shards, collective, options, pieces)
    if picture is not None:
        from samegrad.schedules.picture import save_picture

        save_picture(made, picture)
    if as_json:
        from samegrad.schedules.files import to_json

        print(to_json(made), end="")
    else:
        show_schedule(made, picture)


def _build(
    name: str, ranks: int, helpers: int | None, shards: int | None, collective: str, options: Options, pieces: int
) -> Schedule:
    from samegrad.schedules.catalog import algorithm, build, build_for
    from samegrad.schedules.compose import pipelined
    from samegrad.schedules.cut import MOST_LEAVES, Cut
    from samegrad.shards import shares

    if shards is None:
        made = build(name, ranks, helpers, collective, options)
    else:
        if shards > MOST_LEAVES:
            raise ConfigurationError(f"--shards {shards}: a minibatch is cut into at most {MOST_LEAVES} shards")
        more = algorithm(name).helpers if helpers is None else helpers
        made = build_for(name, Cut.of(shares(shards, ranks), shards, more), collective, options)
    return made if pieces == 1 else pipelined(made, pieces)


def _read(path: Path) -> Schedule:
    from samegrad.errors import DataMissing
    from samegrad.schedules.files import from_json

    try:
        return from_json(path.read_text(encoding="utf-8", errors="replace"), str(path))
    except OSError as error:
        raise DataMissing(f"--read {path}: could not be read: {error.strerror or error}") from error


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise ConfigurationError(f"{option}: expected whole numbers with commas, as 2,2; got {text!r}") from None
