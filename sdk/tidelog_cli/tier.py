"""``tidelog tier status`` shows each partition's tiered and local ranges."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from tidelog_cli.clients import opened_cluster
from tidelog_cli.named_arguments import OnlyTopics
from tidelog_cli.options import Json
from tidelog_cli.output import note, print_json, print_table
from tidelog_cli.stores import (
    DataDir,
    Metadata,
    locate_metadata,
    opened_metadata,
)

if TYPE_CHECKING:
    from tidelog_core.metadata.endpoints import BrokerEndpoint
    from tidelog_core.metadata.image import ClusterImage
    from tidelog_core.metadata.records import SegmentMeta
    from tidelog_core.metadata.store import MetadataStore
    from tidelog_core.model import TopicPartition

CONNECT_SECONDS_MAX = 1.0
LISTS_AT_ONCE_MAX = 16


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """A partition's tiered and local ranges, ``[start, end)``; None if unknown."""

    topic: str
    partition: int
    is_tiered: bool  # remote.storage.enable
    log_start_offset: int
    segments: int  # readable ones
    tiered_bytes: int
    tiered_start: int | None  # None if nothing is tiered
    tiered_end: int | None
    copying: int  # segments with an unfinished copy
    deleting: int
    local_start: int | None  # these three from the partition's leader
    log_end: int | None
    backlog: int | None  # records that are not tiered, including the active segment's


def status(
    topics: OnlyTopics = None,
    *,
    data_dir: DataDir = None,
    metadata: Metadata = None,
    json: Json = False,
) -> None:
    """Show each partition's records in the object store, and those only on nodes.

    Read from the metadata store; nodes that answer add their local ranges. Ranges go from the
    first offset to the one after the last. The backlog counts offsets that are not tiered
    yet, including those of the active segment.
    """
    rows = asyncio.run(_status(locate_metadata(data_dir, metadata), list(topics or ())))
    if json:
        print_json([asdict(row) for row in rows])
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
                row.topic,
                row.partition,
                "on" if row.is_tiered else "off",
                row.segments,
                row.tiered_bytes,
                row.log_start_offset,
                _range(row.tiered_start, row.tiered_end),
                _range(row.local_start, row.log_end),
                row.copying,
                row.deleting,
                row.backlog,
            )
            for row in rows
        ],
    )


async def _status(metadata_url: str, topics: list[str]) -> list[PartitionStatus]:
    from tidelog_core.metadata.stored_cluster import select_topics

    async with opened_metadata(metadata_url) as (store, image):
        names = select_topics(image, topics)
        local = await _ask_nodes(image, names)
        rows = []
        for name in names:
            rows += await _statuses_of(store, image, name, local)
        return rows


async def _statuses_of(
    store: MetadataStore,
    image: ClusterImage,
    topic: str,
    local: dict[TopicPartition, tuple[int, int]],
) -> list[PartitionStatus]:
    from tidelog_core.errors import CorruptItem
    from tidelog_core.metadata.records import SegmentMeta, segment_collection

    is_tiered = _is_tiered(image, topic)
    partitions = image.partitions(topic)
    rows = []
    for at in range(0, len(partitions), LISTS_AT_ONCE_MAX):
        some = partitions[at : at + LISTS_AT_ONCE_MAX]
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
            rows.append(
                describe_partition(
                    topic,
                    partition.partition,
                    metas,
                    is_tiered=is_tiered,
                    log_start_offset=partition.log_start_offset,
                    local=local.get((topic, partition.partition)),  # type: ignore[call-overload]
                )
            )
    return rows


def describe_partition(
    topic: str,
    partition: int,
    metas: list[SegmentMeta],
    *,
    is_tiered: bool,
    log_start_offset: int,
    local: tuple[int, int] | None,
) -> PartitionStatus:
    """Return the partition's status. ``local`` is the leader's local start and log end."""
    from tidelog_core.metadata.records import SegmentState
    from tidelog_core.tier.planning import finished_segments, tiered_end_offset

    finished = finished_segments(metas)
    states = [meta.state for meta in metas]
    tiered_start = max(finished[0].base_offset, log_start_offset) if finished else None
    covered = tiered_end_offset(finished, log_start_offset)
    return PartitionStatus(
        topic=topic,
        partition=partition,
        is_tiered=is_tiered,
        log_start_offset=log_start_offset,
        segments=len(finished),
        tiered_bytes=sum(meta.size_bytes + meta.index_size_bytes for meta in finished),
        tiered_start=tiered_start,
        tiered_end=max(meta.end_offset for meta in finished) if finished else None,
        copying=states.count(SegmentState.COPY_STARTED),
        deleting=states.count(SegmentState.DELETE_STARTED),
        local_start=None if local is None else local[0],
        log_end=None if local is None else local[1],
        backlog=max(0, local[1] - covered) if local is not None and is_tiered else None,
    )


def _is_tiered(image: ClusterImage, topic: str) -> bool:
    from tidelog_core.config import NodeConfig, topic_config
    from tidelog_core.metadata.node_config import effective_node_config

    found = image.topics[topic]
    if found.is_internal:
        return False
    node = effective_node_config(NodeConfig(), image, None)
    return topic_config(found.configs, node).remote_storage_enable


async def _ask_nodes(
    image: ClusterImage, topics: list[str]
) -> dict[TopicPartition, tuple[int, int]]:
    """Return (local start, log end) of each partition whose leader answers."""
    from tidelog_core.model import TopicPartition

    addresses = await _listening(image)
    partitions = [
        TopicPartition(name, p.partition) for name in topics for p in image.partitions(name)
    ]
    if not partitions:
        return {}
    if not addresses:
        note("no node answers, so local ranges and backlogs are unknown")
        return {}
    return await _local_ranges(addresses, partitions)


async def _listening(image: ClusterImage) -> list[str]:
    """Return the addresses of registered nodes that accept connections."""

    async def probe(endpoint: BrokerEndpoint) -> str | None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                _, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        except (OSError, TimeoutError):
            return None
        writer.close()
        return str(endpoint)

    found = await asyncio.gather(*(probe(b.endpoint) for b in image.brokers.values()))
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
