"""``tidelog group`` commands that change or delete committed offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog_cli.administration.groups import SHARE
from tidelog_cli.administration.offset_targets import Target, new_offset, parse_time
from tidelog_cli.clients import administer
from tidelog_cli.failures import CommandFailed, UsageError
from tidelog_cli.named_arguments import Group
from tidelog_cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from tidelog_cli.output import note, print_json, print_table
from tidelog_cli.partition_names import existing_partitions, parse_topic

if TYPE_CHECKING:
    from tidelog.admin import Admin
    from tidelog_core.model import TopicPartition

NO_MEMBERS_STATES = frozenset({"Empty", "Dead"})


def reset_offsets(
    group: Group,
    *,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC[:P,…]", help="A topic, or some of its partitions; may be repeated."
        ),
    ] = None,
    all_topics: Annotated[
        bool,
        typer.Option("--all-topics", help="All partitions that the group has committed or read."),
    ] = False,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="Move to the first record.")
    ] = False,
    to_latest: Annotated[
        bool, typer.Option("--to-latest", help="Move to the end, after the last record.")
    ] = False,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="Keep the offsets, moved into the existing range.")
    ] = False,
    to_offset: Annotated[int | None, typer.Option(min=0, help="This offset.")] = None,
    to_timestamp: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Move to this time: ms since 1970, or 2026-01-31T12:00:00Z.",
        ),
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option(help="Move by this many offsets, back if negative.")
    ] = None,
    is_executed: Annotated[
        bool,
        typer.Option("--execute/--dry-run", help="Commit, or only show the new offsets."),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Change the committed offsets of GROUP. Only shows the new offsets without --execute.

    The group must have no members. Offsets outside of a partition's range move to its nearest
    end. A share group starts at the new offset; all records from there on are unread again.
    """
    chosen = [
        *([Target("earliest")] if to_earliest else []),
        *([Target("latest")] if to_latest else []),
        *([Target("current")] if to_current else []),
        *([Target("offset", to_offset)] if to_offset is not None else []),
        *([Target("time", parse_time(to_timestamp))] if to_timestamp is not None else []),
        *([Target("shift", shift_by)] if shift_by is not None else []),
    ]
    if len(chosen) != 1:
        raise UsageError(
            "give one of --to-earliest, --to-latest, --to-current, --to-offset, --to-timestamp, "
            "--shift-by"
        )
    if bool(topic) == all_topics:
        raise UsageError("give either --topic or --all-topics")
    wanted = [parse_topic(text) for text in topic or ()]

    async def run(admin: Admin) -> list[dict[str, Any]]:
        return await _reset(admin, group, wanted, chosen[0], is_executed=is_executed)

    rows = administer(bootstrap, run)
    if json:
        print_json({"group": group, "executed": is_executed, "partitions": rows})
    else:
        columns = ("topic", "partition", "before", "after", "end", "lag")
        fields = ("topic", "partition", "before", "after", "end_offset", "lag")
        print_table(columns, [[row[name] for name in fields] for row in rows])
    if not is_executed:
        note("nothing was committed: run it with --execute to commit")


def delete_offsets(
    group: Group,
    *,
    topic: Annotated[
        list[str],
        typer.Option(
            metavar="TOPIC[:P,…]", help="A topic, or some of its partitions; may be repeated."
        ),
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete the offsets of GROUP for topics. Does not ask for confirmation.

    No member of the group may be subscribed to the topics. A share group must have no
    members, and loses the offsets of whole topics.
    """
    wanted = [parse_topic(text) for text in topic]

    async def run(admin: Admin) -> None:
        found = (await admin.describe_groups([group]))[group]
        if found.type != SHARE:
            selected = await _select(admin, group, wanted, {})
            await admin.delete_group_offsets(group, selected)
        elif any(numbers for _, numbers in wanted):
            raise UsageError("offsets of a share group are deleted by topic: name no partitions")
        else:
            await admin.delete_share_group_offsets(group, [name for name, _ in wanted])

    administer(bootstrap, run)
    for name in topic:
        print(f"group {group}: offsets of {name} deleted")


async def _reset(
    admin: Admin,
    group: str,
    wanted: list[tuple[str, tuple[int, ...]]],
    target: Target,
    *,
    is_executed: bool,
) -> list[dict[str, Any]]:
    is_share = await _type_without_members(admin, group) == SHARE
    committed = await (_share_offsets if is_share else _offsets)(admin, group)
    partitions = await _select(admin, group, wanted, committed)
    starts = await _ends(admin, partitions, "earliest")
    ends = await _ends(admin, partitions, "latest")
    found: dict[TopicPartition, int] = {}
    if target.kind == "time":
        at = await admin.list_offsets(dict.fromkeys(partitions, target.number))
        found = {p: listed.offset for p, listed in at.items() if listed.offset >= 0}
    rows: list[dict[str, Any]] = []
    moved: dict[tuple[str, int], int] = {}
    for partition in partitions:
        before = committed.get(partition)
        after = new_offset(
            target,
            committed=before,
            start=starts[partition],
            end=ends[partition],
            found=found.get(partition),
        )
        if after is None:
            raise CommandFailed(
                f"group {group!r} has no committed offset for {partition}; commit one first, "
                "or give a target other than --to-current and --shift-by"
            )
        moved[partition] = after
        rows.append(
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "before": before,
                "after": after,
                "end_offset": ends[partition],
                "lag": max(0, ends[partition] - after),
            }
        )
    if is_executed and moved:
        if is_share:
            await admin.alter_share_group_offsets(group, moved)
        else:
            await admin.alter_group_offsets(group, {**moved})
    return rows


async def _type_without_members(admin: Admin, group: str) -> str | None:
    """Return the group's type, ``None`` if the group does not exist.

    Raises ``CommandFailed`` if it has members, which would continue from their own positions.
    """
    from tidelog.errors import GroupIdNotFound

    try:
        found = (await admin.describe_groups([group]))[group]
    except GroupIdNotFound:
        return None
    if found.state not in NO_MEMBERS_STATES:
        raise CommandFailed(f"group {group!r} has members ({found.state}); stop them first")
    return found.type


async def _offsets(admin: Admin, group: str) -> dict[TopicPartition, int]:
    return {p: at.offset for p, at in (await admin.list_group_offsets(group)).items()}


async def _share_offsets(admin: Admin, group: str) -> dict[TopicPartition, int]:
    known = await admin.list_share_group_offsets(group)
    return {partition: at for partition, at in known.items() if at is not None}


async def _select(
    admin: Admin,
    group: str,
    wanted: list[tuple[str, tuple[int, ...]]],
    committed: dict[TopicPartition, int],
) -> list[TopicPartition]:
    """Return the named partitions, else the committed ones that still exist."""
    if not wanted:
        known = await _existing(admin, list(committed))
        if not known:
            raise CommandFailed(f"group {group!r} has committed nothing; name topics with --topic")
        return sorted(known)
    return await existing_partitions(admin, wanted)


async def _ends(
    admin: Admin, partitions: list[TopicPartition], end: str
) -> dict[TopicPartition, int]:
    """Return one end of each existing partition."""
    known = await _existing(admin, partitions)
    spec: Any = end
    return {
        p: at.offset for p, at in (await admin.list_offsets(dict.fromkeys(known, spec))).items()
    }


async def _existing(admin: Admin, partitions: list[TopicPartition]) -> list[TopicPartition]:
    """Return the partitions whose topics still exist."""
    listed = await admin.list_topics(include_internal=True)
    counts = {topic.name: topic.partition_count for topic in listed}
    return [p for p in partitions if p.partition < counts.get(p.topic, 0)]
