"""The state outside of a group on which its decisions depend."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from tidelog_core.metadata.coordination.consumer_groups import Partitions

from tidelog_node.groups.assignment.target_computation import TargetComputation
from tidelog_node.groups.consumer.heartbeat import ConsumerGroupSettings
from tidelog_node.groups.consumer.pattern_matches import Matches
from tidelog_node.groups.consumer.pattern_view import PatternView
from tidelog_node.groups.share.heartbeat import ShareGroupSettings
from tidelog_node.groups.subscribed_topics import TopicsByName


@dataclass(frozen=True, slots=True)
class GroupEnvironment:
    """The time, settings, topics and computations of a group, current at each call."""

    now_ms: Callable[[], int]
    clock_offset_ms: Callable[[], int]  # wall clock minus ``now_ms``
    settings: Callable[[str], ConsumerGroupSettings]  # of the group of this id
    share_settings: Callable[[str], ShareGroupSettings]
    topics: Callable[[], TopicsByName]
    match: Callable[[Iterable[PatternView]], Awaitable[Mapping[PatternView, Matches]]]
    compute: Callable[[TargetComputation], Awaitable[Mapping[str, Partitions]]]
