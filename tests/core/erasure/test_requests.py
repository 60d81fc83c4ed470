"""Requests that replicas erase a key, and the receipt of what they say."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from tidelog_core.config import NodeConfig, topic_config
from tidelog_core.erasure.receipt import ErasureReceipt
from tidelog_core.erasure.requests import (
    end_rewrite,
    request_rewrite,
    rewrite_progress,
)
from tidelog_core.erasure.topic import erase_key
from tidelog_core.errors import CorruptItem
from tidelog_core.metadata import records
from tidelog_core.metadata.erasures import (
    REPLACED_MAX,
    KeyErasure,
    ReplacedSegment,
    ReplicaErasure,
    key_erasure_key,
)
from tidelog_core.metadata.records import DeletedTopic
from tidelog_core.metadata.store import Item
from tidelog_core.retention.deleted_topics import clean_deleted_topic
from tidelog_core.tier_compaction.partition_tier import PartitionTier

from tests.support.tiered_partition import CLUSTER_ID, TieredPartition, tiered_partition

KEY = b"a"
DIGEST = hashlib.sha256(KEY).hexdigest()
TOPIC_ID = UUID(int=7)
SEGMENT = ReplacedSegment(0, 10, 3)
REQUEST = KeyErasure(
    topic_id=TOPIC_ID,
    partition=3,
    key_sha256=DIGEST,
    up_to=12,
    replicas=(ReplicaErasure(1, True, (SEGMENT, ReplacedSegment(10, 12, 1)), 5), ReplicaErasure(4)),
)


def item_of(request: KeyErasure, **changes: object) -> Item:
    return Item(request.item_id, 1, {**request.to_body(), **changes})  # type: ignore[dict-item]


def test_a_request_is_read_as_it_was_written() -> None:
    assert KeyErasure.from_item(item_of(REQUEST)) == REQUEST


@pytest.mark.parametrize(
    "changes",
    [
        {"partition": 4},
        {"key_sha256": "0" * 64},
        {"up_to": -2},
        {"replicas": [[1, 2, 0, []]]},
        {"replicas": [[1, 1, 0]]},
        {"replicas": [[1, 1, 0, [[0, 10]]]]},
        {"more": 1},
    ],
)
def test_a_request_that_is_damaged_is_rejected(changes: dict[str, object]) -> None:
    with pytest.raises(CorruptItem):
        KeyErasure.from_item(item_of(REQUEST, **changes))


def test_a_segment_is_named_once_and_no_more_of_them_than_fit() -> None:
    said = ReplicaErasure(1).with_replaced(ReplacedSegment(10, 20, 1)).with_replaced(SEGMENT)
    assert said.with_replaced(SEGMENT).replaced == (SEGMENT, ReplacedSegment(10, 20, 1))
    for base_offset in range(100, 100 + 10 * REPLACED_MAX, 10):
        said = said.with_replaced(ReplacedSegment(base_offset, base_offset + 10, 1))
    assert (len(said.replaced), said.unnamed_count) == (REPLACED_MAX, 2)


def untiered(partition: TieredPartition) -> PartitionTier:
    configs = {**partition.topic.configs, "remote.storage.enable": "false"}
    return dataclasses.replace(partition.tier(), config=topic_config(configs, NodeConfig()))


async def change(partition: TieredPartition, **changes: object) -> None:
    """Write into the request as a replica does."""
    item = await partition.store.get(key_erasure_key(partition.topic.topic_id, 0, DIGEST))
    assert item is not None
    request = dataclasses.replace(KeyErasure.from_item(item), **changes)  # type: ignore[arg-type]
    await partition.store.commit([records.put(request)])


async def test_who_asks_again_has_it_done_again_and_what_was_replaced_stays_named(
    tmp_path: Path,
) -> None:
    async with tiered_partition(tmp_path) as partition:
        where = partition.store, partition.topic.topic_id, 0, DIGEST
        await request_rewrite(*where)
        assert (await rewrite_progress(*where)).problems == ("no leader has taken the request up",)
        await change(partition, up_to=12, replicas=(ReplicaErasure(1, True, (SEGMENT,)),))
        assert (await rewrite_progress(*where)).problems == ()
        await request_rewrite(*where)
        await end_rewrite(*where)  # nobody has done it anew
        progress = await rewrite_progress(*where)
        assert progress.up_to is None
        assert progress.replicas == (ReplicaErasure(1, False, (SEGMENT,)),)
        await change(partition, up_to=20)
        await end_rewrite(*where)
        assert (await rewrite_progress(*where)).problems == (
            "broker 1 has not erased the key from its replica",
        )
        await change(partition, replicas=(ReplicaErasure(1, True, (SEGMENT,)),))
        await end_rewrite(*where)
        await end_rewrite(*where)
        assert await rewrite_progress(*where) == dataclasses.replace(
            progress, replicas=(), problems=()
        )


async def test_the_receipt_names_what_replicas_have_replaced_and_who_is_left(
    tmp_path: Path,
) -> None:
    async with tiered_partition(tmp_path) as partition:
        polls = 0

        async def sleep(seconds: float) -> None:
            nonlocal polls
            polls += 1
            partition.clock.now_ms += int(seconds * 1000)
            if polls == 2:
                await change(partition, up_to=12, replicas=(ReplicaErasure(1, False, (SEGMENT,)),))
            if polls == 12:
                await change(partition, up_to=12, replicas=(ReplicaErasure(1, True, (SEGMENT,)),))

        async def erase() -> ErasureReceipt:
            return await erase_key(
                [untiered(partition)], KEY, erasure_id=uuid4(), wait_seconds=4, sleep=sleep
            )

        receipt = await erase()
        (one,) = receipt.partitions
        assert one.problems == ("broker 1 has not erased the key from its replica",)
        assert (one.up_to, one.erased) == (12, ())
        receipt = await erase()
        assert receipt.is_done
        assert receipt.document()["partitions"] == [
            {
                "partition": 0,
                "is_done": True,
                "up_to_offset": 12,
                "problems": [],
                "segments_replaced": [],
                "replicas": [
                    {
                        "broker": 1,
                        "is_done": True,
                        "segments_replaced": [
                            {"base_offset": 0, "end_offset": 10, "removed_record_count": 3}
                        ],
                        "unnamed_segment_count": 0,
                    }
                ],
            }
        ]
        assert await partition.store.list("key-erasure") == []


async def test_requests_go_with_their_topic(tmp_path: Path) -> None:
    async with tiered_partition(tmp_path) as partition:
        topic = partition.topic
        await request_rewrite(partition.store, topic.topic_id, 0, DIGEST)
        await request_rewrite(partition.store, TOPIC_ID, 0, DIGEST)
        tombstone = DeletedTopic(
            topic_id=topic.topic_id, name=topic.name, partition_count=1, deleted_ms=0
        )
        await partition.store.commit(
            [records.delete(dataclasses.replace(topic, version=1)), records.put(tombstone)]
        )

        await clean_deleted_topic(
            partition.store, partition.objects, tombstone, None, cluster_id=CLUSTER_ID
        )
        (left,) = await partition.store.list("key-erasure")
        assert left.id == key_erasure_key(TOPIC_ID, 0, DIGEST)
