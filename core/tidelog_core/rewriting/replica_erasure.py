"""Asking replicas to erase a key from their own segments, and looking at how far they are."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from tidelog_core.errors import VersionConflict
from tidelog_core.metadata import records
from tidelog_core.metadata.key_erasures import KeyErasure, ReplicaErasure, key_erasure_key
from tidelog_core.metadata.records import Partition
from tidelog_core.metadata.store import Item, MetadataStore, Write
from tidelog_core.metadata.update import update


@dataclass(frozen=True, slots=True)
class ReplicaProgress:
    """How far the replicas of one partition are."""

    up_to: int | None  # None: no leader has said yet
    replicas: tuple[ReplicaErasure, ...]  # that have said something
    problems: tuple[str, ...]  # who has not erased the key yet; empty: all have


async def request_replica_erasure(
    store: MetadataStore, topic_id: UUID, partition: int, key_sha256: str
) -> None:
    """Have every replica erase the key up to where the log ends now.

    Asked twice, it is done anew; what was replaced before stays named. Durable on return.
    """
    new = KeyErasure(topic_id=topic_id, partition=partition, key_sha256=key_sha256)

    def ask(item: Item | None) -> tuple[None, Write]:
        request = new if item is None else KeyErasure.from_item(item).asked_anew()
        return None, records.put(request)

    await update(store, new.item_id, ask)


async def replica_progress(
    store: MetadataStore, topic_id: UUID, partition: int, key_sha256: str
) -> ReplicaProgress:
    """Return what the partition's replicas have said.

    A request that is gone was carried out by all: it is removed only then.
    """
    item = await store.get(key_erasure_key(topic_id, partition, key_sha256))
    if item is None:
        return ReplicaProgress(None, (), ())
    request = KeyErasure.from_item(item)
    if not request.is_taken_up:
        return ReplicaProgress(None, request.replicas, ("no leader has taken the request up",))
    left = await _left(store, request)
    problems = tuple(f"broker {one} has not erased the key from its replica" for one in left)
    return ReplicaProgress(request.up_to, request.replicas, problems)


async def end_replica_erasure(
    store: MetadataStore, topic_id: UUID, partition: int, key_sha256: str
) -> None:
    """Remove the request, unless it was made anew or some replica has not carried it out."""
    item = await store.get(key_erasure_key(topic_id, partition, key_sha256))
    if item is None:
        return
    request = KeyErasure.from_item(item)
    if not request.is_taken_up or await _left(store, request):
        return
    try:
        await store.commit([records.delete(request)])
    except VersionConflict:
        return  # Someone erases it too, and removes it then.


async def _left(store: MetadataStore, request: KeyErasure) -> list[int]:
    """Return the brokers whose replicas have not carried it out."""
    found = await store.get(records.partition_key(request.topic_id, request.partition))
    replicas = () if found is None else Partition.from_item(found).replicas
    return [broker_id for broker_id in replicas if not request.of(broker_id).is_done]
