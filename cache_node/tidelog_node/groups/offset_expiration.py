"""Decides which committed offsets have expired.

Offsets expire when their topic is deleted. Others do not while members subscribe to the topic.
Without a retention from the client's commit, the group's retention counts:

    empty group that had members          from the time when it became empty
    empty group that never had members    from the commit
    stable group of consumers             from the commit, if all subscriptions are known
    any other group                       nothing expires

Source: KIP-211 and ``OffsetMetadataManager.cleanupExpiredOffsets`` of Kafka.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from uuid import UUID

from tidelog_core.metadata.coordination.groups import CommittedOffset, GroupOffsets

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
    """Return the partitions of the page whose offsets have expired.

    ``now_ms`` is wall clock; ``topic_id`` is the id of the current topic with the page's
    name, ``None`` if it was deleted.
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
            # The time when the last member left counts, not the last commit: a quiet partition may
            # have no commits for any time.
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
    """Return a wall clock time before which none of the page's offsets expires.

    It holds until the group's phase or subscriptions, or the topic, change. Infinite for never.
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
