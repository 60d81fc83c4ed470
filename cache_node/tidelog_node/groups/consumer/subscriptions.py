"""The topics that the members of one consumer group subscribe to, by name and by pattern.

A pattern's matches are computed by the caller (``pattern_matches``), since that may take longer
than a turn, and taken here before the event that needs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidelog_core.metadata.coordination.consumer_groups import ConsumerMember, SubscribedTopic
from tidelog_core.metadata.records import Topic

from tidelog_node.groups.consumer.pattern_matches import Matches
from tidelog_node.groups.consumer.pattern_view import PatternView, Viewer
from tidelog_node.groups.consumer.roster import ConsumerRoster
from tidelog_node.groups.subscribed_topics import TopicsByName, find_topics


class Subscriptions:
    """The topics and patterns that the members in the roster subscribe to."""

    def __init__(self, roster: ConsumerRoster) -> None:
        self._roster = roster
        self._matches: dict[PatternView, Matches] = {}  # of every view in the roster, at least
        self.lacks_matches = False  # whether topics of the last ``find`` were not matched yet
        self._found_version = roster.subscriptions_version  # at the last ``find``

    @property
    def has_changed(self) -> bool:
        """Whether members subscribe to other names or patterns than at the last ``find``."""
        return self._roster.subscriptions_version != self._found_version

    def take_matches(self, matches: Mapping[PatternView, Matches]) -> None:
        """Take the matches of the members' patterns, and of the pattern in the next heartbeat.

        The pattern of a refused heartbeat is kept until the next matches at most.
        """
        if not matches:
            return
        kept = {p: self._matches[p] for p in self._roster.patterns if p in self._matches}
        self._matches = {**kept, **matches}

    def take_viewer(self, member_id: str, viewer: Viewer | None, topics: TopicsByName) -> bool:
        """Set a member's rights; return whether it sees other topics by them than before.

        After a change of coordinator, others are only those that it has and may not see any more.
        """
        roster = self._roster
        member = roster.get(member_id)
        was_unseen = member_id in roster.unseen
        before = None if member is None else roster.view_of(member)
        roster.set_viewer(member_id, viewer)
        if member is None:
            return False
        after = roster.view_of(member)
        if after == before or after is None or after not in self._matches:
            return False
        names = self._matches[after].names
        if was_unseen:
            known = (topics.get(name) for name in names.union(member.subscribed_topics))
            ids = {topic.topic_id for topic in known if topic is not None}
            return any(partition.topic_id not in ids for partition in member.target)
        seen_before = self._matches[before].names if before in self._matches else frozenset()
        return not topics.keys().isdisjoint(names ^ seen_before)

    def find(self, topics: TopicsByName) -> dict[str, SubscribedTopic]:
        """Return those of the topics that any member subscribes to."""
        self._found_version = self._roster.subscriptions_version
        self._matches = {view: self._matches[view] for view in self._roster.patterns}
        self.lacks_matches = not all(one.is_current for one in self._matches.values())
        names = set(self._roster.topics).union(*(one.names for one in self._matches.values()))
        if self._roster.unseen:
            unseen = (self._roster.get(member_id) for member_id in self._roster.unseen)
            names |= _target_names((one for one in unseen if one is not None), topics)
        return find_topics(names, topics)

    def names_of(
        self, member: ConsumerMember, topics: Mapping[str, SubscribedTopic]
    ) -> frozenset[str]:
        """Return the names that one member subscribes to; ``topics`` are those found last."""
        names = frozenset(member.subscribed_topics)
        if member.member_id in self._roster.unseen:
            return names | _target_names((member,), topics)
        view = self._roster.view_of(member)
        return names if view is None else names | self._matches[view].names

    def include(self, topic: str) -> bool:
        """Return whether a member subscribes to the topic."""
        return topic in self._roster.topics or any(
            topic in self._matches[view].names for view in self._roster.patterns
        )


def _target_names(
    members: Iterable[ConsumerMember], topics: Mapping[str, Topic | SubscribedTopic]
) -> frozenset[str]:
    """Return the names of topics with partitions in the members' targets."""
    ids = {partition.topic_id for member in members for partition in member.target}
    return frozenset(name for name, topic in topics.items() if topic.topic_id in ids)
