"""Arguments and results of admin calls: frozen values that ``dataclasses.asdict`` accepts."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tidelog_core.model import TopicPartition

from tidelog.consuming.records import OffsetAndMetadata
from tidelog.wire.sasl import Sasl

__all__ = [
    "ClusterDescription",
    "ConfigEntry",
    "ConfigSynonym",
    "CreatedTopic",
    "DelegationToken",
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
    "Reassignment",
    "TopicDescription",
    "TopicListing",
    "UserDescription",
]

NamedOffset = Literal["earliest", "latest", "max-timestamp", "earliest-local", "latest-tiered"]
OffsetSpec = NamedOffset | int
"""``earliest``, ``latest`` and so on, or a time in milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; a number of -1 means the cluster's default.

    With ``assignments`` (replicas by partition) both numbers must be -1.
    """

    name: str
    partition_count: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str | None] = field(default_factory=dict)
    assignments: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CreatedTopic:
    """A created topic; after ``validate_only``, the topic that would be created, without an id."""

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
    """A partition; ``leader`` is -1 while it has none."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition's move to other replicas; ``replicas`` has the old ones too."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and its partitions."""

    name: str
    topic_id: uuid.UUID | None
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A level at which a config has a value."""

    name: str
    value: str | None
    source: str


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A config's effective value; None for a sensitive one.

    ``source`` is the level that the value was set at (``default``, ``dynamic_topic``,
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
        """Whether the value is the default."""
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
    """A log directory of a node; sizes are -1 if the node does not report them."""

    node_id: int
    path: str
    error: str | None
    total_bytes: int
    usable_bytes: int
    replicas: tuple[LogDirReplica, ...]


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """The use of a quota on one node, by those who share it."""

    node_id: int
    key: str  # such as ``producer_byte_rate``
    user: str  # "": all users share it
    client_id: str  # "": all client ids share it
    quota: float  # a second
    part: float  # a second, of this node: less than the quota if it is the cluster's
    rate: float  # a second, measured over the windows that count
    throttle_time_ms: int  # until the rate is within the part; 0 if it is


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in a list."""

    group_id: str
    protocol_type: str
    state: str
    type: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member and its assignment.

    Only groups of KIP-848 report the target assignment; the member epoch is reported by
    share groups too. ``is_classic`` is true for a member that uses the classic protocol.
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
    """A group, its members, and its coordinator.

    ``type`` is ``classic``, ``consumer`` (KIP-848) or ``share`` (KIP-932). The latter two have
    two epochs: the group's, and that of the target assignment. Several members of a share
    group may have the same partition.
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
    """The distance from a group's position to the end of a partition; None if unknown.

    ``lag`` counts offsets, including those removed by compaction or used by transactions.
    ``lag_seconds`` is the age of the next record to read, by its timestamp and this
    machine's clock; 0 at the end, and if only markers of transactions follow; ``None`` if that
    record does not exist (any more).
    For a share group, ``committed_offset`` is its start offset: all records before it are
    done. Records after it count as lag even if they are done.
    """

    committed_offset: int | None
    end_offset: int | None
    lag: int | None
    lag_seconds: float | None


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """The result of an offset lookup; -1 for a value that does not exist."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id and the state of its last transaction."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id, its last transaction, and its coordinator."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time_ms: int | None  # None: no transaction is open
    partitions: tuple[TopicPartition, ...]  # those of the transaction, reserved ones included
    coordinator: int


@dataclass(frozen=True, slots=True)
class ProducerDescription:
    """A producer as a partition's leader knows it; -1 for an unknown number."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int  # -1: no transaction is open in this partition


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """An open transaction in a partition that no coordinator will end."""

    partition: TopicPartition
    producer: ProducerDescription


@dataclass(frozen=True, slots=True)
class UserDescription:
    """A user, and the iterations with which each mechanism's password is salted.

    ``problem`` says why the user's credentials cannot be described.
    """

    user: str
    iterations: Mapping[str, int]  # by the mechanism's name, such as SCRAM-SHA-256
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class DelegationToken:
    """A delegation token. Principals are such as ``User:alice``, times epoch milliseconds.

    ``hmac`` is the secret: anyone who has it can log in as the owner until the token expires.
    """

    token_id: str
    hmac: bytes = field(repr=False)
    owner: str
    requester: str  # who made it
    renewers: tuple[str, ...]  # who may renew it, beside the owner
    issued_ms: int
    expires_ms: int  # unless it is renewed
    max_ms: int  # it cannot be renewed beyond

    @property
    def password(self) -> str:
        """The password to log in with; the user is the token's id."""
        return base64.b64encode(self.hmac).decode()

    def sasl(self, mechanism: str = "SCRAM-SHA-512") -> Sasl:
        """Return the login of a client that has the token."""
        return Sasl(mechanism, self.token_id, self.password, is_delegation_token=True)
