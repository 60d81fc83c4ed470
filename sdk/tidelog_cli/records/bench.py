"""``tidelog bench``: a short measurement of a cluster, cleaned up afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from tidelog_cli.completion import complete_topic
from tidelog_cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from tidelog_cli.output import Advance, print_json, print_table, progress

if TYPE_CHECKING:
    from tidelog_cli.records.bench_runs import Load, Measured

RECORDS_MAX = 1_000_000_000

OwnTopic = Annotated[
    str | None,
    typer.Option(
        metavar="TOPIC",
        help="An existing topic; by default one is made, and deleted afterwards.",
        autocompletion=complete_topic,
    ),
]
Records = Annotated[int, typer.Option(min=1, max=RECORDS_MAX, help="Number of records.")]
Size = Annotated[int, typer.Option(min=1, max=100_000_000, help="Bytes of each record's value.")]
Partitions = Annotated[int, typer.Option(min=1, help="Partitions of the topic that is made.")]
Replicas = Annotated[
    int | None,
    typer.Option("--replication-factor", min=1, help="Replicas of the topic that is made."),
]
Acks = Annotated[str, typer.Option(help="all, 1 or 0.")]
Compression = Annotated[str, typer.Option(help="none, gzip, snappy, lz4 or zstd.")]
Linger = Annotated[float, typer.Option("--linger-ms", min=0, help="How long batches wait.")]


def produce(
    *,
    topic: OwnTopic = None,
    records: Records = 100_000,
    size: Size = 1_000,
    partitions: Partitions = 1,
    replication_factor: Replicas = None,
    acks: Acks = "all",
    compression: Compression = "none",
    linger_ms: Linger = 5.0,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="Records a second; unlimited by default.")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Write records from one producer; latencies are from a send to its acknowledgement."""
    from tidelog_cli.records.bench_runs import Load, measure_produce

    load = Load(
        bootstrap, topic, records, size, partitions, replication_factor, acks, compression,
        linger_ms, rate,
    )  # fmt: skip
    _run(measure_produce, load, "producing", is_json=json)


def consume(
    *,
    topic: OwnTopic = None,
    records: Records = 100_000,
    size: Size = 1_000,
    partitions: Partitions = 1,
    replication_factor: Replicas = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Read records with one consumer; a topic that was made for it is filled first."""
    from tidelog_cli.records.bench_runs import Load, measure_consume

    load = Load(
        bootstrap, topic, records, size, partitions, replication_factor, "all", "none", 20.0, None
    )
    _run(measure_consume, load, "consuming", is_json=json)


def end_to_end(
    *,
    topic: OwnTopic = None,
    records: Records = 1_000,
    size: Size = 100,
    partitions: Partitions = 1,
    replication_factor: Replicas = None,
    acks: Acks = "all",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Write records one by one; latencies are from a send until a consumer has the record."""
    from tidelog_cli.records.bench_runs import Load, measure_end_to_end

    load = Load(
        bootstrap, topic, records, size, partitions, replication_factor, acks, "none", 0.0, None
    )
    _run(measure_end_to_end, load, "end to end", is_json=json)


def _run(
    measure: Callable[[Load, Advance], Awaitable[Measured]],
    load: Load,
    label: str,
    *,
    is_json: bool,
) -> None:
    async def run() -> Measured:
        with progress(label, total=load.records, unit="records") as advance:
            return await measure(load, advance)

    found = asyncio.run(run()).document()
    if is_json:
        print_json(found)
        return
    names = {
        "records": "records",
        "seconds": "seconds",
        "records_per_second": "records/s",
        "megabytes_per_second": "MB/s",
    }
    columns = [names.get(name, name.replace("_", " ")) for name in found]
    print_table(columns, [list(found.values())])
