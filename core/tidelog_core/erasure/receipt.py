"""The receipt of an erasure: its result in each partition. It does not contain the key.

A JSON object in the bucket (``tier.keys.erasure_receipt_key``), for people. An erasure that may be
interrupted puts it after every step, and reads it again to continue.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tidelog_core.erasure.tier import ErasedSegment
from tidelog_core.errors import CorruptObject
from tidelog_core.metadata.erasures import ReplacedSegment, ReplicaErasure

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionErasure:
    """The result of erasing from one partition."""

    partition: int
    up_to: int | None  # records below it are erased; None: no leader has set it yet
    erased: tuple[ErasedSegment, ...]  # in the tier
    replicas: tuple[ReplicaErasure, ...]  # their rewritten segments; empty with tiering
    problems: tuple[str, ...]  # the parts that are not done; empty: all is done
    # Unix time at which no chain had a copy of the erased records; None: not yet, or not diskless.
    wal_gone_ms: int | None = None

    @property
    def removed_record_count(self) -> int:
        """Return the number of records removed: from the tier, or by the replica that had most."""
        if self.erased:
            return sum(len(one.removed_offsets) for one in self.erased)
        return max((sum(r.removed_count for r in one.replaced) for one in self.replicas), default=0)

    @property
    def replaced_segment_count(self) -> int:
        """Return the number of segments replaced: in the tier, and on all replicas."""
        return len(self.erased) + sum(
            len(one.replaced) + one.unnamed_count for one in self.replicas
        )

    def document(self) -> dict[str, object]:
        """Return its part of the receipt."""
        return {
            "partition": self.partition,
            "is_done": not self.problems,
            "up_to_offset": self.up_to,
            "problems": list(self.problems),
            **({} if self.wal_gone_ms is None else {"wal_copies_gone_ms": self.wal_gone_ms}),
            "segments_replaced": [
                {
                    "base_offset": one.base_offset,
                    "end_offset": one.end_offset,
                    "old": [str(segment_id) for segment_id in one.old_segment_ids],
                    "new": str(one.new_segment_id),
                    "removed_offsets": list(one.removed_offsets),
                }
                for one in self.erased
            ],
            "replicas": [_replica_document(one) for one in self.replicas],
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

    @property
    def has_found_nothing(self) -> bool:
        """Whether no segment had a record of the key."""
        return not any(one.replaced_segment_count for one in self.partitions)

    def summary(self) -> dict[str, object]:
        """Return the result for JSON, with counts instead of segments and offsets."""
        return {
            "erasure_id": str(self.erasure_id),
            "topic": self.topic,
            "is_done": self.is_done,
            "found": not self.has_found_nothing,
            "removed_records": sum(one.removed_record_count for one in self.partitions),
            "replaced_segments": sum(one.replaced_segment_count for one in self.partitions),
            "partitions": [
                {
                    "partition": one.partition,
                    "is_done": not one.problems,
                    "removed_records": one.removed_record_count,
                    "replaced_segments": one.replaced_segment_count,
                    "problems": list(one.problems),
                    **({} if one.wal_gone_ms is None else {"wal_copies_gone_ms": one.wal_gone_ms}),
                }
                for one in self.partitions
            ],
        }

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

    @classmethod
    def parse(cls, document: Any, *, key: str) -> ErasureReceipt:
        """Return the receipt of a document; ``key`` is its object's. Raises ``CorruptObject``."""
        try:
            return cls(
                erasure_id=UUID(document["erasure_id"]),
                topic=document["topic"],
                topic_id=UUID(document["topic_id"]),
                key_sha256=document["key_sha256"],
                requested_ms=document["requested_ms"],
                ended_ms=document["ended_ms"],
                partitions=tuple(map(parse_partition, document["partitions"])),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptObject(key, f"it is no receipt of an erasure: {error!r}") from None


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


def parse_partition(document: Mapping[str, Any]) -> PartitionErasure:
    """Return a partition's part of a receipt.

    Raises ``KeyError``, ``TypeError``, ``ValueError`` or ``AttributeError`` if it is none.
    """
    return PartitionErasure(
        partition=document["partition"],
        up_to=document["up_to_offset"],
        erased=tuple(
            ErasedSegment(
                base_offset=one["base_offset"],
                end_offset=one["end_offset"],
                old_segment_ids=tuple(map(UUID, one["old"])),
                new_segment_id=UUID(one["new"]),
                removed_offsets=tuple(one["removed_offsets"]),
            )
            for one in document["segments_replaced"]
        ),
        replicas=tuple(map(_replica_of, document["replicas"])),
        problems=tuple(document["problems"]),
        wal_gone_ms=document.get("wal_copies_gone_ms"),
    )


def _replica_of(document: Mapping[str, Any]) -> ReplicaErasure:
    return ReplicaErasure(
        document["broker"],
        document["is_done"],
        tuple(
            ReplacedSegment(one["base_offset"], one["end_offset"], one["removed_record_count"])
            for one in document["segments_replaced"]
        ),
        document["unnamed_segment_count"],
    )
