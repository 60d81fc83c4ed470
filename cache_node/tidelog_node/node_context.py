"""The values that the services of one node share.

What every service may need, such as an authorizer, is added here once. Pure state machines get
values, not this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from tidelog_core.config import NodeConfig
from tidelog_core.metadata.image import ClusterImage, ClusterView
from tidelog_core.metadata.records import Broker, Partition
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.replication.leases import PeerLeases

from tidelog_node.dialing.dialer import Dialer
from tidelog_node.node_health import NodeHealth


class Standing(Protocol):
    """What is known of this node and its peers; ``Membership``."""

    @property
    def peers(self) -> PeerLeases:
        """The leases of the other brokers."""

    @property
    def now_ms(self) -> Callable[[], float]:
        """The clock of the leases, which the leader states use too. For any thread."""

    def can_serve(self) -> bool:
        """Whether this node may answer and decide at this moment. For any thread."""

    def leads(self, partition: Partition) -> bool:
        """Whether this process leads the partition as the record has it."""

    def is_live(self, broker_id: int) -> bool:
        """Whether the broker can serve as far as this node knows."""

    def live_brokers(self, image: ClusterImage) -> Mapping[int, Broker]:
        """Return the brokers that can serve: the same object until that changes."""

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when a peer has died or come back, or this node may serve again."""


@dataclass(frozen=True, slots=True)
class NodeContext:
    """Made once, at the start. For the node's event loop unless a field says otherwise."""

    broker_id: int
    incarnation: UUID  # of this process
    static_config: NodeConfig  # what this process was started with
    config: Callable[[], NodeConfig]  # the settings in force, with what was changed since
    store: MetadataStore
    view: ClusterView
    standing: Standing
    dialer: Dialer
    executor: Executor  # for what waits for the disk
    health: NodeHealth
    clock_ms: Callable[[], int]  # wall clock, epoch milliseconds
    may_expire: Callable[[], bool]  # whether ``clock_ms`` can be trusted to tell what is too old
