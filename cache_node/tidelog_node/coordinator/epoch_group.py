"""What groups of KIP-848 and of KIP-932 have in common: an epoch that grows, and sessions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from tidelog_core.metadata.consumer_groups import SubscribedTopic

from tidelog_node.coordinator.deadlines import MemberDeadlines
from tidelog_node.coordinator.events import Step
from tidelog_node.coordinator.subscribed_topics import TopicsByName


class EpochGroup(ABC):
    """A group whose members learn with heartbeats what they are to have.

    Events must come one at a time, with a time that never goes back.
    """

    def __init__(self, group_id: str, *, now_ms: int, epoch: int = 0) -> None:
        """``epoch`` is the last generation of the classic group that this one follows."""
        self.group_id = group_id
        self.phase_since_ms = now_ms  # when it became empty, or stopped being it
        self.epoch = epoch  # only ever grows
        self.assignment_epoch = epoch  # which epoch the targets belong to
        self.topics: Mapping[str, SubscribedTopic] = {}  # as they were assigned
        self.step = Step()  # of the event under way
        self._is_dead = False
        self._seen_topics: TopicsByName | None = None  # when the subscribed ones were looked up
        self._deadlines = MemberDeadlines()
        self._now_ms = now_ms

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """Whether it has no members."""

    @property
    def is_vacant(self) -> bool:
        """Whether nothing of the group needs memory."""
        return self.is_empty

    @property
    def is_dead(self) -> bool:
        """Whether the group was deleted."""
        return self._is_dead

    @property
    def wake_at_ms(self) -> int | None:
        """When to let time pass at the latest; ``None``: nobody has anything to do in time."""
        return self._deadlines.wake_at_ms

    def kill(self) -> None:
        """The group was deleted. Only an empty one may be."""
        assert self.is_empty
        self._is_dead = True

    def begin(self, now_ms: int) -> Step:
        """Begin an event."""
        self._now_ms = max(self._now_ms, now_ms)
        self.step = Step()
        return self.step
