"""The members of one consumer group, and which of them has which partition."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping

from tidelog_core.metadata.consumer_groups import ConsumerMember, Partitions, TopicIdPartition


class ConsumerRoster:
    """Members by id in the order they joined. A partition has one owner at most, always."""

    def __init__(self) -> None:
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
        """Return the member, or ``None`` where there is none of this id."""
        return self._members.get(member_id)

    def static(self, instance_id: str) -> ConsumerMember | None:
        """Return the member that holds the instance id, or ``None``."""
        member_id = self._static_ids.get(instance_id)
        return None if member_id is None else self._members[member_id]

    def is_free(self, partition: TopicIdPartition) -> bool:
        """Return whether nobody has the partition or may still use it."""
        return partition not in self._owners

    def put(self, member: ConsumerMember) -> None:
        """Take a member in, or replace what was known of it."""
        old = self._members.get(member.member_id)
        if old is not None:
            self._release(old)
        for partition in member.held:
            assert partition not in self._owners, f"{partition} is with two members"
            self._owners[partition] = member.member_id
        if member.instance_id is not None:
            self._static_ids[member.instance_id] = member.member_id
        self._members[member.member_id] = member

    def remove(self, member_id: str) -> None:
        """Take the member out; its partitions are free."""
        member = self._members.pop(member_id)
        self._release(member)

    def replace(self, old: ConsumerMember, new: ConsumerMember) -> None:
        """Give a static member's place to its new incarnation."""
        self.remove(old.member_id)
        self.put(new)

    def set_targets(self, targets: Mapping[str, Partitions]) -> None:
        """Note what each member is to have."""
        for member_id, target in targets.items():
            member = self._members[member_id]
            if member.target != target:
                self._members[member_id] = dataclasses.replace(member, target=target)

    @property
    def classic_count(self) -> int:
        """How many members came by JoinGroup."""
        return sum(member.classic is not None for member in self)

    def common_classic_protocols(self) -> frozenset[str] | None:
        """Return the protocols that every classic member speaks; ``None``: there is none."""
        classics = [member.classic for member in self if member.classic is not None]
        if not classics:
            return None
        counts = Counter(name for classic in classics for name in dict(classic.protocols))
        return frozenset(name for name, count in counts.items() if count == len(classics))

    def _release(self, member: ConsumerMember) -> None:
        for partition in member.held:
            del self._owners[partition]
        if member.instance_id is not None:
            del self._static_ids[member.instance_id]
