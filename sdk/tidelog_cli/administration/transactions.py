"""``tidelog transaction`` commands that list, describe and abort transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog_cli.clients import administer
from tidelog_cli.failures import UsageError
from tidelog_cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from tidelog_cli.output import note, print_documents, print_rows, print_table
from tidelog_cli.partition_names import parse_topic

if TYPE_CHECKING:
    from tidelog.admin import Admin
    from tidelog.administering.results import TransactionDescription

_LONGEST_SECONDS = 900.0  # the default of transaction.max.timeout.ms


def list_(
    *,
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help="Only this state, such as Ongoing; may be repeated."),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="Only ids that this RE2 pattern matches completely."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List the transactional ids and the state of each one's last transaction."""

    async def run(admin: Admin) -> list[dict[str, Any]]:
        return [
            {
                "transactional_id": t.transactional_id,
                "state": t.state,
                "producer_id": t.producer_id,
            }
            for t in await admin.list_transactions(states=state or (), id_pattern=pattern)
        ]

    columns = ("transactional id", "state", "producer id")
    print_rows(administer(bootstrap, run), columns, is_json=json)


def describe(
    transactional_ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="The transactional ids.")
    ],
    *,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show the last transaction of each id: its age and its partitions."""

    async def run(admin: Admin) -> list[dict[str, Any]]:
        described = await admin.describe_transactions(transactional_ids)
        return [_document(each) for each in described.values()]

    print_documents(administer(bootstrap, run), _show, is_json=json)


def hanging(
    topics: Annotated[
        list[str], typer.Argument(metavar="TOPIC[:P,…]...", help="Topics, or their partitions.")
    ],
    *,
    silent_for: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Only those without a write for this long; by default the longest timeout.",
        ),
    ] = _LONGEST_SECONDS,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Find transactions that are open in a partition and that no coordinator will end."""
    wanted = [parse_topic(text) for text in topics]

    async def run(admin: Admin) -> list[dict[str, Any]]:
        described = await admin.describe_topics([topic for topic, _ in wanted])
        partitions = [
            (topic, number)
            for topic, numbers in wanted
            for number in numbers or [p.partition for p in described[topic].partitions]
        ]
        found = await admin.find_hanging_transactions(
            partitions, silent_for_ms=round(silent_for * 1000)
        )
        return [
            {
                "topic": each.partition.topic,
                "partition": each.partition.partition,
                "start_offset": each.producer.transaction_start_offset,
                "producer_id": each.producer.producer_id,
                "producer_epoch": each.producer.producer_epoch,
                "last_timestamp_ms": each.producer.last_timestamp_ms,
            }
            for each in found
        ]

    columns = ("topic", "partition", "start offset", "producer id", "epoch", "last timestamp")
    print_rows(administer(bootstrap, run), columns, is_json=json)


def abort(
    partition: Annotated[str, typer.Argument(metavar="TOPIC:P", help="The partition.")],
    *,
    start_offset: Annotated[
        int, typer.Option(min=0, help="Start offset of the transaction, from `hanging`.")
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Abort a hanging transaction in one partition, without its coordinator."""
    topic, numbers = parse_topic(partition)
    if len(numbers) != 1:
        raise UsageError(f"{partition!r} must name one partition, as TOPIC:P")

    async def run(admin: Admin) -> None:
        await admin.abort_transaction((topic, numbers[0]), start_offset=start_offset)

    administer(bootstrap, run)
    note(f"aborted the transaction at offset {start_offset} of {topic}-{numbers[0]}")


def _document(described: TransactionDescription) -> dict[str, Any]:
    from tidelog_core.clock import wall_clock_ms

    start_ms = described.start_time_ms
    return {
        "transactional_id": described.transactional_id,
        "state": described.state,
        "producer_id": described.producer_id,
        "producer_epoch": described.producer_epoch,
        "timeout_ms": described.timeout_ms,
        "open_for_ms": None if start_ms is None else max(0, wall_clock_ms() - start_ms),
        "coordinator": described.coordinator,
        "partitions": [{"topic": p.topic, "partition": p.partition} for p in described.partitions],
    }


def _show(document: dict[str, Any]) -> None:
    open_for = document["open_for_ms"]
    since = "" if open_for is None else f", open for {open_for / 1000:.1f} s"
    print(
        f"{document['transactional_id']}, {document['state']}{since}, "
        f"times out after {document['timeout_ms'] / 1000:g} s, "
        f"producer {document['producer_id']} epoch {document['producer_epoch']}, "
        f"node {document['coordinator']}"
    )
    rows = [(row["topic"], row["partition"]) for row in document["partitions"]]
    if rows:
        print_table(("topic", "partition"), rows)
