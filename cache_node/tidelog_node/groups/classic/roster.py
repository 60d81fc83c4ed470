"""The members of a classic group, its leader, and the protocols that all support."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from tidelog_node.groups.classic.member import Member
from tidelog_node.groups.classic_messages import RequestNumber


class Roster:
    """Members by id in the order of joining, so that every choice is the same on replay."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._static_ids: dict[str, str] = {}  # instance id to member id
        self._protocol_counts: Counter[str] = Counter()
        self.joined_count = 0  # members with a waiting JoinGroup
        self.leader: str | None = None  # a member's id, None only without members

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> Member | None:
        """Return the member, or ``None`` for an unknown id."""
        return self._members.get(member_id)

    def static_member_id(self, group_instance_id: str) -> str | None:
        """Return the id of the member with the instance id, or ``None``."""
        return self._static_ids.get(group_instance_id)

    def add(self, member: Member) -> None:
        """Add a member. The first one becomes leader."""
        assert member.member_id not in self._members
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self._static_ids
            self._static_ids[member.group_instance_id] = member.member_id
        self._members[member.member_id] = member
        self._protocol_counts.update(member.protocol_names)
        self.joined_count += member.awaited_join is not None
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> Member | None:
        """Remove the member and return it. If it was leader, the oldest other member is next."""
        member = self._members.pop(member_id, None)
        if member is None:
            return None
        self._protocol_counts.subtract(member.protocol_names)
        self.joined_count -= member.awaited_join is not None
        if member.group_instance_id is not None:
            del self._static_ids[member.group_instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self._members), None)
        return member

    def replace(self, old_member_id: str, member: Member) -> None:
        """Give a static member's place, leadership included, to its new incarnation."""
        was_leader = self.leader == old_member_id
        self.remove(old_member_id)
        self.add(member)
        if was_leader:
            self.leader = member.member_id

    def set_protocols(self, member: Member, protocols: tuple[tuple[str, bytes], ...]) -> None:
        """Replace the member's protocols."""
        self._protocol_counts.subtract(member.protocol_names)
        member.protocols = protocols
        self._protocol_counts.update(member.protocol_names)

    def await_join(self, member: Member, number: RequestNumber | None) -> None:
        """Set the member's waiting JoinGroup; the member may have been removed."""
        if self._members.get(member.member_id) is member:
            self.joined_count += (number is not None) - (member.awaited_join is not None)
        member.awaited_join = number

    def supports_any(self, protocol_names: Iterable[str]) -> bool:
        """Return whether all members support a common one of the protocols."""
        return any(self._protocol_counts[name] == len(self._members) for name in protocol_names)

    def select_protocol(self) -> str:
        """Return the protocol with most votes among those that every member supports.

        Among equals, the one that the oldest member prefers.
        """
        candidates = {n for n, count in self._protocol_counts.items() if count == len(self)}
        votes = Counter(member.vote(candidates) for member in self)
        # Counter keeps the order of the first votes, and max takes the first of equals.
        return max(votes, key=lambda name: votes[name])

    def elect_joined_leader(self) -> bool:
        """Make a rejoined member leader, the current one if it rejoined; return whether one is."""
        if self.leader is None:
            return False
        if self._members[self.leader].awaited_join is not None:
            return True
        for member in self:
            if member.awaited_join is not None:
                self.leader = member.member_id
                return True
        return False

    @property
    def have_all_joined(self) -> bool:
        """Whether every member has a waiting JoinGroup."""
        return self.joined_count == len(self)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of the members."""
        return max((member.rebalance_timeout_ms for member in self), default=0)
