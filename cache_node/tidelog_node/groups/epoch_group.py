"""The common part of consumer and share groups: the group epoch, and sessions.

The epoch also grows when a subscribed topic changes. A group is stored with a hash of its epoch's
topics, not with the topics themselves: a restored group finds them in the cluster's image, and the
hash shows whether they have changed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import Enum
from typing import ClassVar

from tidelog_core.metadata.coordination.consumer_groups import (
    HASH_OF_NO_TOPICS,
    ConsumerGroupState,
    SubscribedTopic,
    hash_topics,
)
from tidelog_core.metadata.coordination.groups import GroupRecord
from tidelog_core.metadata.coordination.share_groups import ShareGroupState

from tidelog_node.groups.deadlines import MemberDeadlines
from tidelog_node.groups.step import Step
from tidelog_node.groups.subscribed_topics import TopicsByName


class EpochGroup(ABC):
    """A group whose members learn their partitions by heartbeat.

    Events must come one at a time, with a time that never goes back.
    """

    protocol_type: ClassVar[str]

    def __init__(self, group_id: str, *, now_ms: int, epoch: int = 0) -> None:
        """``epoch`` is the last generation of the classic group that this one follows."""
        self.group_id = group_id
        self.phase_since_ms = now_ms  # when it became empty, or got its first member
        self.epoch = epoch  # never decreases
        self.assignment_epoch = epoch  # the epoch of the targets
        self.topics_hash = HASH_OF_NO_TOPICS  # of the epoch's topics
        self.step = Step()  # of the event under way
        self._is_dead = False
        self._topics: Mapping[str, SubscribedTopic] = {}  # found by the last look-up
        self._found_hash = HASH_OF_NO_TOPICS  # of ``_topics``
        self._seen_topics: TopicsByName | None = None  # the topics of the last look-up
        # The topics for a look-up before a restored group's first event. It is not done at
        # restoration: the group's patterns have to be matched first, and a shard has many groups.
        self._restored_topics: TopicsByName | None = None
        self._deadlines = MemberDeadlines()
        self._now_ms = now_ms

    @property
    @abstractmethod
    def phase(self) -> Enum:
        """The group's phase, by Kafka's names."""

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """Whether it has no members."""

    @abstractmethod
    def _subscribed(self, topics: TopicsByName) -> Mapping[str, SubscribedTopic]:
        """Return the topics that members subscribe to, by name."""

    @property
    def topics(self) -> Mapping[str, SubscribedTopic]:
        """The subscribed topics of the last look-up."""
        self._require_topics()
        return self._topics

    @property
    def has_changed_topics(self) -> bool:
        """Whether the subscribed topics differ from the epoch's."""
        self._require_topics()
        return self._found_hash != self.topics_hash

    @property
    def is_vacant(self) -> bool:
        """Whether the group needs no memory."""
        return self.is_empty

    @property
    def is_dead(self) -> bool:
        """Whether the group was deleted."""
        return self._is_dead

    @property
    def wake_at_ms(self) -> int | None:
        """The latest time to call ``expire``; ``None`` without a deadline."""
        return self._deadlines.wake_at_ms

    def kill(self) -> None:
        """Mark the group as deleted. It must be empty."""
        assert self.is_empty
        self._is_dead = True

    def begin(self, now_ms: int) -> Step:
        """Begin an event."""
        self._now_ms = max(self._now_ms, now_ms)
        self.step = Step()
        return self.step

    def _record(self, *, shard: int, clock_offset_ms: int, version: int) -> GroupRecord:
        """Return the group as it is stored, without its members."""
        return GroupRecord(
            shard=shard,
            group_id=self.group_id,
            phase=self.phase.value,
            phase_since_ms=self.phase_since_ms + clock_offset_ms,
            generation=self.epoch,
            protocol_type=self.protocol_type,
            protocol_name=None,
            leader=None,
            members=(),
            version=version,
        )

    def _take_stored(
        self,
        record: GroupRecord,
        stored: ConsumerGroupState | ShareGroupState,
        *,
        clock_offset_ms: int,
        topics: TopicsByName,
    ) -> None:
        """Become the stored group, without its members."""
        self.phase_since_ms = record.phase_since_ms - clock_offset_ms
        self.epoch = record.generation
        self.assignment_epoch = stored.assignment_epoch
        self.topics_hash = stored.topics_hash
        if stored.members:
            self._restored_topics = topics

    def _require_topics(self) -> None:
        """Look the topics up if that has not been done since the group was restored."""
        if self._restored_topics is not None:
            self._find_topics(self._restored_topics)

    def _find_topics(self, topics: TopicsByName) -> None:
        """Look the subscribed topics up."""
        self._restored_topics, self._seen_topics = None, topics
        found = self._subscribed(topics)
        if found != self._topics:
            self._topics, self._found_hash = found, hash_topics(found)
