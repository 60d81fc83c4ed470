"""The members of one consumer group, and the owner of each partition."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from tidelog_core.metadata.coordination.consumer_groups import (
    ConsumerMember,
    Partitions,
    TopicIdPartition,
)

from tidelog_node.groups.consumer.pattern_view import PatternView, Viewer

K = TypeVar("K", bound=Hashable)


class ConsumerRoster:
    """Members by id in the order of joining. A partition always has one owner at most.

    The facts about all members that each heartbeat needs are counted as members change: a group
    may have thousands.
    """

    def __init__(self) -> None:
        self.topics = Counts[str]()  # of members' subscriptions
        self.patterns = Counts[PatternView]()  # each as its members see it
        self.assignors = Counts[str]()  # preferred by members
        self.classic_count = 0  # members that joined by JoinGroup
        # Members with a pattern whose rights are not known on this node before they send a
        # heartbeat. They keep the topics that they have.
        self.unseen: set[str] = set()
        self._viewers: dict[str, Viewer] = {}  # by member id
        self._classic_protocols = Counts[str]()
        self._members: dict[str, ConsumerMember] = {}
        self._static_ids: dict[str, str] = {}  # instance id to member id
        self._owners: dict[TopicIdPartition, str] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ConsumerMember]:
        return iter(self._members.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> ConsumerMember | None:
        """Return the member, or ``None`` for an unknown id."""
        return self._members.get(member_id)

    def static(self, instance_id: str) -> ConsumerMember | None:
        """Return the member with the instance id, or ``None``."""
        member_id = self._static_ids.get(instance_id)
        return None if member_id is None else self._members[member_id]

    def is_free(self, partition: TopicIdPartition) -> bool:
        """Return whether no member has the partition or may still use it."""
        return partition not in self._owners

    def put(self, member: ConsumerMember) -> None:
        """Add a member, or replace its known state."""
        old = self._members.get(member.member_id)
        if old is not None:
            self._release(old)
        for partition in member.held:
            assert partition not in self._owners, f"{partition} is with two members"
            self._owners[partition] = member.member_id
        if member.instance_id is not None:
            self._static_ids[member.instance_id] = member.member_id
        self._members[member.member_id] = member
        # The new ones first: a name in both does not disappear in between.
        self._count(member, 1)
        if old is not None:
            self._count(old, -1)

    def remove(self, member_id: str) -> None:
        """Remove the member; its partitions become free."""
        member = self._members.pop(member_id)
        self._release(member)
        self._count(member, -1)
        self._viewers.pop(member_id, None)
        self.unseen.discard(member_id)

    def view_of(self, member: ConsumerMember) -> PatternView | None:
        """Return how the member sees its pattern, ``None`` without one or if that is unknown."""
        if not member.subscribed_pattern or member.member_id in self.unseen:
            return None
        return PatternView(member.subscribed_pattern, self._viewers.get(member.member_id))

    def set_unseen(self, member_id: str) -> None:
        """Note that the rights of a member that is to be put here are not known."""
        self.unseen.add(member_id)

    def set_viewer(self, member_id: str, viewer: Viewer | None) -> None:
        """Set the rights of a member, also of one that is to be put here."""
        member = self._members.get(member_id)
        before = None if member is None else self.view_of(member)
        self.unseen.discard(member_id)
        if viewer is None:
            self._viewers.pop(member_id, None)
        else:
            self._viewers[member_id] = viewer
        after = None if member is None else self.view_of(member)
        if after != before:
            self._count_view(after, 1)
            self._count_view(before, -1)

    def replace(self, old: ConsumerMember, new: ConsumerMember) -> None:
        """Give a static member's place and rights to its new incarnation."""
        viewer, is_unseen = self._viewers.get(old.member_id), old.member_id in self.unseen
        self.remove(old.member_id)
        if viewer is not None:
            self._viewers[new.member_id] = viewer
        if is_unseen:
            self.unseen.add(new.member_id)
        self.put(new)

    def set_targets(self, targets: Mapping[str, Partitions]) -> None:
        """Set the targets of these members."""
        for member_id, target in targets.items():
            member = self._members[member_id]
            if member.target != target:
                self._members[member_id] = dataclasses.replace(member, target=target)

    @property
    def subscriptions_version(self) -> tuple[int, int]:
        """A value that changes whenever the subscribed names or views of patterns change."""
        return self.topics.version, self.patterns.version

    def common_classic_protocols(self) -> frozenset[str] | None:
        """Return the protocols of every classic member; ``None`` without such members."""
        if not self.classic_count:
            return None
        protocols = self._classic_protocols
        return frozenset(name for name in protocols if protocols[name] == self.classic_count)

    def _count(self, member: ConsumerMember, by: int) -> None:
        self.topics.add(member.subscribed_topics, by)
        self._count_view(self.view_of(member), by)
        if member.assignor:
            self.assignors.add((member.assignor,), by)
        if member.classic is not None:
            self.classic_count += by
            self._classic_protocols.add(dict(member.classic.protocols), by)

    def _count_view(self, view: PatternView | None, by: int) -> None:
        if view is not None:
            self.patterns.add((view,), by)

    def _release(self, member: ConsumerMember) -> None:
        for partition in member.held:
            del self._owners[partition]
        if member.instance_id is not None:
            del self._static_ids[member.instance_id]


class Counts(Generic[K]):
    """Names or views, and the number of members that have each of them."""

    def __init__(self) -> None:
        self.version = 0  # grows whenever one appears or disappears
        self._counts: dict[K, int] = {}

    def __iter__(self) -> Iterator[K]:
        return iter(self._counts)

    def __contains__(self, name: object) -> bool:
        return name in self._counts

    def __getitem__(self, name: K) -> int:
        return self._counts.get(name, 0)

    def add(self, names: Iterable[K], by: int) -> None:
        """Add ``by``, which may be negative, to the number of members with these names."""
        for name in names:
            before = self[name]
            if before + by:
                self._counts[name] = before + by
            else:
                del self._counts[name]
            if not before or not before + by:
                self.version += 1
