"""A simulation as a timeline that Perfetto and Chrome show: a process for each rank, with a row for each rank it sends
to and each whose values it adds up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from samegrad.errors import ConfigurationError

if TYPE_CHECKING:
    from samegrad.simulator.simulation import Simulation

__all__ = ["MOST_EVENTS", "trace_of"]

MOST_EVENTS = 1_000_000


def trace_of(simulation: Simulation) -> dict[str, Any]:
    """As the JSON Object Format of the Trace Event Format: times in microseconds."""
    messages = simulation.messages
    if len(messages) > MOST_EVENTS:
        raise ConfigurationError(
            f"{simulation.algorithm}: a trace shows at most {MOST_EVENTS:,} messages; this has {len(messages):,}"
        )
    critical = {(step.number_of_round, step.source, step.target) for step in simulation.critical_path}
    ranks = len(simulation.placement)
    events: list[dict[str, Any]] = []
    rows: dict[tuple[int, int], None] = {}
    columns = (
        messages.number_of_round,
        messages.source,
        messages.target,
        messages.nbytes,
        messages.added,
        simulation.starts,
        simulation.arrivals,
        simulation.ends,
    )
    for number, source, target, nbytes, added, start, arrived, end in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        arguments = {"round": number, "bytes": nbytes, "critical": (number, source, target) in critical}

        def event(rank: int, row: int, name: str, begin: float, finish: float) -> None:
            rows[rank, row] = None
            events.append(
                {
                    "name": name,
                    "ph": "X",
                    "pid": rank,
                    "tid": row,
                    "ts": begin * 1e6,
                    "dur": (finish - begin) * 1e6,
                    "args": arguments,  # noqa: B023 - called in the same turn
                }
            )

        if source != target:
            event(source, target, f"round {number}: to rank {target}", start, arrived)
        if added and end > arrived:
            event(target, ranks + source, f"round {number}: add what rank {source} sent", arrived, end)
    names = [
        {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank} ({node})"}}
        for rank, node in enumerate(simulation.placement)
    ]
    names += [
        {
            "name": "thread_name",
            "ph": "M",
            "pid": rank,
            "tid": row,
            "args": {"name": f"to rank {row}" if row < ranks else f"adds what rank {row - ranks} sent"},
        }
        for rank, row in rows
    ]
    return {"traceEvents": names + events, "displayTimeUnit": "ms"}
