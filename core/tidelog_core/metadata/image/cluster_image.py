"""The image: an immutable view of the cluster at about one version of the changelog.

A topic and its partitions always appear together: partitions are read after the topic item that
counts them, and partitions above its count are left out.

An unreadable item is never treated as removed. The image keeps the last readable value, lists the
item in ``unreadable``, and applies all other changes. A partition whose item has become unreadable
has no leader until it is readable again (``readings``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from tidelog_core.config import GroupConfig, NodeConfig, group_config
from tidelog_core.errors import CorruptItem
from tidelog_core.metadata.client_metrics import ClientMetricsOverrides
from tidelog_core.metadata.coordination.group_configs import GroupConfigOverrides
from tidelog_core.metadata.records import (
    Broker,
    DeletedTopic,
    NodeConfigOverrides,
    Partition,
    Topic,
    node_config_key,
    topic_key,
)
from tidelog_core.metadata.security.acls import Acls
from tidelog_core.metadata.security.client_quotas import QuotaRecords
from tidelog_core.metadata.security.delegation_tokens import DelegationTokens
from tidelog_core.metadata.security.roles import Roles
from tidelog_core.metadata.security.scram_users import ScramUsers
from tidelog_core.metadata.store import ClusterVersion, ItemKey
from tidelog_core.model import TopicPartition

NO_VERSION = ClusterVersion(0)  # before the first logged commit


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """The cluster as it was at about ``version``. Never changed: keep it as long as you like."""

    version: ClusterVersion = NO_VERSION
    cluster_id: str = ""  # empty until the first node has written it
    brokers: Mapping[int, Broker] = field(default_factory=dict)
    topics: Mapping[str, Topic] = field(default_factory=dict)
    topic_names: Mapping[UUID, str] = field(default_factory=dict)
    partitions_by_topic: Mapping[UUID, tuple[Partition, ...]] = field(default_factory=dict)
    deleted_topics: Mapping[UUID, DeletedTopic] = field(default_factory=dict)
    node_configs: Mapping[int | None, NodeConfigOverrides] = field(default_factory=dict)
    group_configs: Mapping[str, GroupConfigOverrides] = field(default_factory=dict)
    client_metrics: Mapping[str, ClientMetricsOverrides] = field(default_factory=dict)
    shown_security: frozenset[str] = frozenset()  # of ``SECURITY_COLLECTIONS``
    scram_users: ScramUsers = field(default_factory=ScramUsers)
    delegation_tokens: DelegationTokens = field(default_factory=DelegationTokens)
    acls: Acls = field(default_factory=Acls)
    roles: Roles = field(default_factory=Roles)
    quotas: QuotaRecords = field(default_factory=QuotaRecords)
    # Items that are there and cannot be read, and why.
    unreadable: Mapping[ItemKey, str] = field(default_factory=dict)

    def topic(self, name: str) -> Topic | None:
        """Return the topic, or ``None`` if no topic has this name."""
        return self.topics.get(name)

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        """Return the topic, or ``None`` if no topic has this id."""
        name = self.topic_names.get(topic_id)
        return None if name is None else self.topics[name]

    def partitions(self, name: str) -> tuple[Partition, ...]:
        """Return the topic's partitions in order; none if the topic does not exist."""
        topic = self.topics.get(name)
        return () if topic is None else self.partitions_by_topic[topic.topic_id]

    def partition(self, partition: TopicPartition) -> Partition | None:
        """Return the partition, or ``None`` if it does not exist."""
        partitions = self.partitions(partition.topic)
        if not 0 <= partition.partition < len(partitions):
            return None
        return partitions[partition.partition]

    def group_config(self, group_id: str, node: NodeConfig) -> GroupConfig:
        """Return the settings of a group, whether it is there or not; ``node`` has the defaults."""
        overrides = self.group_configs.get(group_id)
        return group_config({} if overrides is None else overrides.configs, node)

    def is_unreadable(self, topic: str) -> bool:
        """Whether a topic with this name exists whose item is unreadable."""
        return topic_key(topic) in self.unreadable

    def require_readable(self, topic: str) -> None:
        """Raise ``CorruptItem`` if a topic with this name exists whose item is unreadable."""
        key = topic_key(topic)
        if key in self.unreadable:
            raise CorruptItem((key.collection, key.key), self.unreadable[key])

    def has_all_settings(self, topic: str, broker_id: int) -> bool:
        """Whether the topic's settings on that node are all known.

        An unreadable setting may forbid a deletion that the readable ones allow.
        """
        keys = (topic_key(topic), node_config_key(None), node_config_key(broker_id))
        return not any(key in self.unreadable for key in keys)
