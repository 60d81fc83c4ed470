"""Erasing a key's records from a topic's whole history, and the receipt of it.

    1. a request for each partition      the leader says up to which offset; every replica lets
                                         go of what it has locally below that, or, where there
                                         is no tiering, rewrites it (``replica_erasure``)
    2. the tier is rewritten             ``erase``; where there is tiering, all below the offset
                                         is there by then
    3. the old objects are deleted       file.delete.delay.ms later
    4. the receipt is put in the bucket, and the requests that are honoured are removed

Whatever stops it, the requests stay: a replica that is down honours them when it comes back.
Running it again does what is left.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from tidelog_core.errors import TidelogError, VersionConflict
from tidelog_core.metadata import records
from tidelog_core.metadata.key_erasures import ReplicaErasure
from tidelog_core.metadata.local_erasures import LocalErasure, local_erasure_key
from tidelog_core.metadata.records import Partition
from tidelog_core.metadata.store import ABSENT, Item, KeyRange, MetadataStore, Write
from tidelog_core.metadata.update import update
from tidelog_core.rewriting.erase import (
    ErasedSegment,
    TierErasure,
    delete_replaced,
    erase_from_tier,
)
from tidelog_core.rewriting.partition_tier import PartitionTier
from tidelog_core.rewriting.replica_erasure import (
    ReplicaProgress,
    end_replica_erasure,
    replica_progress,
    request_replica_erasure,
)
from tidelog_core.rewriting.swap import PartitionClaimed
from tidelog_core.tier.keys import erasure_receipt_key
from tidelog_core.tier.lifecycle import read_segments

T = TypeVar("T")

LOOK_SECONDS = 0.5  # between two looks at what replicas have done
FORMAT_VERSION = 1

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionErasure:
    """What erasing from one partition has come to."""

    partition: int
    up_to: int | None  # records below it are erased; None: no leader has said yet
    tier: TierErasure | None  # None where ``problems`` says why, or nothing is tiered
    replicas: tuple[ReplicaErasure, ...]  # what they rewrote; none where there is tiering
    problems: tuple[str, ...]  # what is not done; empty: all is

    def document(self) -> dict[str, object]:
        """Return its part of the receipt."""
        erased: Sequence[ErasedSegment] = () if self.tier is None else self.tier.erased
        return {
            "partition": self.partition,
            "is_done": not self.problems,
            "up_to_offset": self.up_to,
            "problems": list(self.problems),
            "segments_replaced": [
                {
                    "base_offset": one.base_offset,
                    "end_offset": one.end_offset,
                    "old": [str(segment_id) for segment_id in one.old_segment_ids],
                    "new": str(one.new_segment_id),
                    "removed_offsets": list(one.removed_offsets),
                }
                for one in erased
            ],
            "replicas": [_replica_document(one) for one in self.replicas],
        }


def _replica_document(replica: ReplicaErasure) -> dict[str, object]:
    return {
        "broker": replica.broker_id,
        "is_done": replica.is_done,
        "segments_replaced": [
            {
                "base_offset": one.base_offset,
                "end_offset": one.end_offset,
                "removed_record_count": one.removed_count,
            }
            for one in replica.replaced
        ],
        "unnamed_segment_count": replica.unnamed_count,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureReceipt:
    """That a key was erased from a topic, or how far that is. It does not hold the key itself."""

    erasure_id: UUID
    topic: str
    topic_id: UUID
    key_sha256: str  # hex
    requested_ms: int
    ended_ms: int
    partitions: tuple[PartitionErasure, ...]

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return not any(partition.problems for partition in self.partitions)

    def document(self) -> dict[str, object]:
        """Return the receipt for JSON."""
        return {
            "format_version": FORMAT_VERSION,
            "kind": "erasure",
            "erasure_id": str(self.erasure_id),
            "topic": self.topic,
            "topic_id": str(self.topic_id),
            "key_sha256": self.key_sha256,
            "requested_ms": self.requested_ms,
            "ended_ms": self.ended_ms,
            "is_done": self.is_done,
            "partitions": [partition.document() for partition in self.partitions],
        }


async def erase_key(
    tiers: Sequence[PartitionTier],
    key: bytes,
    *,
    erasure_id: UUID,
    wait_seconds: float,
    sleep: Sleep = asyncio.sleep,
) -> ErasureReceipt:
    """Erase the key's records from these partitions of one topic.

    Waits at most ``wait_seconds`` for replicas, so long again for each partition that someone
    else rewrites just now, and then as long as replaced objects must stay.
    One partition's trouble is told in the receipt and stops no other. Raises what the stores
    raise where the receipt cannot be put.
    """
    first = tiers[0]
    requested_ms = first.clock_ms()
    key_sha256 = hashlib.sha256(key).hexdigest()
    for tier in tiers:
        await _request(tier, key_sha256)
    waited = 0.0
    while waited < wait_seconds and any(
        [(await _progress(tier, key_sha256)).problems for tier in tiers]
    ):
        await sleep(LOOK_SECONDS)
        waited += LOOK_SECONDS
    found = [await _erase_partition(tier, key, wait_seconds, sleep) for tier in tiers]
    receipt = ErasureReceipt(
        erasure_id=erasure_id,
        topic=first.topic.name,
        topic_id=first.topic.topic_id,
        key_sha256=key_sha256,
        requested_ms=requested_ms,
        ended_ms=first.clock_ms(),
        partitions=tuple(found),
    )
    data = json.dumps(receipt.document(), indent=2).encode() + b"\n"
    where = erasure_receipt_key(
        first.cluster_id, first.topic.name, first.topic.topic_id, erasure_id
    )
    await first.objects.replace(where, data)
    for tier, one in zip(tiers, found, strict=True):
        if not one.problems:
            await _end_request(tier, key_sha256)
    return receipt


async def _request(tier: PartitionTier, key_sha256: str) -> None:
    if tier.config.remote_storage_enable:
        await request_local_erasure(tier.store, tier.topic.topic_id, tier.partition)
    else:
        await request_replica_erasure(tier.store, tier.topic.topic_id, tier.partition, key_sha256)


async def _progress(tier: PartitionTier, key_sha256: str) -> ReplicaProgress:
    if not tier.config.remote_storage_enable:
        return await replica_progress(tier.store, tier.topic.topic_id, tier.partition, key_sha256)
    up_to, problems = await waiting_for(tier)
    return ReplicaProgress(up_to, (), problems)


async def request_local_erasure(store: MetadataStore, topic_id: UUID, partition: int) -> None:
    """Have every replica let go of what it has locally now. Asked twice, it is done anew."""

    def ask(item: Item | None) -> tuple[None, Write]:
        before = ABSENT if item is None else item.version
        request = LocalErasure(topic_id=topic_id, partition=partition, version=before)
        return None, records.put(request)

    await update(store, local_erasure_key(topic_id, partition), ask)


async def waiting_for(tier: PartitionTier) -> tuple[int | None, tuple[str, ...]]:
    """Return up to where the partition's request goes, and who has not honoured it yet.

    A request that is gone was honoured by all: it is removed only then.
    """
    item = await tier.store.get(local_erasure_key(tier.topic.topic_id, tier.partition))
    if item is None:
        return None, ()
    request = LocalErasure.from_item(item)
    if not request.is_taken_up:
        return None, ("no leader has taken the request up",)
    found = await tier.store.get(records.partition_key(tier.topic.topic_id, tier.partition))
    replicas = () if found is None else Partition.from_item(found).replicas
    left = [broker_id for broker_id in replicas if broker_id not in request.honoured]
    return request.up_to, tuple(f"broker {one} has not let go of its local records" for one in left)


async def _erase_partition(
    tier: PartitionTier, key: bytes, wait_seconds: float, sleep: Sleep
) -> PartitionErasure:
    progress = await _progress(tier, hashlib.sha256(key).hexdigest())
    problems = progress.problems
    erased: TierErasure | None = None
    try:
        if tier.config.remote_storage_enable or await _has_segments(tier):
            erased = await _when_free(lambda: erase_from_tier(tier, key), wait_seconds, sleep)
        await _when_free(lambda: delete_replaced(tier, sleep=sleep), wait_seconds, sleep)
    except TidelogError as error:
        problems = (*problems, f"the tier is not rewritten: {type(error).__name__}: {error}")
    return PartitionErasure(
        partition=tier.partition,
        up_to=progress.up_to,
        tier=erased,
        replicas=progress.replicas,
        problems=problems,
    )


async def _has_segments(tier: PartitionTier) -> bool:
    one = KeyRange(limit=1)
    return bool(await read_segments(tier.store, tier.topic.topic_id, tier.partition, keys=one))


async def _when_free(work: Callable[[], Awaitable[T]], wait_seconds: float, sleep: Sleep) -> T:
    """Do the work once nobody else has the claim. Raises ``PartitionClaimed`` after the wait."""
    waited = 0.0
    while True:
        try:
            return await work()
        except PartitionClaimed:
            if waited >= wait_seconds:
                raise
        await sleep(LOOK_SECONDS)
        waited += LOOK_SECONDS


async def _end_request(tier: PartitionTier, key_sha256: str) -> None:
    """Remove the request, unless it was made anew or someone has not honoured it."""
    if not tier.config.remote_storage_enable:
        await end_replica_erasure(tier.store, tier.topic.topic_id, tier.partition, key_sha256)
        return
    item = await tier.store.get(local_erasure_key(tier.topic.topic_id, tier.partition))
    if item is None:
        return
    request = LocalErasure.from_item(item)
    if (await waiting_for(tier))[1]:
        return
    try:
        await tier.store.commit([records.delete(request)])
    except VersionConflict:
        return  # Someone erases from it too, and removes it then.
