"""Receipts of erasures, read from the bucket once: every request to it costs.

What pages need of a receipt is kept until its object changes: an erasure that goes on in steps
writes it after each. Objects are listed again after a while.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tidelog_core.erasure.receipt import ErasureReceipt
from tidelog_core.errors import CorruptObject
from tidelog_core.objects.store import ObjectMeta, ObjectStore
from tidelog_core.tier.keys import is_whole_receipt

LISTED_SECONDS = 15.0  # until keys of a topic are listed again
TOPICS_MAX = 200  # whose lists are kept
KEPT_MAX = 6_000  # more than one page reads: else it would read each again, every time
RECEIPTS_MAX = 100  # of one topic, those that come first; ids are random
RECEIPT_BYTES_MAX = 4 * 1024 * 1024
KEYS_LISTED_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Receipt:
    """The parts of a receipt that pages show."""

    erasure_id: str
    topic: str
    key_sha256: str
    requested_ms: int
    is_done: bool
    record_count: int
    segment_count: int
    problems: tuple[str, ...]
    new_segments: frozenset[UUID]  # that it wrote to the tier in place of others


class Receipts:
    """The receipts in one object store. For the tasks of one event loop."""

    def __init__(self, store: ObjectStore, *, listed_seconds: float = LISTED_SECONDS) -> None:
        self._store = store
        self._listed_seconds = listed_seconds
        # By object as it was listed, the longest unused first.
        self._kept: dict[ObjectMeta, Receipt] = {}
        # By prefix: when, and the objects.
        self._listed: dict[str, tuple[float, Sequence[ObjectMeta]]] = {}

    async def of_topic(self, prefix: str) -> list[Receipt]:
        """Return the receipts under a topic's prefix, the newest first.

        Raises the store's errors.
        """
        found = [await self._receipt(one) for one in await self._objects(prefix)]
        return sorted(found, key=lambda one: -one.requested_ms)

    async def _objects(self, prefix: str) -> Sequence[ObjectMeta]:
        now = time.monotonic()
        known = self._listed.pop(prefix, None)
        if known is None or now - known[0] >= self._listed_seconds:
            known = (now, await self._list(prefix))
        self._listed[prefix] = known
        _forget(self._listed, TOPICS_MAX)
        return known[1]

    async def _list(self, prefix: str) -> Sequence[ObjectMeta]:
        found: list[ObjectMeta] = []
        listed = 0
        # Receipts are directly under the topic, beside its partitions' folders.
        async for one in self._store.list(f"{prefix}erasure-"):
            listed += 1
            if is_whole_receipt(one.key) and one.size_bytes <= RECEIPT_BYTES_MAX:
                found.append(one)
            if len(found) >= RECEIPTS_MAX or listed >= KEYS_LISTED_MAX:
                break
        return found

    async def _receipt(self, meta: ObjectMeta) -> Receipt:
        receipt = self._kept.pop(meta, None)
        if receipt is None:
            receipt = read_receipt(await self._store.get(meta.key), meta.key)
        self._kept[meta] = receipt
        _forget(self._kept, KEPT_MAX)
        return receipt


def read_receipt(data: bytes, key: str) -> Receipt:
    """Return the fields of a receipt for pages, or the fault of one that cannot be read."""
    try:
        found = ErasureReceipt.parse(json.loads(data), key=key)
    except (CorruptObject, ValueError) as error:
        return Receipt("", "", "", 0, False, 0, 0, (str(error),), frozenset())
    return Receipt(
        erasure_id=str(found.erasure_id),
        topic=found.topic,
        key_sha256=found.key_sha256,
        requested_ms=found.requested_ms,
        is_done=found.is_done,
        record_count=sum(one.removed_record_count for one in found.partitions),
        segment_count=sum(one.replaced_segment_count for one in found.partitions),
        problems=tuple(text for one in found.partitions for text in one.problems),
        new_segments=frozenset(
            erased.new_segment_id for one in found.partitions for erased in one.erased
        ),
    )


def _forget(kept: dict[Any, Any], most: int) -> None:
    while len(kept) > most:
        del kept[next(iter(kept))]
