"""What is stored of a consumer group of KIP-848, within its group's record.

The members, with what each has, gives up and is to have, are one blob,
``base64(zlib(JSON))``, like those of a classic group: members mostly repeat each other.
Partitions are runs of ``[topic, partition, …]``, where the topic is an index into the
blob's table of topic ids. A member whose target is what it has stores no target.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

MEMBERS_SIZE_BYTES_MAX = 64 * 1024 * 1024  # once unpacked; a guard against corrupt items

LEFT_FOR_NOW_EPOCH = -2  # of a static member that is to come back under a new member id


class TopicIdPartition(NamedTuple):
    """A partition of a topic that keeps its identity when the name is used again."""

    topic_id: UUID
    partition: int


Partitions = frozenset[TopicIdPartition]
NO_PARTITIONS: Partitions = frozenset()


class MemberState(Enum):
    """Where a member stands on its way to its target, by Kafka's names."""

    STABLE = "stable"
    UNREVOKED_PARTITIONS = "unrevoked"  # it has yet to say that it gave some up
    UNRELEASED_PARTITIONS = "unreleased"  # others have yet to give up what it is to have


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribedTopic:
    """A topic as it was when partitions were last assigned."""

    topic_id: UUID
    partition_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicProtocols:
    """What a member said that came by JoinGroup."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]  # by preference: name, opaque metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """A member and its partitions. Nobody else has one of ``assigned`` or ``revoking``."""

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
    epoch: int = 0  # of the target that it was last told of; -2: left for now
    previous_epoch: int = 0  # it may not have heard of the newer one
    assigned: Partitions = NO_PARTITIONS
    revoking: Partitions = NO_PARTITIONS  # taken from it, and perhaps still used by it
    target: Partitions = NO_PARTITIONS  # what it is to have in the end
    classic: ClassicProtocols | None = None  # None: it sends ConsumerGroupHeartbeat

    @property
    def held(self) -> Partitions:
        """What nobody else may be given yet."""
        return self.assigned | self.revoking


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupState:
    """What a group's record holds in addition where it is a consumer group."""

    assignment_epoch: int  # the group epoch that the targets belong to
    topics: Mapping[str, SubscribedTopic]  # by name, as they were at that epoch
    patterns: Mapping[str, tuple[str, ...]]  # names that each subscribed pattern matched
    members: tuple[ConsumerMember, ...]

    def to_body(self) -> dict[str, Any]:
        """Return what is stored under one field of the record's item."""
        return {
            "assignment_epoch": self.assignment_epoch,
            "topics": [
                [name, str(topic.topic_id), topic.partition_count]
                for name, topic in sorted(self.topics.items())
            ],
            "patterns": [[p, list(names)] for p, names in sorted(self.patterns.items())],
            "members": _pack(self.members),
        }

    @classmethod
    def from_body(cls, body: Any) -> ConsumerGroupState:
        """Return the state. Raises ``ValueError``, ``TypeError``, ``KeyError``, ``zlib.error``."""
        return cls(
            assignment_epoch=_integer(body["assignment_epoch"]),
            topics={
                name: SubscribedTopic(topic_id=UUID(topic_id), partition_count=_integer(count))
                for name, topic_id, count in body["topics"]
            },
            patterns={pattern: tuple(names) for pattern, names in body["patterns"]},
            members=_unpack(body["members"]),
        )


def _integer(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _pack(members: tuple[ConsumerMember, ...]) -> str:
    ids = sorted({p.topic_id for m in members for p in m.held | m.target})
    index = {topic_id: number for number, topic_id in enumerate(ids)}
    rows = [
        [
            m.member_id,
            m.instance_id,
            m.rack_id,
            m.client_id,
            m.client_host,
            m.rebalance_timeout_ms,
            m.subscribed_topics,
            m.subscribed_pattern,
            m.assignor,
            m.state.value,
            m.epoch,
            m.previous_epoch,
            _runs(m.assigned, index),
            _runs(m.revoking, index),
            None if m.target == m.assigned else _runs(m.target, index),
            None if m.classic is None else _classic_row(m.classic),
        ]
        for m in members
    ]
    data = json.dumps(
        {"ids": [str(topic_id) for topic_id in ids], "rows": rows}, separators=(",", ":")
    )
    return base64.b64encode(zlib.compress(data.encode())).decode("ascii")


def _unpack(blob: str) -> tuple[ConsumerMember, ...]:
    unpacker = zlib.decompressobj()
    try:
        packed = base64.b64decode(blob, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
    data = unpacker.decompress(packed, MEMBERS_SIZE_BYTES_MAX)
    if not unpacker.eof:
        raise ValueError("members are cut short or too large")
    document = json.loads(data)
    ids = [UUID(text) for text in document["ids"]]
    return tuple(_member(row, ids) for row in document["rows"])


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
    assigned = _partitions(assigned_runs, ids)
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
        epoch=_integer(epoch),
        previous_epoch=_integer(previous_epoch),
        assigned=assigned,
        revoking=_partitions(revoking_runs, ids),
        target=assigned if target_runs is None else _partitions(target_runs, ids),
        classic=None if classic is None else _classic(classic),
    )


def _classic_row(classic: ClassicProtocols) -> list[Any]:
    return [
        classic.session_timeout_ms,
        [[name, base64.b64encode(data).decode("ascii")] for name, data in classic.protocols],
    ]


def _classic(row: list[Any]) -> ClassicProtocols:
    session_timeout_ms, protocols = row
    return ClassicProtocols(
        session_timeout_ms=_integer(session_timeout_ms),
        protocols=tuple((name, base64.b64decode(data, validate=True)) for name, data in protocols),
    )


def _runs(partitions: Iterable[TopicIdPartition], index: Mapping[UUID, int]) -> list[list[int]]:
    runs: dict[int, list[int]] = {}
    for partition in sorted(partitions):
        runs.setdefault(index[partition.topic_id], []).append(partition.partition)
    return [[topic, *numbers] for topic, numbers in runs.items()]


def _partitions(runs: list[list[int]], ids: list[UUID]) -> Partitions:
    return frozenset(
        TopicIdPartition(ids[topic], _integer(number))
        for topic, *numbers in runs
        for number in numbers
    )
