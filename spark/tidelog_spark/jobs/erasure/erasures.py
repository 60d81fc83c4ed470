"""The erasures that tables of exports have to follow, from their receipts in the bucket.

``tidelog erase`` puts a receipt beside a topic's segments: the SHA-256 of the key, and for
each partition the offset below which its records are erased. A table of an export follows an
erasure when it has no row of that key below these offsets.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tidelog_core.errors import CorruptObject, ObjectNotFound
from tidelog_core.objects.store import ObjectStore
from tidelog_core.tier.keys import is_whole_receipt, parse_erasure_receipt_key, topic_prefix

from tidelog_spark.jobs.tables.export_table import partition_id

RECEIPT_BYTES_MAX = 256 << 20  # names every erased offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """A key that was erased from a topic."""

    erasure_id: UUID
    topic: str
    topic_id: UUID
    key_sha256: str  # hex
    is_done: bool  # in the topic; False: partitions may get a later offset, or one at all
    up_to: Mapping[int, int]  # by partition: its records below the offset are erased

    def partition_ids(self) -> dict[str, int]:
        """Return the offsets by ``partition_id``."""
        return {
            partition_id(self.topic_id, number): offset for number, offset in self.up_to.items()
        }


@dataclass(frozen=True, slots=True)
class ExportedTopic:
    """A topic whose erasures are looked for."""

    cluster_id: str
    name: str
    topic_id: UUID


async def load_erasures(
    objects: ObjectStore, topic: ExportedTopic, *, known: Collection[UUID]
) -> list[Erasure]:
    """Return the topic's erasures by id, without those that are known to be followed.

    Raises ``CorruptObject`` for a receipt that cannot be read, and the store's errors.
    """
    prefix = topic_prefix(topic.cluster_id, topic.name, topic.topic_id)
    whole: dict[UUID, str] = {}
    parts: dict[UUID, list[str]] = {}
    async for item in objects.list(f"{prefix}erasure-"):
        if parse_erasure_receipt_key(item.key) is None:
            continue
        erasure_id = _erasure_id(item.key)
        if erasure_id in known:
            continue
        if item.size_bytes > RECEIPT_BYTES_MAX:
            raise CorruptObject(item.key, f"a receipt has at most {RECEIPT_BYTES_MAX} bytes")
        if is_whole_receipt(item.key):
            whole[erasure_id] = item.key
        else:
            parts.setdefault(erasure_id, []).append(item.key)
    return [
        await _load(objects, topic, key, parts.get(erasure_id, ()))
        for erasure_id, key in sorted(whole.items())
    ]


async def _load(
    objects: ObjectStore, topic: ExportedTopic, key: str, parts: Collection[str]
) -> Erasure:
    try:
        whole = json.loads(await objects.get(key))
        up_to = _offsets(whole)
        for part in parts:
            # The job that writes parts removes them when it ends.
            try:
                more = _offsets(json.loads(await objects.get(part)))
            except ObjectNotFound:
                continue
            for number, offset in more.items():
                up_to[number] = max(offset, up_to.get(number, 0))
        return Erasure(
            erasure_id=UUID(whole["erasure_id"]),
            topic=topic.name,
            topic_id=topic.topic_id,
            key_sha256=_sha256(whole["key_sha256"]),
            is_done=whole["is_done"] is True,
            up_to=up_to,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptObject(key, f"it is no receipt of an erasure: {error!r}") from None


def _offsets(document: Any) -> dict[int, int]:
    return {
        int(one["partition"]): int(one["up_to_offset"])
        for one in document["partitions"]
        if one["up_to_offset"] is not None
    }


def _sha256(text: str) -> str:
    if len(bytes.fromhex(text)) != 32:
        raise ValueError(f"{text!r} is no SHA-256")
    return text.lower()


def _erasure_id(key: str) -> UUID:
    name = key.rpartition("/")[2].removeprefix("erasure-")
    return UUID(name.partition(".")[0])
