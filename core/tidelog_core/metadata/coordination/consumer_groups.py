"""The stored state of a consumer group (KIP-848): in its group's record, and of its members.

Members, with their assigned, revoked and target partitions, are packed like those of a classic
group. A member whose target equals its assignment stores no target.

The record has only a hash of the subscribed topics (``hash_topics``): a new coordinator uses it to
see whether they have changed since the group epoch began. The cluster's image and the members'
subscriptions have everything else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

from tidelog_core.metadata.coordination.packed_members import (
    decode_bytes,
    encode_bytes,
    from_runs,
    pack_members,
    to_runs,
    unpack_members,
    whole_number,
)

LEFT_FOR_NOW_EPOCH = -2  # of a static member that is to come back under a new member id


class TopicIdPartition(NamedTuple):
    """A partition of a topic that keeps its identity when the name is used again."""

    topic_id: UUID
    partition: int


Partitions = frozenset[TopicIdPartition]
NO_PARTITIONS: Partitions = frozenset()


class MemberState(Enum):
    """A member's progress to its target, by Kafka's names."""

    STABLE = "stable"
    UNREVOKED_PARTITIONS = "unrevoked"  # the member has not confirmed a revocation yet
    UNRELEASED_PARTITIONS = "unreleased"  # other members still own some of its target


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribedTopic:
    """The properties of a topic that an assignment depends on."""

    topic_id: UUID
    partition_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicProtocols:
    """The JoinGroup fields of a member with the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]  # by preference: name, opaque metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """A member and its partitions. No other member has one of ``assigned`` or ``revoking``."""

    member_id: str
    instance_id: str | None = None  # set: a static member, which keeps its place over restarts
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    subscribed_topics: tuple[str, ...] = ()  # sorted
    subscribed_pattern: str | None = None
    assignor: str | None = None  # the server's assignor that it prefers
    state: MemberState = MemberState.STABLE
    epoch: int = 0  # of the last target sent to it; -2: a static member that left for now
    previous_epoch: int = 0  # that it was seen in when it moved; it may not know the newer one
    assigned: Partitions = NO_PARTITIONS
    revoking: Partitions = NO_PARTITIONS  # taken from it, and perhaps still used by it
    target: Partitions = NO_PARTITIONS  # its partitions once the rebalance is done
    classic: ClassicProtocols | None = None  # None: it sends ConsumerGroupHeartbeat

    @property
    def held(self) -> Partitions:
        """The partitions that no other member may get yet."""
        return self.assigned | self.revoking


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupState:
    """The additional state in the record of a consumer group."""

    assignment_epoch: int  # the group epoch that the targets belong to
    topics_hash: str  # of the topics that the group epoch was computed from
    members: tuple[ConsumerMember, ...]


def hash_topics(topics: Mapping[str, SubscribedTopic]) -> str:
    """Return a hash of the topics' names, ids and partition counts, 32 hex digits.

    Half a SHA-256 over the topics in the order of their names. Source: KIP-1101.
    """
    digest = hashlib.sha256()
    for name, topic in sorted(topics.items()):
        # No two lists of topics give the same bytes: no name has a slash.
        digest.update(b"%b/%b%d/" % (name.encode(), topic.topic_id.bytes, topic.partition_count))
    return digest.hexdigest()[:32]


HASH_OF_NO_TOPICS = "e3b0c44298fc1c149afbf4c8996fb924"  # ``hash_topics({})``, without OpenSSL


def read_topics_hash(body: Mapping[str, Any]) -> str:
    """Return the stored hash, or compute it from the topics that an older program stored.

    Raises ``ValueError``, ``TypeError``, ``KeyError``.
    """
    if "topics_hash" not in body:
        return hash_topics(_read_topics(body["topics"]))
    topics_hash = body["topics_hash"]
    if not isinstance(topics_hash, str):
        raise TypeError(f"{topics_hash!r} is not a hash")
    return topics_hash


def _read_topics(rows: Any) -> dict[str, SubscribedTopic]:
    return {
        name: SubscribedTopic(topic_id=UUID(topic_id), partition_count=whole_number(count))
        for name, topic_id, count in rows
    }


def pack_consumers(members: Sequence[ConsumerMember]) -> str:
    """Return the members as one string."""
    topic_ids = {p.topic_id for m in members for p in m.held | m.target}
    return pack_members(members, topic_ids, _row)


def unpack_consumers(text: str) -> tuple[ConsumerMember, ...]:
    """Return packed members. Raises ``ValueError``, ``TypeError``, ``KeyError``, ``zlib.error``."""
    return unpack_members(text, _member)


def _row(member: ConsumerMember, index: Mapping[UUID, int]) -> list[Any]:
    return [
        member.member_id,
        member.instance_id,
        member.rack_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        member.subscribed_topics,
        member.subscribed_pattern,
        member.assignor,
        member.state.value,
        member.epoch,
        member.previous_epoch,
        to_runs(member.assigned, index),
        to_runs(member.revoking, index),
        None if member.target == member.assigned else to_runs(member.target, index),
        None if member.classic is None else _classic_row(member.classic),
    ]


def _member(row: list[Any], ids: list[UUID]) -> ConsumerMember:
    (
        member_id,
        instance_id,
        rack_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        subscribed_topics,
        subscribed_pattern,
        assignor,
        state,
        epoch,
        previous_epoch,
        assigned_runs,
        revoking_runs,
        target_runs,
        classic,
    ) = row
    assigned = read_partitions(assigned_runs, ids)
    return ConsumerMember(
        member_id=member_id,
        instance_id=instance_id,
        rack_id=rack_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=rebalance_timeout_ms,
        subscribed_topics=tuple(subscribed_topics),
        subscribed_pattern=subscribed_pattern,
        assignor=assignor,
        state=MemberState(state),
        epoch=whole_number(epoch),
        previous_epoch=whole_number(previous_epoch),
        assigned=assigned,
        revoking=read_partitions(revoking_runs, ids),
        target=assigned if target_runs is None else read_partitions(target_runs, ids),
        classic=None if classic is None else _classic(classic),
    )


def _classic_row(classic: ClassicProtocols) -> list[Any]:
    return [
        classic.session_timeout_ms,
        [[name, encode_bytes(data)] for name, data in classic.protocols],
    ]


def _classic(row: list[Any]) -> ClassicProtocols:
    session_timeout_ms, protocols = row
    return ClassicProtocols(
        session_timeout_ms=whole_number(session_timeout_ms),
        protocols=tuple((name, decode_bytes(data)) for name, data in protocols),
    )


def read_partitions(runs: list[list[int]], ids: list[UUID]) -> Partitions:
    """Return stored runs as partitions. Raises ``TypeError``, ``IndexError``."""
    return frozenset(TopicIdPartition(*partition) for partition in from_runs(runs, ids))
