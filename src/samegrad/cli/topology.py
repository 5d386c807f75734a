"""`samegrad topology`: shows what joins the devices of a machine or a cluster, and packs rings into it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from samegrad.cli.train import Debug
from samegrad.errors import ConfigurationError

__all__ = ["HELP", "topology"]

HELP = (
    "Show what joins devices, and how fast.\n\n"
    "WHAT is a file (the output of `nvidia-smi topo -m` or `rocm-smi --showtopo`, a topology of NCCL in XML, TOML, "
    "what `samegrad probe --out` writes) or the name of a machine or a cluster; see --list.\n\n"
    "Example: samegrad topology dgx-1v --rings --picture dgx-1v.png"
)


def topology(
    what: Annotated[str | None, typer.Argument(help="A file, or a name; see --list.", metavar="WHAT")] = None,
    rings: Annotated[
        bool, typer.Option("--rings", help="Pack rings into the links, and say what they carry.", metavar="")
    ] = False,
    nvlink: Annotated[
        str | None,
        typer.Option(help="For what tools print: rate of one NVLink, 25GB/s or 'NVLink 5'.", metavar="RATE"),
    ] = None,
    xgmi: Annotated[str | None, typer.Option(help="The same for one XGMI link.", metavar="RATE")] = None,
    pcie: Annotated[
        str | None, typer.Option(help="The same for PCIe connections, as 12GB/s or 'PCIe 4.0'.", metavar="RATE")
    ] = None,
    socket: Annotated[
        str | None, typer.Option(help="The same between sockets, as 10GB/s or 'UPI 2.0'.", metavar="RATE")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw it to this file: .png, .svg or .pdf.", metavar="FILE")
    ] = None,
    as_toml: Annotated[bool, typer.Option("--toml", help="Print it as TOML, nothing else.", metavar="")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON, nothing else.", metavar="")] = False,
    list_all: Annotated[
        bool, typer.Option("--list", help="List the machines and clusters, and the types of links.", metavar="")
    ] = False,
    debug: Debug = False,
) -> None:
    from samegrad.cli.topology_display import as_record, list_presets, show_topology
    from samegrad.topology import Rates, find, pack_rings

    if list_all:
        list_presets()
        return
    if what is None:
        raise ConfigurationError("topology: of what? Name a file, a machine or a cluster; --list lists these")
    if as_toml and as_json:
        raise ConfigurationError("--toml and --json: give one of them")
    rates = Rates(
        nvlink=_rate("--nvlink", nvlink),
        xgmi=_rate("--xgmi", xgmi),
        pcie=_rate("--pcie", pcie),
        socket=_rate("--socket", socket),
    )
    made = find(what, rates)
    packing = pack_rings(made) if rings else None
    if picture is not None:
        from samegrad.topology.picture import save_picture

        save_picture(made, picture)
    if as_toml:
        print(made.to_toml(), end="")
    elif as_json:
        import json

        print(json.dumps(as_record(made, packing)))
    else:
        show_topology(made, packing, picture)


def _rate(option: str, text: str | None) -> float | None:
    """The bytes/s of an option: a rate, or the name of a type of link."""
    from samegrad.topology import LINK_TYPES
    from samegrad.units import parse_rate

    if text is None:
        return None
    if text in LINK_TYPES:
        return LINK_TYPES[text].bandwidth
    try:
        rate = parse_rate(text)
    except ValueError as error:
        raise ConfigurationError(f"{option}: {error}, nor is it a type of link; see --list") from None
    if not 0 < rate < 1e18:
        raise ConfigurationError(f"{option}: a rate must be more than 0 and not absurd; got {text}")
    return rate
