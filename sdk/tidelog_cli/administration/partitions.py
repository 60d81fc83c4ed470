"""``tidelog topic`` commands for partitions: their records, replicas, leaders and sizes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog_cli.administration.offset_targets import parse_time
from tidelog_cli.clients import administer
from tidelog_cli.completion import complete_topic
from tidelog_cli.failures import FAILED, CommandFailed, UsageError
from tidelog_cli.named_arguments import OnlyTopics
from tidelog_cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from tidelog_cli.output import note, print_rows
from tidelog_cli.partition_names import PARTITIONS, existing_partitions, parse_topic

if TYPE_CHECKING:
    from tidelog.admin import Admin
    from tidelog.administering.results import LogDir
    from tidelog_core.errors import TidelogError
    from tidelog_core.model import TopicPartition

Partitions = Annotated[
    list[str],
    typer.Argument(
        metavar=f"{PARTITIONS}...",
        help="Topics, or some of their partitions.",
        autocompletion=complete_topic,
    ),
]


def delete_records(
    partitions: Partitions,
    *,
    before: Annotated[
        int | None, typer.Option(min=0, metavar="OFFSET", help="Delete records below this offset.")
    ] = None,
    before_time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Delete records before this time: ms since 1970, or 2026-01-31T12:00:00Z.",
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Delete all records.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be deleted.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Delete the oldest records of partitions, tiered ones too. Does not ask for confirmation.

    Moves the log start offset; the files and objects below it are deleted soon after.
    """
    if [before is not None, before_time is not None, all_].count(True) != 1:
        raise UsageError("give one of --before, --before-time, --all")
    wanted = [parse_topic(text) for text in partitions]
    time_ms = None if before_time is None else parse_time(before_time)

    async def run(admin: Admin) -> list[dict[str, Any]]:
        chosen = await existing_partitions(admin, wanted)
        starts, ends = await _starts_and_ends(admin, chosen)
        until = {p: before if before is not None else ends[p] for p in chosen}
        if time_ms is not None:
            found = await admin.list_offsets(dict.fromkeys(chosen, time_ms))
            until = {p: at.offset if at.offset >= 0 else ends[p] for p, at in found.items()}
        for p, offset in until.items():
            if offset > ends[p]:
                raise CommandFailed(f"{p} has offsets {starts[p]} to {ends[p]}, not {offset}")
        until = {p: max(starts[p], offset) for p, offset in until.items()}
        done = until if dry_run else await admin.delete_records(dict(until.items()))
        return [
            {
                "topic": p.topic,
                "partition": p.partition,
                "start_before": starts[p],
                "start_offset": done[p],
                "deleted_offsets": done[p] - starts[p],
                "end_offset": ends[p],
            }
            for p in chosen
        ]

    rows = administer(bootstrap, run)
    columns = ("topic", "partition", "start before", "start", "deleted", "end")
    print_rows(rows, columns, is_json=json)
    if dry_run:
        note("nothing was deleted: run it without --dry-run to delete")


def reassign(
    partitions: Annotated[
        list[str] | None,
        typer.Argument(
            metavar=f"[{PARTITIONS}]...",
            help="Topics, or some of their partitions.",
            autocompletion=complete_topic,
        ),
    ] = None,
    *,
    replicas: Annotated[
        str | None,
        typer.Option(metavar="ID,ID,…", help="Nodes that are to have them; the first leads."),
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel moves under way.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Show all moves under way.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Move partitions to other nodes; the move goes on after the command.

    The new replicas copy the log, join the ISR, and then the old ones drop theirs.
    """
    if [replicas is not None, cancel, status].count(True) != 1:
        raise UsageError("give one of --replicas, --cancel, --status")
    if status == bool(partitions):
        raise UsageError("name partitions with --replicas and --cancel, and none with --status")
    if status:
        _show_moves(bootstrap, is_json=json)
        return
    target = None if replicas is None else _parse_ids(replicas)
    wanted = [parse_topic(text) for text in partitions or ()]

    async def run(admin: Admin) -> dict[TopicPartition, TidelogError | None]:
        chosen = await existing_partitions(admin, wanted)
        return await admin.alter_reassignments(dict.fromkeys(chosen, target))

    _report(administer(bootstrap, run), "cancelled" if cancel else "started", is_json=json)


def elect_leaders(
    partitions: Annotated[
        list[str] | None,
        typer.Argument(
            metavar=f"[{PARTITIONS}]...",
            help="Only these; all that need it by default.",
            autocompletion=complete_topic,
        ),
    ] = None,
    *,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean", help="Have a replica lead that is not in sync: records may be lost."
        ),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Have the preferred replicas (each partition's first) lead again."""
    if unclean and not partitions:
        raise UsageError("--unclean may lose records: name the partitions")
    wanted = None if not partitions else [parse_topic(text) for text in partitions]

    async def run(admin: Admin) -> dict[TopicPartition, TidelogError | None]:
        from tidelog.errors import ElectionNotNeeded

        chosen = None if wanted is None else await existing_partitions(admin, wanted)
        done = await admin.elect_leaders(chosen, is_unclean=unclean)
        return {p: e for p, e in done.items() if not isinstance(e, ElectionNotNeeded)}

    results = administer(bootstrap, run)
    _report(results, "elected", is_json=json)
    if not results:
        note("no election is needed")


def size(
    topics: OnlyTopics = None,
    *,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show how large topics are: offsets, those tiered, and bytes on the nodes' disks.

    Offsets count records, those removed by compaction and markers. Bytes are those of the leaders'
    logs, and of all replicas' logs.
    """

    async def run(admin: Admin) -> list[dict[str, Any]]:
        names = list(topics or ()) or [listed.name for listed in await admin.list_topics()]
        return await _sizes(admin, names)

    columns = ("topic", "partitions", "offsets", "tiered", "leaders' bytes", "all bytes")
    print_rows(administer(bootstrap, run), columns, is_json=json)


async def _sizes(admin: Admin, names: list[str]) -> list[dict[str, Any]]:
    described = await admin.describe_topics(names)
    led = {(d.name, p.partition): p.leader for d in described.values() for p in d.partitions}
    reachable = [partition for partition, leader in led.items() if leader >= 0]
    starts, ends, tiered, log_dirs = await asyncio.gather(
        admin.list_offsets(dict.fromkeys(reachable, "earliest")),
        admin.list_offsets(dict.fromkeys(reachable, "latest")),
        admin.list_offsets(dict.fromkeys(reachable, "latest-tiered")),
        admin.describe_log_dirs(),
    )
    of_leaders, of_all = _bytes_on_disks(log_dirs, led)
    offsets, in_tier = Counter[str](), Counter[str]()
    for partition, end in ends.items():
        start = starts[partition].offset
        offsets[partition.topic] += end.offset - start
        in_tier[partition.topic] += max(0, tiered[partition].offset + 1 - start)
    return [
        {
            "topic": name,
            "partitions": len(described[name].partitions),
            "offsets": offsets[name],
            "tiered_offsets": in_tier[name],
            "leader_bytes": of_leaders[name],
            "bytes": of_all[name],
        }
        for name in names
    ]


def _bytes_on_disks(
    log_dirs: list[LogDir], led: Mapping[tuple[str, int], int]
) -> tuple[Counter[str], Counter[str]]:
    of_leaders, of_all = Counter[str](), Counter[str]()
    for log_dir in log_dirs:
        for replica in log_dir.replicas:
            of_all[replica.topic] += replica.size_bytes
            if led.get((replica.topic, replica.partition)) == log_dir.node_id:
                of_leaders[replica.topic] += replica.size_bytes
    return of_leaders, of_all


async def _starts_and_ends(
    admin: Admin, partitions: list[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    starts, ends = await asyncio.gather(
        admin.list_offsets(dict.fromkeys(partitions, "earliest")),
        admin.list_offsets(dict.fromkeys(partitions, "latest")),
    )
    return (
        {partition: at.offset for partition, at in starts.items()},
        {partition: at.offset for partition, at in ends.items()},
    )


def _show_moves(bootstrap: str, *, is_json: bool) -> None:
    async def run(admin: Admin) -> list[dict[str, Any]]:
        return [
            {
                "topic": name.topic,
                "partition": name.partition,
                "replicas": list(move.replicas),
                "adding": list(move.adding),
                "removing": list(move.removing),
            }
            for name, move in sorted((await admin.list_reassignments()).items())
        ]

    rows = administer(bootstrap, run)
    if not is_json:
        rows = [
            {k: ",".join(map(str, v)) if isinstance(v, list) else v for k, v in row.items()}
            for row in rows
        ]
    columns = ("topic", "partition", "replicas", "adding", "removing")
    print_rows(rows, columns, is_json=is_json)


def _report(
    results: Mapping[TopicPartition, TidelogError | None], done: str, *, is_json: bool
) -> None:
    """Print what became of each partition; exit with 1 if one failed."""
    rows = [
        {
            "topic": name.topic,
            "partition": name.partition,
            "result": done if error is None else str(error),
        }
        for name, error in sorted(results.items())
    ]
    print_rows(rows, ("topic", "partition", "result"), is_json=is_json)
    if any(results.values()):
        raise typer.Exit(FAILED)


def _parse_ids(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise UsageError(f"--replicas {text!r} must be node ids such as 1,2,3")
    return [int(part) for part in parts]
