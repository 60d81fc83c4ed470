"""Conversions that the requests and answers of KIP-848 and KIP-932 share.

Both KIPs have classes of their own for the same fields, so the converters take the module that has
them. Nothing is imported from it before the first answer: ``lazy_modules``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, Protocol, TypeVar
from uuid import UUID

from tidelog_core.errors import ErrorCode
from tidelog_core.metadata.coordination.consumer_groups import Partitions, TopicIdPartition
from tidelog_core.security.operations import OPERATIONS_NOT_REQUESTED

from tidelog_node.groups.heartbeat_answer import HeartbeatAnswer
from tidelog_node.wire.messages import build

Response = TypeVar("Response")
Group = TypeVar("Group")
Assignment = TypeVar("Assignment")
Group_co = TypeVar("Group_co", covariant=True)
Assignment_co = TypeVar("Assignment_co", covariant=True)


def is_blank(text: str) -> bool:
    """Return whether the text has no visible characters."""
    return not text.strip()


class AssignmentModule(Protocol[Assignment_co]):
    """A module with the classes of a member's assignment."""

    @property
    def Assignment(self) -> type[Assignment_co]:
        """The class of the assignment."""

    @property
    def TopicPartitions(self) -> type[object]:
        """The class of one topic's partitions."""


class DescriptionModule(AssignmentModule[Assignment_co], Protocol[Group_co, Assignment_co]):
    """A module that also has the class of a group's description."""

    @property
    def DescribedGroup(self) -> type[Group_co]:
        """The class of one group."""


@dataclass(frozen=True, slots=True)
class HeartbeatMessages(Generic[Response]):
    """Builds answers to heartbeats."""

    module: AssignmentModule[object]
    response: Callable[[], type[Response]]  # its name differs between the modules

    def refused(self, error: ErrorCode, message: str | None) -> Response:
        """Return the answer to a heartbeat that changed nothing."""
        return build(self.response(), error_code=error, error_message=message)

    def answered(self, answer: HeartbeatAnswer) -> Response:
        """Return the group's answer as a response."""
        if answer.error is not ErrorCode.none:
            return self.refused(answer.error, answer.message)
        assignment = None
        if answer.assigned is not None:
            topics = tuple(
                build(self.module.TopicPartitions, topic_id=topic_id, partitions=numbers)
                for topic_id, numbers in _by_topic_id(answer.assigned)
            )
            assignment = build(self.module.Assignment, topic_partitions=topics)
        return build(
            self.response(),
            member_id=answer.member_id,
            member_epoch=answer.member_epoch,
            heartbeat_interval=timedelta(milliseconds=answer.heartbeat_interval_ms),
            assignment=assignment,
        )


@dataclass(frozen=True, slots=True)
class DescriptionMessages(Generic[Group, Assignment]):
    """Builds descriptions of groups."""

    module: DescriptionModule[Group, Assignment]

    def not_described(self, group_id: str, error: ErrorCode, message: str) -> Group:
        """Return the answer for a group that is not described."""
        return build(
            self.module.DescribedGroup,
            group_id=group_id,
            error_code=error,
            error_message=message,
            authorized_operations=OPERATIONS_NOT_REQUESTED,
        )

    def assigned(
        self, partitions: Partitions, topic_name: Callable[[UUID], str | None]
    ) -> Assignment:
        """Return the partitions by topic, without deleted topics (``None``)."""
        named = tuple(
            build(
                self.module.TopicPartitions, topic_id=topic_id, topic_name=name, partitions=numbers
            )
            for topic_id, numbers in _by_topic_id(partitions)
            if (name := topic_name(topic_id)) is not None
        )
        return build(self.module.Assignment, topic_partitions=named)


def _by_topic_id(
    partitions: Iterable[TopicIdPartition],
) -> Iterable[tuple[UUID, tuple[int, ...]]]:
    """Return each topic with its partitions, both in order."""
    topics: dict[UUID, list[int]] = {}
    for topic_id, partition in sorted(partitions):
        topics.setdefault(topic_id, []).append(partition)
    return ((topic_id, tuple(numbers)) for topic_id, numbers in topics.items())
