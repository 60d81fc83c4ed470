"""Metadata of nodes and topics, and the merging of newer answers."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kio.schema.errors import ErrorCode

from tidelog.wire.connection import Address


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster, as clients reach it."""

    node_id: int
    host: str
    port: int
    rack: str | None

    @property
    def address(self) -> Address:
        """Return the address that it listens on."""
        return Address(self.host, self.port)


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition's leader and replicas. ``leader`` is -1 while it has none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic and its partitions, or the ``error`` that the nodes returned for it."""

    name: str
    topic_id: uuid.UUID | None
    is_internal: bool
    partitions: Mapping[int, PartitionInfo]
    error: ErrorCode = ErrorCode.none

    @property
    def partition_count(self) -> int:
        """Return the number of partitions."""
        return len(self.partitions)


def topic_id_or_none(topic_id: uuid.UUID | None) -> uuid.UUID | None:
    """Return the id, or None for the protocol's zero id."""
    return topic_id if topic_id is not None and topic_id.int else None


def topic_info(answer: Any) -> TopicInfo:
    """Return the topic in a metadata response."""
    partitions = {
        int(p.partition_index): PartitionInfo(
            int(p.partition_index),
            int(p.leader_id),
            int(p.leader_epoch),
            tuple(map(int, p.replica_nodes)),
            tuple(map(int, p.isr_nodes)),
        )
        for p in answer.partitions
    }
    return TopicInfo(
        answer.name,
        topic_id_or_none(answer.topic_id),
        bool(answer.is_internal),
        dict(sorted(partitions.items())),
        answer.error_code,
    )


def merge(known: TopicInfo | None, fresh: TopicInfo) -> TopicInfo:
    """Return the fresh topic, except partitions with a leader epoch below the known one.

    Nodes learn of a new leader at different times: an answer from a node that is behind
    must not undo a newer one.
    """
    if known is None or known.topic_id != fresh.topic_id or fresh.error is not ErrorCode.none:
        return fresh
    partitions = {
        number: known.partitions[number]
        if number in known.partitions
        and known.partitions[number].leader_epoch > info.leader_epoch >= 0
        else info
        for number, info in fresh.partitions.items()
    }
    return TopicInfo(fresh.name, fresh.topic_id, fresh.is_internal, partitions)


def with_leader(known: TopicInfo, partition: int, *, leader: int, leader_epoch: int) -> TopicInfo:
    """Return the topic with the partition's leader, if its epoch is newer."""
    info = known.partitions.get(partition)
    if info is None or leader_epoch <= info.leader_epoch:
        return known
    led = replace(info, leader=leader, leader_epoch=leader_epoch)
    return replace(known, partitions={**known.partitions, partition: led})
