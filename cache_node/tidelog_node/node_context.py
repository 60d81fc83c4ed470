"""The values that the services of one node share.

A value that every service may need is added here once. Pure state machines
get single values instead of this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from tidelog_core.config import NodeConfig
from tidelog_core.errors import NotLeaderOrFollower
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Broker, Partition
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.replication.leases.peer_leases import PeerLeases

from tidelog_node.counters import NodeCounters
from tidelog_node.dialing.dialer import Dialer
from tidelog_node.node_health import NodeHealth
from tidelog_node.tracing.tracer import Tracer


class NodeMembership(Protocol):
    """The state of this node and its peers; ``Membership``."""

    @property
    def peers(self) -> PeerLeases:
        """The leases of the other brokers."""

    @property
    def now_ms(self) -> Callable[[], float]:
        """The clock of the leases, which the leader states use too. For any thread."""

    def can_serve(self) -> bool:
        """Return whether this node may answer and decide now. For any thread."""

    @property
    def vanished(self) -> frozenset[int]:
        """The brokers to which clients are not sent for diskless partitions now."""

    @property
    def unfit(self) -> frozenset[int]:
        """The brokers that have published a reason to lead no diskless partitions."""

    @property
    def can_store(self) -> bool:
        """Whether this node can write the object store."""

    @property
    def is_disk_fit(self) -> bool:
        """Whether this node's disk takes records."""

    def leads(self, partition: Partition) -> bool:
        """Return whether this process leads the partition according to the record."""

    def is_live(self, broker_id: int) -> bool:
        """Return whether the broker can serve, as far as this node knows."""

    def live_brokers(self, image: ClusterImage) -> Mapping[int, Broker]:
        """Return the brokers that can serve; the same object until they change."""

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have ``callback`` called when a peer has died or returned, or this node may serve again.

        Returns the function that ends the subscription.
        """


@dataclass(frozen=True, slots=True)
class NodeContext:
    """Made once, at the start. For the node's event loop unless a field says otherwise."""

    broker_id: int
    incarnation: UUID  # of this process
    static_config: NodeConfig  # the settings that this process was started with
    config: Callable[[], NodeConfig]  # the current settings, with later changes
    store: MetadataStore
    view: ClusterView
    membership: NodeMembership
    dialer: Dialer
    executor: Executor  # for work that waits for the disk
    health: NodeHealth
    clock_ms: Callable[[], int]  # wall clock, epoch milliseconds
    may_expire: Callable[[], bool]  # whether ``clock_ms`` can be trusted for expiry
    counters: NodeCounters = field(default_factory=NodeCounters)
    tracer: Tracer | None = None  # ``None``: nothing is traced

    def require_serving(self) -> None:
        """Raise ``NotLeaderOrFollower`` if this node may not answer as a leader now."""
        if not self.membership.can_serve():
            raise NotLeaderOrFollower("this node has lost touch with the cluster")
