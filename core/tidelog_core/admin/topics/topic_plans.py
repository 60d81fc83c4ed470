"""Plans the creation, widening and deletion of topics. Pure decisions.

Codes and messages follow Kafka's ``ReplicationControlManager``, which clients and
their tests rely on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from uuid import UUID

from tidelog_core.admin.names import Collisions, is_internal, validate_topic_name
from tidelog_core.admin.settings.configs import new_topic_configs
from tidelog_core.admin.topics import assignment
from tidelog_core.config import NodeConfig
from tidelog_core.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    PolicyViolation,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.records import AckedBy, DeletedTopic, Partition, Topic
from tidelog_core.model import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tidelog_core.replication.placement.diskless_followers import DisklessFollowers
from tidelog_core.replication.placement.heirs import DISKLESS_ENABLE, wants_diskless
from tidelog_core.replication.placement.placer import ReplicaPlacer

USE_DEFAULT = -1
# A larger request is taken for a mistake: it would need thousands of commits, and a node
# is built for about ten thousand partitions.
PARTITIONS_MAX = 10_000
# Of all topics that one request creates. Source: ``MAX_PARTITIONS_PER_BATCH`` of Kafka's
# ``ReplicationControlManager``.
NEW_PARTITIONS_MAX = 10_000
CLUSTER_METADATA_TOPIC = "__cluster_metadata"  # Kafka's own; clients expect it to be refused
OWN_TOPICS_REPLICATION_FACTOR = 3  # Kafka's offsets.topic.replication.factor


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A requested topic. With ``assignments`` the two numbers stay at their default."""

    name: str
    partition_count: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    assignments: Sequence[tuple[int, Sequence[int]]] = ()  # (partition, replicas)
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WiderTopic:
    """A request for more partitions of a topic."""

    name: str
    count: int  # the new total
    assignments: Sequence[Sequence[int]] | None = None  # replicas of the additional ones


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """A topic item to write, with its new partitions."""

    topic: Topic
    partitions: tuple[Partition, ...]  # the new ones only

    @property
    def replication_factor(self) -> int:
        """The number of replicas of the first new partition."""
        return len(self.partitions[0].replicas)


class TopicPlanner:
    """Plans new and wider topics on one image, each on top of those before it. For one task."""

    def __init__(
        self, image: ClusterImage, *, node: NodeConfig, live: Set[int] | None = None
    ) -> None:
        """``live`` defaults to every registered broker."""
        self._image = image
        self._node = node
        self._live = live
        self._planned: set[str] = set()
        # Lazy: most requests need neither, and both iterate over all topics.
        self._collisions: Collisions | None = None
        self._placer: ReplicaPlacer | None = None
        self._followers: dict[int, DisklessFollowers] = {}  # by replication factor
        self._configs: dict[tuple[frozenset[tuple[str, str | None]], bool], dict[str, str]] = {}

    def plan_new(self, new: NewTopic, *, topic_id: UUID, now_ms: int) -> TopicPlan:
        """Return the topic to create.

        Raises ``InvalidTopic``, ``TopicAlreadyExists``, ``InvalidConfig``, ``InvalidRequest``,
        ``InvalidPartitions``, ``InvalidReplicationFactor`` or ``InvalidReplicaAssignment``.
        """
        self._check_name(new.name)
        is_own = is_internal(new.name)
        configs = self._checked_configs(new.configs, is_own)
        has_chain = configs.get(DISKLESS_ENABLE) == "true"
        if new.assignments:
            replicas = _given_replicas(self._image, new)
        else:
            count, factor = _wanted_size(new, self._node)
            if has_chain and new.replication_factor == USE_DEFAULT:
                factor = 1  # More are caches: nothing depends on them.
            replicas = self._spread(count, factor, is_by_chain=has_chain)
        topic = Topic(
            name=new.name,
            topic_id=topic_id,
            partition_count=len(replicas),
            configs=configs,
            is_internal=is_own,
            created_ms=now_ms,
        )
        plan = TopicPlan(topic, _partitions(topic, replicas, live=self._live))
        self._planned.add(new.name)
        assert self._collisions is not None
        self._collisions.add(new.name)
        return plan

    def plan_wider(self, wider: WiderTopic) -> TopicPlan:
        """Return the widened topic with its additional partitions.

        Raises ``UnknownTopicOrPartition``, ``InvalidPartitions``, ``InvalidReplicaAssignment``
        or ``InvalidReplicationFactor``.
        """
        name, count = wider.name, wider.count
        topic = self._image.topic(name)
        if topic is None:
            raise UnknownTopicOrPartition("This server does not host this topic-partition.")
        before = topic.partition_count
        if count == before:
            raise InvalidPartitions(f"Topic already has {before} partition(s).")
        if count < before:
            raise InvalidPartitions(
                f"The topic {name} currently has {before} partition(s);"
                f" {count} would not be an increase."
            )
        _check_partition_limit(count)
        # The replication factor of the first partition whose item was ever readable.
        widths = (len(partition.replicas) for partition in self._image.partitions(name))
        factor = next((width for width in widths if width), 0)
        if wider.assignments is None:
            replicas = self._spread(count - before, factor, is_by_chain=wants_diskless(topic))
        else:
            replicas = self._checked_assignments(wider.assignments, count - before, factor)
        widened = dataclasses.replace(topic, partition_count=count)
        partitions = _partitions(topic, replicas, first_partition=before, live=self._live)
        return TopicPlan(widened, partitions)

    def _check_name(self, name: str) -> None:
        if name == CLUSTER_METADATA_TOPIC:
            raise InvalidRequest(f"Creation of internal topic {name} is prohibited.")
        is_there = self._image.topic(name) is not None or self._image.is_unreadable(name)
        if is_there or name in self._planned:
            raise TopicAlreadyExists(f"Topic '{name}' already exists.")
        validate_topic_name(name)
        if self._collisions is None:
            self._collisions = Collisions(self._image.topics)
        collision = self._collisions.find(name)
        if collision is not None:
            raise InvalidTopic(f"Topic '{name}' collides with existing topic: {collision}")

    def _checked_configs(self, configs: Mapping[str, str | None], is_own: bool) -> dict[str, str]:
        """Return the checked overrides; those of thousands of topics are mostly the same."""
        key = frozenset(configs.items()), is_own
        checked = self._configs.get(key)
        if checked is None:
            checked = new_topic_configs(configs, self._node, is_own=is_own)
            self._configs[key] = checked
        return dict(checked)

    def _checked_assignments(
        self, assignments: Sequence[Sequence[int]], count: int, factor: int
    ) -> tuple[tuple[int, ...], ...]:
        if len(assignments) != count:
            raise InvalidReplicaAssignment(
                f"Attempted to add {count} additional partition(s), but only"
                f" {len(assignments)} assignment(s) were specified."
            )
        for given in assignments:
            assignment.validate_assignment(
                given, broker_ids=self._image.brokers.keys(), replication_factor=factor
            )
        return tuple(tuple(given) for given in assignments)

    def _spread(self, count: int, factor: int, *, is_by_chain: bool) -> tuple[tuple[int, ...], ...]:
        if self._placer is None:
            self._placer = assignment.placer(
                self._image.brokers,
                existing=assignment.existing_replicas(self._image),
                live=self._live,
            )
        followers = self._followers_of_diskless(factor) if is_by_chain and factor > 1 else None
        return assignment.spread(self._placer, count, factor, followers)

    def _followers_of_diskless(self, factor: int) -> DisklessFollowers:
        followers = self._followers.get(factor)
        if followers is None:
            followers = assignment.diskless_followers(self._image, self._live, factor)
            self._followers[factor] = followers
        return followers


def wanted_partition_count(new: NewTopic, node: NodeConfig) -> int:
    """Return how many partitions the topic would have, 0 for an invalid number."""
    if new.assignments:
        return len(new.assignments)
    if new.partition_count == USE_DEFAULT:
        return node.num_partitions
    return max(0, new.partition_count)


def check_new_partition_count(count: int) -> None:
    """Raise ``PolicyViolation`` if one request would create so many partitions."""
    if count > NEW_PARTITIONS_MAX:
        raise PolicyViolation("Excessively large number of partitions per request.")


def plan_deletion(topic: Topic, *, now_ms: int) -> DeletedTopic:
    """Return the tombstone that replaces the topic until its data is deleted."""
    return DeletedTopic(
        topic_id=topic.topic_id,
        name=topic.name,
        partition_count=topic.partition_count,
        deleted_ms=now_ms,
    )


def default_topic(name: str, node: NodeConfig, *, live_count: int) -> NewTopic:
    """Return the topic to create if a missing topic of this name is needed.

    The cluster's own topics get Kafka's replication factor, or the number of live brokers if
    that is less.
    """
    shard_counts = {
        CONSUMER_OFFSETS_TOPIC: node.offsets_topic_num_partitions,
        TRANSACTION_STATE_TOPIC: node.transaction_state_log_num_partitions,
    }
    if name in shard_counts:
        # The topic carries leadership only, one shard a partition; its log stays empty.
        return NewTopic(
            name=name,
            partition_count=shard_counts[name],
            replication_factor=max(1, min(OWN_TOPICS_REPLICATION_FACTOR, live_count)),
            configs={"cleanup.policy": "compact"},
        )
    return NewTopic(name=name)


def _given_replicas(image: ClusterImage, new: NewTopic) -> tuple[tuple[int, ...], ...]:
    if new.replication_factor != USE_DEFAULT:
        raise InvalidRequest(
            "A manual partition assignment was specified, but replication factor was not set to -1."
        )
    if new.partition_count != USE_DEFAULT:
        raise InvalidRequest(
            "A manual partition assignment was specified, but numPartitions was not set to -1."
        )
    given: dict[int, tuple[int, ...]] = {}
    replication_factor: int | None = None
    for partition, replicas in new.assignments:
        if partition in given:
            raise InvalidReplicaAssignment(
                f"Found multiple manual partition assignments for partition {partition}"
            )
        assignment.validate_assignment(
            replicas, broker_ids=image.brokers.keys(), replication_factor=replication_factor
        )
        replication_factor = len(replicas)
        given[partition] = tuple(replicas)
    if set(given) != set(range(len(given))):
        raise InvalidReplicaAssignment(
            "partitions should be a consecutive 0-based integer sequence"
        )
    _check_partition_limit(len(given))
    return tuple(given[partition] for partition in range(len(given)))


def _wanted_size(new: NewTopic, node: NodeConfig) -> tuple[int, int]:
    """Return the number of partitions and the replication factor of a topic to spread."""
    if new.replication_factor < USE_DEFAULT or new.replication_factor == 0:
        raise InvalidReplicationFactor(
            "Replication factor must be larger than 0, or -1 to use the default value."
        )
    if new.partition_count < USE_DEFAULT or new.partition_count == 0:
        raise InvalidPartitions("Number of partitions was set to an invalid non-positive value.")
    count = node.num_partitions if new.partition_count == USE_DEFAULT else new.partition_count
    factor = (
        node.default_replication_factor
        if new.replication_factor == USE_DEFAULT
        else new.replication_factor
    )
    _check_partition_limit(count)
    return count, factor


def _check_partition_limit(count: int) -> None:
    if count > PARTITIONS_MAX:
        raise InvalidPartitions(
            f"A topic may have at most {PARTITIONS_MAX} partitions, not {count}."
        )


def _partitions(
    topic: Topic,
    replicas: Sequence[tuple[int, ...]],
    *,
    first_partition: int = 0,
    live: Set[int] | None,
) -> tuple[Partition, ...]:
    """Return the new partitions: the live replicas are in sync, and the first of them leads."""
    partitions = []
    acked_by = AckedBy.CHAIN if wants_diskless(topic) else None
    for number, brokers in enumerate(replicas, first_partition):
        isr = brokers if live is None else tuple(b for b in brokers if b in live)
        if not isr:
            raise InvalidReplicaAssignment(
                "All brokers specified in the manual partition assignment for partition"
                f" {number} are fenced or in controlled shutdown."
            )
        partitions.append(
            Partition(
                topic_id=topic.topic_id,
                partition=number,
                replicas=brokers,
                leader=isr[0],
                leader_epoch=0,
                isr=isr,
                acked_by=acked_by,
            )
        )
    return tuple(partitions)
