"""``tidelog tier status`` shows each partition's tiered and local ranges."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import typer

from tidelog_cli.clients import opened_cluster
from tidelog_cli.named_arguments import OnlyTopics
from tidelog_cli.options import Json
from tidelog_cli.output import note, print_json, print_table
from tidelog_cli.storage.admin_api import AdminApi, AdminUrl, chosen_api
from tidelog_cli.stores import (
    DataDir,
    Metadata,
    locate_metadata,
    opened_metadata,
)

if TYPE_CHECKING:
    from tidelog_core.metadata.image.cluster_image import ClusterImage
    from tidelog_core.metadata.store import MetadataStore
    from tidelog_core.model import TopicPartition
    from tidelog_core.tier.status import TierStatus

CONNECT_SECONDS_MAX = 1.0
LISTS_AT_ONCE_MAX = 16


def status(
    context: typer.Context,
    topics: OnlyTopics = None,
    *,
    data_dir: DataDir = None,
    metadata: Metadata = None,
    admin_url: AdminUrl = None,
    json: Json = False,
) -> None:
    """Show each partition's records in the object store, and those only on nodes.

    Read from the metadata store, or with --admin-url by the admin API; nodes that answer add
    their local ranges. Ranges go from the first offset to the one after the last. The backlog
    counts offsets that are not tiered yet, including those of the active segment.
    """
    wanted = list(topics or ())
    api = chosen_api(context, admin_url, "data_dir", "metadata")
    if api is not None:
        rows = asyncio.run(_status_there(api, wanted))
    else:
        rows = asyncio.run(_status(locate_metadata(data_dir, metadata), wanted))
    if json:
        print_json(rows)
        return
    print_table(
        (
            "topic",
            "partition",
            "tiering",
            "segments",
            "bytes",
            "log start",
            "tiered",
            "local",
            "copying",
            "deleting",
            "backlog",
        ),
        [
            (
                row["topic"],
                row["partition"],
                "on" if row["is_tiered"] else "off",
                row["segments"],
                row["tiered_bytes"],
                row["log_start_offset"],
                _range(row["tiered_start"], row["tiered_end"]),
                _range(row["local_start"], row["log_end"]),
                row["copying"],
                row["deleting"],
                row["backlog"],
            )
            for row in rows
        ],
    )


async def _status(metadata_url: str, topics: list[str]) -> list[dict[str, Any]]:
    from tidelog_core.metadata.stored_cluster import select_topics
    from tidelog_core.model import TopicPartition

    async with opened_metadata(metadata_url) as (store, image):
        names = select_topics(image, topics)
        partitions = [
            TopicPartition(name, p.partition) for name in names for p in image.partitions(name)
        ]
        addresses = [(b.endpoint.host, b.endpoint.port) for b in image.brokers.values()]
        local = await _ask_nodes(addresses, partitions)
        return [
            _row(name, asdict(one), local)
            for name in names
            for one in await _statuses_of(store, image, name)
        ]


async def _status_there(api: AdminApi, topics: list[str]) -> list[dict[str, Any]]:
    """Return the rows as the admin API has them, with the local ranges of nodes that answer."""
    from tidelog_core.model import TopicPartition

    found = [
        (name, one)
        for name in api.topics(topics)
        for one in api.ask("GET", f"/topics/{quote(name)}/tier")["partitions"]
    ]
    addresses = [(b["host"], b["port"]) for b in api.ask("GET", "/brokers")["brokers"]]
    partitions = [TopicPartition(name, one["partition"]) for name, one in found]
    local = await _ask_nodes(addresses, partitions)
    return [_row(name, one, local) for name, one in found]


def _row(
    topic: str, found: dict[str, Any], local: Mapping[TopicPartition, tuple[int, int]]
) -> dict[str, Any]:
    """Return a partition's status for JSON.

    ``local`` has the leaders' local starts and log ends. The backlog counts records that are not
    tiered, including the active segment's; these three are None if they are not known.
    """
    covered = found.pop("covered_end")
    start, end = local.get((topic, found["partition"]), (None, None))  # type: ignore[call-overload]
    is_known = end is not None and found["is_tiered"]
    return {
        "topic": topic,
        **found,
        "local_start": start,
        "log_end": end,
        "backlog": max(0, end - covered) if is_known else None,
    }


async def _statuses_of(store: MetadataStore, image: ClusterImage, topic: str) -> list[TierStatus]:
    from tidelog_core.batched import batched
    from tidelog_core.errors import CorruptItem
    from tidelog_core.metadata.records import SegmentMeta, segment_collection
    from tidelog_core.tier.status import tier_status

    is_tiered = _is_tiered(image, topic)
    partitions = image.partitions(topic)
    found = []
    for some in batched(partitions, LISTS_AT_ONCE_MAX):
        lists = await asyncio.gather(
            *(store.list(segment_collection(p.topic_id, p.partition)) for p in some)
        )
        for partition, items in zip(some, lists, strict=True):
            metas = []
            for item in items:
                try:
                    metas.append(SegmentMeta.from_item(item))
                except CorruptItem as error:
                    note(str(error))
            found.append(tier_status(partition, metas, is_tiered=is_tiered))
    return found


def _is_tiered(image: ClusterImage, topic: str) -> bool:
    from tidelog_core.config import NodeConfig, topic_config
    from tidelog_core.metadata.node_config import effective_node_config

    found = image.topics[topic]
    if found.is_internal:
        return False
    node = effective_node_config(NodeConfig(), image, None)
    return topic_config(found.configs, node).remote_storage_enable


async def _ask_nodes(
    addresses: list[tuple[str, int]], partitions: list[TopicPartition]
) -> dict[TopicPartition, tuple[int, int]]:
    """Return (local start, log end) of each partition whose leader answers."""
    if not partitions:
        return {}
    listening = await _listening(addresses)
    if not listening:
        note("no node answers, so local ranges and backlogs are unknown")
        return {}
    return await _local_ranges(listening, partitions)


async def _listening(addresses: list[tuple[str, int]]) -> list[str]:
    """Return the addresses that accept connections."""

    async def probe(host: str, port: int) -> str | None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                _, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError):
            return None
        writer.close()
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    found = await asyncio.gather(*(probe(host, port) for host, port in addresses))
    return [address for address in found if address is not None]


async def _local_ranges(
    addresses: list[str], partitions: list[TopicPartition]
) -> dict[TopicPartition, tuple[int, int]]:
    from tidelog.errors import TidelogError
    from tidelog.offsets import EARLIEST_LOCAL_TIMESTAMP, LATEST_TIMESTAMP, list_offsets

    timeout_s = 10.0
    async with opened_cluster(",".join(addresses)) as cluster:
        try:
            starts = await list_offsets(
                cluster, dict.fromkeys(partitions, EARLIEST_LOCAL_TIMESTAMP), timeout_s=timeout_s
            )
            ends = await list_offsets(
                cluster, dict.fromkeys(partitions, LATEST_TIMESTAMP), timeout_s=timeout_s
            )
        except TidelogError as error:
            note(f"local ranges and backlogs are unknown: {error}")
            return {}
    return {p: (starts[p].offset, ends[p].offset) for p in partitions}


def _range(start: int | None, end: int | None) -> str | None:
    return None if start is None or end is None else f"{start}..{end}"
