"""The stored state of a share group (KIP-932): in its group's record, and of its members.

The group's progress in each partition is not here: the partitions' leaders store it
(``share_partitions``). The subscribed topics are only a hash, as in a consumer group's record.
Several members may have the same partition, so members do not wait for each other: each gets its
target with its next heartbeat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tidelog_core.metadata.coordination.consumer_groups import (
    NO_PARTITIONS,
    Partitions,
    read_partitions,
)
from tidelog_core.metadata.coordination.packed_members import (
    pack_members,
    to_runs,
    unpack_members,
    whole_number,
)

SHARE_PROTOCOL_TYPE = "share"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareMember:
    """A member and its partitions."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topics: tuple[str, ...] = ()  # sorted
    epoch: int = 0  # of the last target sent to it
    previous_epoch: int = 0  # also accepted: the response with the newer one may be lost
    assigned: Partitions = NO_PARTITIONS
    target: Partitions = NO_PARTITIONS  # sent with the next heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupState:
    """The additional state in the record of a share group."""

    assignment_epoch: int  # the group epoch that the targets belong to
    topics_hash: str  # of the topics that the group epoch was computed from
    members: tuple[ShareMember, ...]


def pack_sharers(members: Sequence[ShareMember]) -> str:
    """Return the members as one string."""
    topic_ids = {p.topic_id for m in members for p in m.assigned | m.target}
    return pack_members(members, topic_ids, _row)


def unpack_sharers(text: str) -> tuple[ShareMember, ...]:
    """Return packed members. Raises as ``unpack_consumers``."""
    return unpack_members(text, _member)


def _row(member: ShareMember, index: Mapping[UUID, int]) -> list[Any]:
    return [
        member.member_id,
        member.rack_id,
        member.client_id,
        member.client_host,
        member.subscribed_topics,
        member.epoch,
        member.previous_epoch,
        to_runs(member.assigned, index),
        None if member.target == member.assigned else to_runs(member.target, index),
    ]


def _member(row: list[Any], ids: list[UUID]) -> ShareMember:
    (
        member_id,
        rack_id,
        client_id,
        client_host,
        subscribed_topics,
        epoch,
        previous_epoch,
        assigned_runs,
        target_runs,
    ) = row
    assigned = read_partitions(assigned_runs, ids)
    return ShareMember(
        member_id=member_id,
        rack_id=rack_id,
        client_id=client_id,
        client_host=client_host,
        subscribed_topics=tuple(subscribed_topics),
        epoch=whole_number(epoch),
        previous_epoch=whole_number(previous_epoch),
        assigned=assigned,
        target=assigned if target_runs is None else read_partitions(target_runs, ids),
    )
