"""The context that a service under test shares with the rest of a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from uuid import UUID, uuid4

from tidelog_core.clock import SteadyClock, steady_clock_ms, wall_clock_ms
from tidelog_core.config import NodeConfig
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Broker, Partition
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.replication.leases.lease_times import LeaseTimes
from tidelog_core.replication.leases.peer_leases import PeerLeases
from tidelog_core.subscribers import Subscribers
from tidelog_node.dialing.dialer import Dialer
from tidelog_node.node_context import NodeContext, NodeMembership
from tidelog_node.node_health import NodeHealth
from tidelog_node.security.node_identity import generate_identity
from tidelog_node.security.node_trust import NodeTrust


class Alone:
    """The membership of a node that leads by the records alone, and thinks that all others live."""

    def __init__(
        self,
        broker_id: int = 1,
        *,
        can_serve: Callable[[], bool] = lambda: True,
        now_ms: SteadyClock = steady_clock_ms,
    ) -> None:
        self.broker_id = broker_id
        self.now_ms = now_ms
        self.peers = PeerLeases(LeaseTimes())
        self.vanished = frozenset[int]()
        self.unfit = frozenset[int]()
        self.can_store = self.is_disk_fit = True
        self.changed = Subscribers[[]]()
        self._can_serve = can_serve

    def can_serve(self) -> bool:
        return self._can_serve()

    def leads(self, partition: Partition) -> bool:
        return partition.leader == self.broker_id

    def is_live(self, broker_id: int) -> bool:
        return True

    def live_brokers(self, image: ClusterImage) -> Mapping[int, Broker]:
        return image.brokers

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self.changed.subscribe(callback)


def node_context(
    store: MetadataStore,
    view: ClusterView,
    *,
    broker_id: int = 1,
    incarnation: UUID | None = None,
    static_config: NodeConfig | None = None,
    config: Callable[[], NodeConfig] = NodeConfig,
    membership: NodeMembership | None = None,
    executor: Executor | None = None,
    health: NodeHealth | None = None,
    clock_ms: Callable[[], int] = wall_clock_ms,
    may_expire: Callable[[], bool] = lambda: True,
) -> NodeContext:
    """Return a node's context; the defaults are those of a cluster of one node."""
    return NodeContext(
        broker_id=broker_id,
        incarnation=incarnation or uuid4(),
        static_config=static_config or NodeConfig(),
        config=config,
        store=store,
        view=view,
        membership=membership or Alone(broker_id),
        dialer=Dialer(NodeTrust(generate_identity(broker_id), view, encrypts=True)),
        executor=executor or ThreadPoolExecutor(1),  # makes no thread before it is used
        health=health or NodeHealth(),
        clock_ms=clock_ms,
        may_expire=may_expire,
    )
