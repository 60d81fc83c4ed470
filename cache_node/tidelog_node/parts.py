"""What a node is put together from, by what it is about."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from uuid import UUID

from tidelog_core.config import NodeConfig
from tidelog_core.metadata.image import ClusterView
from tidelog_core.metadata.store import MetadataStore

from tidelog_node.dialing.dialer import Dialer
from tidelog_node.disk.data_disk import DiskWatch
from tidelog_node.inspection.inspector import BatchInspector
from tidelog_node.logs.directories import LogDirectories
from tidelog_node.logs.restore import Unrestored
from tidelog_node.membership.member import ClusterMember
from tidelog_node.node_health import NodeHealth
from tidelog_node.replicas import ReplicaManager
from tidelog_node.tier.service import TierService
from tidelog_node.transactions.coordinator import TransactionCoordinator
from tidelog_node.transactions.group_offsets import TransactionalOffsets
from tidelog_node.transactions.marker_writer import MarkerWriter
from tidelog_node.transactions.producer_ids import ProducerIds
from tidelog_node.transactions.verifier import TransactionVerifier
from tidelog_node.upkeep.flushing import Flusher
from tidelog_node.upkeep.log_changes import LogChanges


@dataclass(frozen=True, slots=True)
class ClusterParts:
    """The cluster as this node sees it, and what it keeps of it on its disk."""

    static_config: NodeConfig
    node_config: Callable[[], NodeConfig]
    directories: LogDirectories
    store: MetadataStore
    view: ClusterView
    dialer: Dialer
    member: ClusterMember
    incarnation: UUID
    unrestored: Unrestored
    health: NodeHealth


@dataclass(frozen=True, slots=True)
class DataParts:
    """The logs, and what looks after them."""

    replicas: ReplicaManager
    changes: LogChanges
    flusher: Flusher
    tier: TierService
    executor: Executor  # for what waits for the disk
    disk_watch: DiskWatch
    may_expire: Callable[[], bool]  # whether the wall clock may tell what is too old
    inspector: BatchInspector


@dataclass(frozen=True, slots=True)
class TransactionParts:
    """The node's part in transactions: as coordinator, as leader, and for groups."""

    producer_ids: ProducerIds
    coordinator: TransactionCoordinator
    verifier: TransactionVerifier
    writer: MarkerWriter
    offsets: TransactionalOffsets
