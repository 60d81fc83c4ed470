"""Dimensions of items that are only written into the metadata store: tiered segments, brokers.

A node reads nothing of such segments and brokers but their items. So their costs can be measured
without 100,000 real segments or 1,000 real brokers.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing

from tidelog_core.batched import batched
from tidelog_core.metadata import records
from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.location import open_metadata_store
from tidelog_core.metadata.records import (
    Broker,
    BrokerLease,
    Partition,
    SegmentMeta,
    SegmentState,
    Topic,
)
from tidelog_core.metadata.store import ANY_VERSION, COMMIT_WRITES_MAX, Write
from tidelog_core.tier.planning import finished_segments, tiered_end_offset

from bench.peers.topics import PRODUCE
from bench.scaling.cluster import HOT, Cluster
from bench.scaling.workload import Latencies, produced, repeat
from tests.support.batches import batch_of
from tests.support.wire_client import frame, produce_body

SEGMENT_SIZE_BYTES = 65_536
TIERED_SETTINGS = {
    "remote.storage.enable": "true",
    "segment.bytes": str(SEGMENT_SIZE_BYTES),
    "local.retention.bytes": str(SEGMENT_SIZE_BYTES),
}
SEGMENT_RECORDS = 10
RENEW_SECONDS = 3.0  # as nodes do
SEGMENTS_AN_OPERATION = 5
_POLL_SECONDS = 0.05
_COPY_SECONDS_MAX = 60.0
_NOBODY_LISTENS = 9  # a port without a listener: connections are refused at once
_LAST_SEGMENT = """
    SELECT body FROM items WHERE collection = (
        SELECT 'segment:' || json_extract(body, '$.topic_id') || ':0' FROM items
        WHERE collection = 'topic' AND key = ?
    ) ORDER BY key DESC LIMIT 1
"""


class TieredSegments:
    """Tiered segments of the hot partition that have items but no objects.

    After each growth the local log begins at the tier's end, as after a lost disk. The workload
    is real segments of 64 KiB that are written, copied and evicted.
    """

    name = f"{SEGMENTS_AN_OPERATION} segments written, copied and evicted"

    def grow(self, cluster: Cluster, count: int) -> None:
        """Write the missing items while the node is stopped."""
        cluster.stop()
        asyncio.run(_add_segments(cluster.store_url, count))
        shutil.rmtree(cluster.folder / "node0" / f"{HOT}-0", ignore_errors=True)
        cluster.start()
        cluster.await_record()

    def close(self) -> None:
        """Nothing to release."""

    def run(self, cluster: Cluster, count: int) -> Latencies:
        """Write segments and wait until they are copied, ``count`` / 200 times."""
        batch = batch_of(*[b"x" * 1_000] * 40)  # two do not fit into a segment
        request = frame(*PRODUCE, 1, produce_body(HOT, batch), tags=b"")
        with cluster.client(cluster.await_record()) as client:

            def once() -> None:
                for _ in range(SEGMENTS_AN_OPERATION):
                    offset = produced(client, request, HOT)
                _await_copied(cluster, offset)

            return repeat(once, max(1, count // 200))


class Brokers:
    """Registered brokers without processes; a thread renews their leases.

    Their ids are below the measured node's, so it is not one of the few watchers of all leases.
    """

    def __init__(self) -> None:
        self._leases: list[BrokerLease] = []
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def grow(self, cluster: Cluster, count: int) -> None:
        """Register the missing brokers; the real node counts as one."""
        numbers = range(len(self._leases), count - 1)
        brokers = [_broker(number + 1) for number in numbers]
        leases = [
            BrokerLease(broker_id=b.broker_id, incarnation=b.incarnation, counter=1)
            for b in brokers
        ]
        writes = [records.put(lease, is_logged=False) for lease in leases]
        asyncio.run(_write(cluster.store_url, [*writes, *map(records.put, brokers)]))
        with self._lock:
            self._leases += leases
        if self._thread is None:
            self._thread = threading.Thread(target=self._renew, args=(cluster.store_url,))
            self._thread.start()

    def close(self) -> None:
        """Stop the renewals."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()

    def _renew(self, url: str) -> None:
        counter = 1
        while not self._is_over.wait(RENEW_SECONDS):
            counter += 1
            with self._lock:
                leases = list(self._leases)
            writes = [_renewal(lease, counter) for lease in leases]
            asyncio.run(_write(url, writes))


def _renewal(lease: BrokerLease, counter: int) -> Write:
    renewed = BrokerLease(broker_id=lease.broker_id, incarnation=lease.incarnation, counter=counter)
    return Write(renewed.item_id, renewed.to_body(), ANY_VERSION, is_logged=False)


def _broker(broker_id: int) -> Broker:
    return Broker(
        broker_id=broker_id,
        incarnation=uuid.uuid4(),
        endpoints=plaintext_endpoints("127.0.0.1", _NOBODY_LISTENS),
    )


async def _write(url: str, writes: Sequence[Write]) -> None:
    store = open_metadata_store(url, may_be_new=True)
    try:
        for some in batched(writes, COMMIT_WRITES_MAX):
            await store.commit(some)
    finally:
        await store.close()


async def _add_segments(url: str, count: int) -> None:
    """Extend the tier of the hot partition to ``count`` segments."""
    store = open_metadata_store(url)
    try:
        topic_item = await store.get(records.topic_key(HOT))
        assert topic_item is not None
        topic = Topic.from_item(topic_item)
        partition_item = await store.get(records.partition_key(topic.topic_id, 0))
        assert partition_item is not None
        partition = Partition.from_item(partition_item)
        items = await store.list(records.segment_collection(topic.topic_id, 0))
        known = finished_segments(SegmentMeta.from_item(item) for item in items)
        end = tiered_end_offset(known, partition.log_start_offset)
        new = _segments(partition, first_offset=end, count=count - len(known))
        writes = [records.put(segment, is_logged=False) for segment in new]
    finally:
        await store.close()
    await _write(url, writes)


def _segments(partition: Partition, *, first_offset: int, count: int) -> Iterator[SegmentMeta]:
    now_ms = time.time_ns() // 1_000_000
    for number in range(count):
        base_offset = first_offset + number * SEGMENT_RECORDS
        yield SegmentMeta(
            topic_id=partition.topic_id,
            partition=partition.partition,
            base_offset=base_offset,
            end_offset=base_offset + SEGMENT_RECORDS,
            leader_epoch=partition.leader_epoch,
            segment_id=uuid.uuid4(),
            state=SegmentState.COPY_FINISHED,
            size_bytes=SEGMENT_SIZE_BYTES,
            index_size_bytes=1_000,
            max_timestamp_ms=now_ms,
            leader_epochs=((partition.leader_epoch, first_offset),),
            chained_hash="0" * 64,
            created_ms=now_ms,
        )


def _await_copied(cluster: Cluster, offset: int) -> None:
    """Return once the tier contains the offset.

    It reads SQLite's file: requests to the node would count as its work.
    """
    deadline = time.monotonic() + _COPY_SECONDS_MAX
    with closing(sqlite3.connect(cluster.folder / "metadata.db")) as connection:
        while time.monotonic() < deadline:
            found = connection.execute(_LAST_SEGMENT, (HOT,)).fetchone()
            if found is not None:
                last = json.loads(found[0])
                is_finished = last["state"] == SegmentState.COPY_FINISHED.value
                if is_finished and last["end_offset"] >= offset:
                    return
            time.sleep(_POLL_SECONDS)
    raise TimeoutError(f"segments were not copied within {_COPY_SECONDS_MAX} s")
