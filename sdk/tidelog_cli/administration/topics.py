"""``tidelog topic`` commands that create, list, describe, alter and delete topics."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog_cli.clients import administer
from tidelog_cli.failures import UsageError
from tidelog_cli.named_arguments import Topic, Topics
from tidelog_cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json, parse_settings
from tidelog_cli.output import counted, print_documents, print_json, print_rows, print_table

if TYPE_CHECKING:
    from tidelog.admin import Admin
    from tidelog.administering.results import TopicDescription

ConfigPairs = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="NAME=VALUE", help="Setting to change; may be repeated."),
]

DeletedConfigs = Annotated[
    list[str] | None,
    typer.Option(
        "--delete-config", metavar="NAME", help="Setting to reset to its default; may be repeated."
    ),
]


def create(
    topic: Topic,
    *,
    partitions: Annotated[
        int | None,
        typer.Option(min=1, help="Number of partitions; the cluster's default by default."),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(min=1, help="Number of replicas; the cluster's default by default."),
    ] = None,
    config: ConfigPairs = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Do nothing if the topic exists.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Create TOPIC."""
    configs = parse_settings("--config", config or ())

    async def run(admin: Admin) -> dict[str, Any]:
        from tidelog.errors import TopicAlreadyExists

        is_new = True
        try:
            await admin.create_topic(
                topic,
                partition_count=partitions or -1,
                replication_factor=replication_factor or -1,
                configs=configs,
            )
        except TopicAlreadyExists:
            if not if_not_exists:
                raise
            is_new = False
        found = (await admin.describe_topics([topic]))[topic]
        return {
            "topic": topic,
            "topic_id": str(found.topic_id),
            "partitions": len(found.partitions),
            "created": is_new,
        }

    created = administer(bootstrap, run)
    if json:
        print_json(created)
    elif created["created"]:
        print(f"topic {topic} created, {counted(created['partitions'], 'partition')}")
    else:
        print(f"topic {topic} exists already, {counted(created['partitions'], 'partition')}")


def list_(
    *,
    internal: Annotated[bool, typer.Option("--internal", help="Include internal topics.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List the topics."""

    async def run(admin: Admin) -> list[dict[str, Any]]:
        return [
            {
                "topic": found.name,
                "partitions": found.partition_count,
                "topic_id": str(found.topic_id),
                "internal": found.is_internal,
            }
            for found in await admin.list_topics(include_internal=internal)
        ]

    print_rows(administer(bootstrap, run), ("topic", "partitions", "topic id"), is_json=json)


def describe(
    topics: Topics,
    *,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show partitions, leaders, offsets and changed settings.

    Offsets are the first record's, and the one after the last record that consumers may read.
    """

    async def run(admin: Admin) -> list[dict[str, Any]]:
        found = await admin.describe_topics(topics)
        return [await _describe(admin, description) for description in found.values()]

    print_documents(administer(bootstrap, run), _show, is_json=json)


def alter(
    topic: Topic,
    *,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="New, higher number of partitions.")
    ] = None,
    config: ConfigPairs = None,
    delete_config: DeletedConfigs = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Change the settings of TOPIC, or add partitions."""
    configs, deleted = parse_settings("--config", config or ()), delete_config or []
    if not configs and not deleted and partitions is None:
        raise UsageError("nothing to change: give --partitions, --config or --delete-config")

    async def run(admin: Admin) -> None:
        if configs or deleted:
            await admin.alter_configs("topic", topic, set=configs, delete=deleted)
        if partitions is not None:
            await admin.create_partitions({topic: partitions})

    administer(bootstrap, run)
    print(f"topic {topic} altered")


def delete(
    topics: Topics,
    *,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Ignore topics that do not exist.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete topics and all their records, tiered ones too. Does not ask for confirmation."""

    async def run(admin: Admin) -> list[str]:
        wanted = topics
        if if_exists:
            known = {found.name for found in await admin.list_topics(include_internal=True)}
            wanted = [name for name in topics if name in known]
        if wanted:
            await admin.delete_topics(wanted)
        return wanted

    for name in administer(bootstrap, run):
        print(f"topic {name} deleted")


async def _describe(admin: Admin, topic: TopicDescription) -> dict[str, Any]:
    configs = await admin.describe_configs("topic", topic.name)
    led = [(topic.name, p.partition) for p in topic.partitions if p.leader >= 0]
    starts, ends = await asyncio.gather(
        admin.list_offsets(dict.fromkeys(led, "earliest")),
        admin.list_offsets(dict.fromkeys(led, "latest")),
    )
    start_offsets = {partition.partition: at.offset for partition, at in starts.items()}
    end_offsets = {partition.partition: at.offset for partition, at in ends.items()}
    return {
        "topic": topic.name,
        "topic_id": str(topic.topic_id),
        "internal": topic.is_internal,
        "configs": {
            name: entry.value
            for name, entry in sorted(configs.items())
            if entry.source == "dynamic_topic"
        },
        "partitions": [
            {
                "partition": p.partition,
                "leader": p.leader if p.leader >= 0 else None,
                "leader_epoch": p.leader_epoch,
                "replicas": list(p.replicas),
                "isr": list(p.isr),
                "start_offset": start_offsets.get(p.partition),
                "end_offset": end_offsets.get(p.partition),
            }
            for p in topic.partitions
        ],
    }


def _show(document: dict[str, Any]) -> None:
    configs = " ".join(f"{name}={value}" for name, value in document["configs"].items())
    print(f"topic {document['topic']}, id {document['topic_id']}")
    print(f"settings: {configs or 'all by default'}")
    rows = document["partitions"]
    print_table(
        ("partition", "leader", "epoch", "replicas", "in sync", "start", "end"),
        [
            (
                row["partition"],
                row["leader"],
                row["leader_epoch"],
                ",".join(map(str, row["replicas"])),
                ",".join(map(str, row["isr"])),
                row["start_offset"],
                row["end_offset"],
            )
            for row in rows
        ],
    )
