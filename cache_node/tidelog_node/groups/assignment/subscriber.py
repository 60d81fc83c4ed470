"""A consumer group's member as the input of an assignor."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from tidelog_core.metadata.coordination.consumer_groups import NO_PARTITIONS, Partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """A member's subscription and its target so far."""

    instance_id: str | None
    topic_ids: frozenset[UUID]  # of existing topics
    target: Partitions = NO_PARTITIONS
