"""The receipt of an erasure in the bucket while a run writes it.

    erasure-<id>.json        the whole receipt: when the run first writes, and when the run ends
    erasure-<id>.<n>.json    the changes since, in parts of about ``PART_SIZE_BYTES``

A step writes only the last part: a whole receipt at each step would be quadratic in the segments.
When a run ends it writes the whole receipt again and removes the parts. The next run reads parts
only if the run before it was killed. The job's position names the receipt and counts its parts.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidelog_core.erasure.progress import ErasureProgress
from tidelog_core.erasure.receipt import ErasureReceipt, PartitionErasure, parse_partition
from tidelog_core.errors import CorruptObject
from tidelog_core.objects.store import ObjectStore
from tidelog_core.tier.keys import erasure_part_key

PART_SIZE_BYTES = 64 * 1024  # a part that has reached it is followed by another one


@dataclass(frozen=True, slots=True)
class StoredReceipt:
    """A receipt in the bucket, as a position names it."""

    key: str
    part_count: int = 0

    @property
    def part_keys(self) -> list[str]:
        """The keys of its parts, and of one that may have been put before it was counted."""
        return [erasure_part_key(self.key, number) for number in range(self.part_count + 1)]

    async def read_into(self, progress: ErasureProgress, objects: ObjectStore) -> None:
        """Have the progress continue from it. Raises ``CorruptObject`` and the store's errors."""
        document = json.loads(await objects.get(self.key))
        progress.resume(ErasureReceipt.parse(document, key=self.key))
        for key in self.part_keys[: self.part_count]:
            _add_part(progress.partitions, json.loads(await objects.get(key)), key)


class ReceiptParts:
    """The parts that one run writes to a receipt. Only one run writes to a key."""

    def __init__(self, objects: ObjectStore, key: str) -> None:
        self.stored = StoredReceipt(key)
        self._objects = objects
        self._whole: Mapping[int, PartitionErasure] = {}  # without the last part
        self._latest: Mapping[int, PartitionErasure] = {}  # with it
        self._is_last_open = False
        self.has_begun = False  # with a whole receipt

    def has(self, partitions: Mapping[int, PartitionErasure]) -> bool:
        """Return whether the receipt and its parts say this of the partitions."""
        return self._latest == partitions

    def begin(self, partitions: Mapping[int, PartitionErasure]) -> None:
        """Note that the whole receipt has been put, and needs no part."""
        self.has_begun = True
        self.stored = StoredReceipt(self.stored.key)
        self._whole = self._latest = dict(partitions)
        self._is_last_open = False

    async def put(self, partitions: Mapping[int, PartitionErasure]) -> None:
        """Put the changes into the last part, durable on return."""
        changed = [
            _change(self._whole.get(number), one)
            for number, one in partitions.items()
            if self._whole.get(number) is not one
        ]
        data = json.dumps({"partitions": changed}, separators=(",", ":")).encode()
        count = self.stored.part_count + (not self._is_last_open)
        await self._objects.replace(erasure_part_key(self.stored.key, count - 1), data)
        self.stored = StoredReceipt(self.stored.key, count)
        self._latest = dict(partitions)
        self._is_last_open = len(data) < PART_SIZE_BYTES
        if not self._is_last_open:
            self._whole = self._latest


def _change(before: PartitionErasure | None, now: PartitionErasure) -> dict[str, object]:
    """Return the partition for a part: only its new segments if it has all that it had."""
    known = {one.new_segment_id for one in before.erased} if before is not None else set()
    new = tuple(one for one in now.erased if one.new_segment_id not in known)
    adds = len(now.erased) - len(new) == len(known)
    shown = dataclasses.replace(now, erased=new) if adds else now
    return {**shown.document(), "adds_segments": adds}


def _add_part(partitions: dict[int, PartitionErasure], part: Any, key: str) -> None:
    try:
        for document in part["partitions"]:
            one = parse_partition(document)
            before = partitions.get(one.partition)
            if document["adds_segments"] and before is not None:
                # The whole receipt may be newer than its parts: then it has their segments too.
                new = {erased.new_segment_id for erased in one.erased}
                kept = [erased for erased in before.erased if erased.new_segment_id not in new]
                both = sorted((*kept, *one.erased), key=lambda erased: erased.base_offset)
                one = dataclasses.replace(one, erased=tuple(both))
            partitions[one.partition] = one
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptObject(key, f"it is no part of a receipt: {error!r}") from None
