"""What an admin takes and returns: frozen values, ready for ``dataclasses.asdict``."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidelog_core.model import TopicPartition

from tidelog.consuming.records import OffsetAndMetadata

__all__ = [
    "ClusterDescription",
    "ConfigEntry",
    "ConfigSynonym",
    "CreatedTopic",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "ListedOffset",
    "LogDir",
    "LogDirReplica",
    "NewTopic",
    "NodeDescription",
    "OffsetAndMetadata",
    "OffsetSpec",
    "PartitionDescription",
    "PartitionLag",
    "TopicDescription",
    "TopicListing",
]

NamedOffset = Literal["earliest", "latest", "max-timestamp", "earliest-local", "latest-tiered"]
OffsetSpec = NamedOffset | int
"""An end of a partition by name, or a time in milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 leaves the number to the cluster's defaults.

    With ``assignments`` (replicas by partition) the two numbers stay at -1.
    """

    name: str
    partition_count: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str | None] = field(default_factory=dict)
    assignments: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A topic just created (or, only validated, as it would be: then without an id)."""

    name: str
    topic_id: uuid.UUID | None
    partition_count: int
    replication_factor: int


@dataclass(frozen=True, slots=True)
class TopicListing:
    """A topic in a list."""

    name: str
    topic_id: uuid.UUID | None
    is_internal: bool
    partition_count: int


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A partition; ``leader`` is -1 while there is none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and its partitions."""

    name: str
    topic_id: uuid.UUID | None
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """One of the places a config's value could come from."""

    name: str
    value: str | None
    source: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A config's value in force. A sensitive one has no value here.

    ``source`` is where the value comes from (``default``, ``dynamic_topic``,
    ``dynamic_broker``, ``dynamic_default_broker``, ``static_broker``, ``unknown``).
    """

    name: str
    value: str | None
    source: str
    type: str
    is_read_only: bool
    is_sensitive: bool
    documentation: str | None
    synonyms: tuple[ConfigSynonym, ...]

    @property
    def is_default(self) -> bool:
        """Whether no one has set it."""
        return self.source == "default"


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """A node of the cluster."""

    node_id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The cluster and its live nodes."""

    cluster_id: str
    controller_id: int
    nodes: tuple[NodeDescription, ...]


@dataclass(frozen=True, slots=True)
class LogDirReplica:
    """A partition's log in a node's directory."""

    topic: str
    partition: int
    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log directory of a node; sizes are -1 where the node does not say."""

    node_id: int
    path: str
    error: str | None
    total_bytes: int
    usable_bytes: int
    replicas: tuple[LogDirReplica, ...]


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in a list."""

    group_id: str
    protocol_type: str
    state: str
    type: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member and what it is assigned.

    What it is to have in the end is told of groups of KIP-848 alone, its epoch also of share
    groups. ``is_classic`` tells whether it came by the classic protocol.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    assignment: tuple[TopicPartition, ...]
    target_assignment: tuple[TopicPartition, ...] | None = None
    epoch: int | None = None
    is_classic: bool = True


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group, its members, and the node that coordinates it.

    ``type`` is ``classic``, ``consumer`` (KIP-848) or ``share`` (KIP-932); the latter two have
    epochs: of the group, and of the assignment that its members are on their way to. Members
    of a share group may have the same partitions.
    """

    group_id: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: int
    members: tuple[GroupMember, ...]
    type: str = "classic"
    epoch: int | None = None
    assignment_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a group is behind the end of a partition. ``None`` is not known.

    ``lag`` counts offsets: what compaction and transactions leave out counts too.
    ``lag_seconds`` is the age of the next record to be read, by its timestamp and this
    machine's clock; 0 at the end, ``None`` where that record is gone or was never there.
    Of a share group ``committed_offset`` is where it begins: before it everything is done.
    What is done behind it counts as lag all the same.
    """

    committed_offset: int | None
    end_offset: int | None
    lag: int | None
    lag_seconds: float | None


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """An offset looked up; -1 for what does not exist."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id in a list, with the state of its last transaction."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id, its last transaction, and the node that coordinates it."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time_ms: int | None  # None: nothing is open
    partitions: tuple[TopicPartition, ...]  # that take part, the reserved ones included
    coordinator: int


@dataclass(frozen=True, slots=True)
class ProducerDescription:
    """What a partition's leader knows of a producer; -1 for what it does not."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int  # -1: no transaction is open in this partition


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """A transaction that is open in a partition, and that its coordinator will not end."""

    partition: TopicPartition
    producer: ProducerDescription
