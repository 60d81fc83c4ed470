"""``tidelog group`` commands that list, describe and delete groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog_cli.clients import administer
from tidelog_cli.completion import complete_group
from tidelog_cli.named_arguments import Groups
from tidelog_cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from tidelog_cli.output import counted, print_documents, print_rows, print_table

if TYPE_CHECKING:
    from tidelog.admin import Admin
    from tidelog.administering.results import GroupDescription, GroupMember, PartitionLag
    from tidelog.consuming.records import OffsetAndMetadata
    from tidelog_core.model import TopicPartition

SHARE = "share"  # a group's type
# The columns of a group's description, and a partition's field for each.
COLUMNS = {
    "topic": "topic",
    "partition": "partition",
    "committed": "committed_offset",
    "end": "end_offset",
    "lag": "lag",
    "seconds": "lag_seconds",
    "member": "member_id",
    "host": "host",
}
SHARE_COLUMNS = {
    "topic": "topic",
    "partition": "partition",
    "start": "start_offset",
    "end": "end_offset",
    "lag": "lag",
    "seconds": "lag_seconds",
    "members": "member_count",
}


def list_(
    *,
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STATE", help="Only groups in this state, such as Empty; may be repeated."
        ),
    ] = None,
    type_: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="Only this type: classic, consumer or share; may be repeated.",
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List the groups."""

    async def run(admin: Admin) -> list[dict[str, Any]]:
        return [
            {
                "group": g.group_id,
                "state": g.state,
                "type": g.type,
                "protocol_type": g.protocol_type,
            }
            for g in await admin.list_groups(states=state or (), types=type_ or ())
        ]

    columns = ("group", "state", "type", "protocol type")
    print_rows(administer(bootstrap, run), columns, is_json=json)


def describe(
    groups: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[GROUP]...",
            help="Only these groups; all by default.",
            autocompletion=complete_group,
        ),
    ] = None,
    *,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show each group's offsets, lag and members.

    Lag is in offsets, and in seconds: the age of the next record to read. A share group's
    offset is its first record that is not done; records done after it count as lag.
    """

    async def run(admin: Admin) -> list[dict[str, Any]]:
        names = groups or [listed.group_id for listed in await admin.list_groups()]
        described = await admin.describe_groups(names)
        return [await _describe(admin, group) for group in described.values()]

    print_documents(administer(bootstrap, run), _show, is_json=json)


def delete(
    groups: Groups,
    *,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Ignore groups that do not exist.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete groups without members, and their offsets. Does not ask for confirmation."""

    async def run(admin: Admin) -> list[str]:
        wanted = groups
        if if_exists:
            known = {listed.group_id for listed in await admin.list_groups()}
            wanted = [name for name in groups if name in known]
        await admin.delete_groups(wanted)
        return wanted

    for name in administer(bootstrap, run):
        print(f"group {name} deleted")


async def _describe(admin: Admin, group: GroupDescription) -> dict[str, Any]:
    readers: dict[TopicPartition, list[GroupMember]] = {}
    for member in group.members:
        for partition in member.assignment:
            readers.setdefault(partition, []).append(member)
    if group.type == SHARE:
        lags = await admin.share_group_lag(group.group_id, readers)
        rows = [_shared(p, lag, readers.get(p, [])) for p, lag in lags.items()]
    else:
        committed = await admin.list_group_offsets(group.group_id)
        lags = await admin.group_lag(group.group_id, readers)
        rows = [
            _owned(p, lag, committed.get(p), next(iter(readers.get(p, [])), None))
            for p, lag in lags.items()
        ]
    return {
        "group": group.group_id,
        "state": group.state,
        "type": group.type,
        "epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor": group.assignor or None,
        "coordinator": group.coordinator,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "host": member.client_host,
                "epoch": member.epoch,
                "partitions": len(member.assignment),
            }
            for member in group.members
        ],
        "partitions": rows,
        "lag": sum(lag.lag or 0 for lag in lags.values()),
        "lag_seconds": max(
            (s for lag in lags.values() if (s := lag.lag_seconds) is not None), default=None
        ),
    }


def _owned(
    partition: TopicPartition,
    lag: PartitionLag,
    committed: OffsetAndMetadata | None,
    owner: GroupMember | None,
) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "committed_offset": lag.committed_offset,
        "end_offset": lag.end_offset,
        "lag": lag.lag,
        "lag_seconds": lag.lag_seconds,
        "metadata": None if committed is None else committed.metadata,
        "member_id": None if owner is None else owner.member_id,
        "client_id": None if owner is None else owner.client_id,
        "host": None if owner is None else owner.client_host,
    }


def _shared(
    partition: TopicPartition, lag: PartitionLag, members: list[GroupMember]
) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "start_offset": lag.committed_offset,
        "end_offset": lag.end_offset,
        "lag": lag.lag,
        "lag_seconds": lag.lag_seconds,
        "member_count": len(members),
        "member_ids": [member.member_id for member in members],
    }


def _show(document: dict[str, Any]) -> None:
    print(
        f"group {document['group']}, {document['state']}, "
        f"{counted(len(document['members']), 'member')}, node {document['coordinator']}, "
        f"lag {document['lag']}{_seconds(document['lag_seconds'])}"
    )
    columns = SHARE_COLUMNS if document["type"] == SHARE else COLUMNS
    rows = document["partitions"]
    print_table(tuple(columns), [[row[field] for field in columns.values()] for row in rows])


def _seconds(lag_seconds: float | None) -> str:
    return "" if lag_seconds is None else f", {lag_seconds:.1f} s behind"
