"""Decides when committed offsets expire: by age, with their topic, or at a time of their own.

Source: KIP-211 and ``OffsetMetadataManager.cleanupExpiredOffsets`` of Kafka.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from uuid import UUID

from tidelog_core.metadata.groups import CommittedOffset, GroupOffsets

from tidelog_node.groups.classic.classic_group import ClassicGroup, Phase
from tidelog_node.groups.consumer.consumer_group import ConsumerGroup, ConsumerPhase


def expired_partitions(
    group: ClassicGroup | ConsumerGroup,
    page: GroupOffsets,
    *,
    topic_id: UUID | None,
    now_ms: int,
    clock_offset_ms: int,
    retention_ms: int,
) -> frozenset[int]:
    """Return the partitions of the page whose offsets have ended.

    ``now_ms`` is wall clock; ``topic_id`` is the id of the topic that has the page's
    name today, ``None`` where it was deleted.
    """
    if topic_id != page.topic_id:
        return frozenset(page.partitions)
    if group.is_subscribed_to(page.topic) and not group.is_empty:
        return frozenset()
    is_ended = frozenset(
        partition
        for partition, offset in page.partitions.items()
        if offset.expires_ms is not None and now_ms >= offset.expires_ms
    )
    empty_since_ms = group.phase_since_ms + clock_offset_ms
    is_stable = group.phase in (Phase.STABLE, ConsumerPhase.STABLE)
    match group.phase:
        case Phase.EMPTY | ConsumerPhase.EMPTY if group.protocol_type is not None:
            # The last member's leaving counts, not its last commit: a quiet partition
            # has no commits for as long as it likes.
            since = dict.fromkeys(page.partitions, empty_since_ms)
        case Phase.EMPTY:
            since = _committed(page.partitions)
        case _ if is_stable and group.uses_consumer_protocol and group.knows_subscriptions:
            since = _committed(page.partitions)
        case _:
            return frozenset()
    by_age = frozenset(
        partition
        for partition, since_ms in since.items()
        if page.partitions[partition].expires_ms is None and now_ms - since_ms >= retention_ms
    )
    return is_ended | by_age


def earliest_end_ms(
    group: ClassicGroup | ConsumerGroup,
    page: GroupOffsets,
    *,
    clock_offset_ms: int,
    retention_ms: int,
) -> float:
    """Return a wall clock time before which none of the page's offsets ends.

    As long as the group's phase and subscriptions, and the topic, stay what they are. Infinite
    for never.
    """
    if group.is_subscribed_to(page.topic) and not group.is_empty:
        return math.inf
    empty_since_ms = group.phase_since_ms + clock_offset_ms
    return min(
        (
            min(offset.committed_ms, empty_since_ms) + retention_ms
            if offset.expires_ms is None
            else offset.expires_ms
            for offset in page.partitions.values()
        ),
        default=math.inf,
    )


def _committed(offsets: Mapping[int, CommittedOffset]) -> dict[int, int]:
    return {partition: offset.committed_ms for partition, offset in offsets.items()}
