"""Requests the replicas' part of an erasure, and reads their progress.

With tiering they drop their local segments, which the tier has (an eviction). Without it they
rewrite the segments that hold the key (a rewrite).
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from uuid import UUID

from tidelog_core.errors import VersionConflict
from tidelog_core.metadata import records
from tidelog_core.metadata.erasures import (
    KeyErasure,
    LocalErasure,
    ReplicaErasure,
    key_erasure_key,
    local_erasure_key,
)
from tidelog_core.metadata.records import Partition
from tidelog_core.metadata.store import ABSENT, Item, MetadataStore, Write
from tidelog_core.metadata.update import update

NOT_TAKEN_UP = "no leader has taken the request up"


@dataclass(frozen=True, slots=True)
class ReplicaProgress:
    """The progress of one partition's replicas."""

    up_to: int | None  # None: no leader has set it yet
    replicas: tuple[ReplicaErasure, ...]  # those that have reported
    problems: tuple[str, ...]  # the replicas that have not erased the key; empty: all have


async def request_rewrite(
    store: MetadataStore, topic_id: UUID, partition: int, key_sha256: str
) -> None:
    """Have every replica erase the key from its segments up to the current log end.

    A second request starts again; replaced segments stay listed. Durable on return.
    """
    new = KeyErasure(topic_id=topic_id, partition=partition, key_sha256=key_sha256)

    def ask(item: Item | None) -> tuple[None, Write]:
        request = new if item is None else KeyErasure.from_item(item).restarted()
        return None, records.put(request)

    await update(store, new.item_id, ask)


async def rewrite_progress(
    store: MetadataStore, topic_id: UUID, partition: int, key_sha256: str
) -> ReplicaProgress:
    """Return the progress that the partition's replicas have reported.

    A missing request means that all are done: it is removed only then.
    """
    item = await store.get(key_erasure_key(topic_id, partition, key_sha256))
    if item is None:
        return ReplicaProgress(None, (), ())
    request = KeyErasure.from_item(item)
    if not request.is_taken_up:
        return ReplicaProgress(None, request.replicas, (NOT_TAKEN_UP,))
    left = await _not_rewritten(store, request)
    problems = tuple(f"broker {one} has not erased the key from its replica" for one in left)
    return ReplicaProgress(request.up_to, request.replicas, problems)


async def end_rewrite(
    store: MetadataStore, topic_id: UUID, partition: int, key_sha256: str
) -> None:
    """Remove the request, unless it was renewed or some replica has not carried it out."""
    item = await store.get(key_erasure_key(topic_id, partition, key_sha256))
    if item is None:
        return
    request = KeyErasure.from_item(item)
    if not request.is_taken_up or await _not_rewritten(store, request):
        return
    await _remove(store, request)


async def request_eviction(store: MetadataStore, topic_id: UUID, partition: int) -> None:
    """Have every replica drop its current local segments. A second request starts again."""

    def ask(item: Item | None) -> tuple[None, Write]:
        before = ABSENT if item is None else item.version
        request = LocalErasure(topic_id=topic_id, partition=partition, version=before)
        return None, records.put(request)

    await update(store, local_erasure_key(topic_id, partition), ask)


async def eviction_progress(
    store: MetadataStore, topic_id: UUID, partition: int
) -> ReplicaProgress:
    """Return the end offset of the partition's request, and the replicas that are not done.

    A missing request was completed by all: it is removed only then.
    """
    item = await store.get(local_erasure_key(topic_id, partition))
    if item is None:
        return ReplicaProgress(None, (), ())
    request = LocalErasure.from_item(item)
    if not request.is_taken_up:
        return ReplicaProgress(None, (), (NOT_TAKEN_UP,))
    left = await _not_evicted(store, request)
    problems = tuple(f"broker {one} has not released its local records" for one in left)
    return ReplicaProgress(request.up_to, (), problems)


async def end_eviction(store: MetadataStore, topic_id: UUID, partition: int) -> None:
    """Remove the request, unless it was renewed or a replica is not done."""
    item = await store.get(local_erasure_key(topic_id, partition))
    if item is None:
        return
    request = LocalErasure.from_item(item)
    if not request.is_taken_up or await _not_evicted(store, request):
        return
    await _remove(store, request)


async def _remove(store: MetadataStore, request: KeyErasure | LocalErasure) -> None:
    # A changed request belongs to another erasure, which removes it.
    with contextlib.suppress(VersionConflict):
        await store.commit([records.delete(request)])


async def _not_rewritten(store: MetadataStore, request: KeyErasure) -> list[int]:
    replicas = await _replicas(store, request.topic_id, request.partition)
    return [broker_id for broker_id in replicas if not request.of(broker_id).is_done]


async def _not_evicted(store: MetadataStore, request: LocalErasure) -> list[int]:
    replicas = await _replicas(store, request.topic_id, request.partition)
    return [broker_id for broker_id in replicas if broker_id not in request.honoured]


async def _replicas(store: MetadataStore, topic_id: UUID, partition: int) -> tuple[int, ...]:
    found = await store.get(records.partition_key(topic_id, partition))
    return () if found is None else Partition.from_item(found).replicas
