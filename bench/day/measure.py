"""Measures the units of each operation, by running the product's code on counting stores.

``bench.day.operations`` has the resulting figures; a test compares the two. The stores are SQLite
and a folder. Ids are as long as real ones, and the same in every run.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

from tidelog_core.metadata import records
from tidelog_core.metadata.records import (
    BrokerLease,
    SegmentMeta,
    SegmentState,
)
from tidelog_core.metadata.stores import dynamodb_units as units
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.objects.folder import FolderObjectStore

from bench.day.measure_brokers import Brokers
from bench.day.measure_clients import Clients
from bench.day.measure_segments import Segments
from bench.day.measure_world import (
    NOW_MS,
    OFFSET_FIRST,
    RECORDS_PER_SEGMENT,
    MeasuredCluster,
    identity,
)
from bench.day.meter import MeteredObjects, MeteredStore
from bench.day.operations import Cost


def measure(folder: Path) -> dict[str, Cost]:
    """Return the cost of every operation by name. Takes a second or two."""
    return asyncio.run(_measure(folder))


def item_bytes() -> dict[str, int]:
    """Return the sizes, by kind, of items that are read many at a time."""
    segment = SegmentMeta(
        topic_id=UUID(int=7 << 96),
        partition=17,
        base_offset=OFFSET_FIRST,
        end_offset=OFFSET_FIRST + RECORDS_PER_SEGMENT,
        leader_epoch=18,
        segment_id=identity(1000),
        state=SegmentState.COPY_FINISHED,
        size_bytes=1_073_741_800,
        index_size_bytes=1_234_567,
        max_timestamp_ms=NOW_MS,
        leader_epochs=((17, OFFSET_FIRST - 5), (18, OFFSET_FIRST)),
        chained_hash="0" * 64,
        created_ms=NOW_MS,
    )
    lease = BrokerLease(broker_id=101, incarnation=identity(1), counter=100_000, version=100_000)
    key = records.partition_key(segment.topic_id, segment.partition)
    other = records.partition_key(identity(1), segment.partition)  # of another topic
    entries = [units.changelog_entry_size_bytes(keys) for keys in ([key], [key, other])]
    return {
        "segment": units.written_size_bytes(records.put(segment)),
        "lease": units.written_size_bytes(records.put(lease)),
        "changelog entry of one key": entries[0],
        "changelog entry, each further key": entries[1] - entries[0],
    }


async def _measure(folder: Path) -> dict[str, Cost]:
    store = MeteredStore(SqliteMetadataStore(folder / "metadata.db"))
    objects = MeteredObjects(FolderObjectStore(folder / "objects"), store.usage)
    try:
        world = MeasuredCluster(store, objects, folder)
        await world.found()
        brokers, clients = Brokers(world), Clients(world)
        await brokers.leases()
        await brokers.polls()
        await brokers.partition_changes()
        await Segments(world).run()
        await clients.offsets()
        await clients.transactions()
        return world.costs
    finally:
        await store.close()
        await objects.close()
