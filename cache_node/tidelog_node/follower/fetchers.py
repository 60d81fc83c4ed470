"""One fetcher for each leader that this node follows; assigns partitions to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidelog_core.config import NodeConfig
from tidelog_core.metadata.records import Broker
from tidelog_core.replication.follower_state import Append, FollowerState
from tidelog_core.subscribers import Subscribers

from tidelog_node.follower.catch_up import CatchUp
from tidelog_node.follower.fetcher import LeaderFetcher
from tidelog_node.follower.wire import FollowerLimits
from tidelog_node.node_context import NodeContext
from tidelog_node.replicas.replica import Replica
from tidelog_node.replicas.replica_manager import ReplicaManager


class FollowerFetchers:
    """Every leader's fetcher. For the node's event loop."""

    def __init__(self, node: NodeContext, *, replicas: ReplicaManager, catch_up: CatchUp) -> None:
        self._node = node
        self._replicas = replicas
        self.dialer = node.dialer
        self.node_config = node.config
        self.catch_up = catch_up
        # What leaders say of diskless partitions: the records are in the bucket.
        self.committed = Subscribers[[Replica, FollowerState, Append]]()
        self._fetchers: dict[int, LeaderFetcher] = {}
        self._unsubscribe: tuple[Callable[[], None], ...] = ()
        self._limits: tuple[Broker, NodeConfig, FollowerLimits] | None = None  # made of both

    def start(self) -> None:
        """Follow the partitions of the image. This node must be registered."""
        self._unsubscribe = (
            self._replicas.roles.following.subscribe(self._assign),
            self._replicas.trouble.subscribe(self._on_trouble),
            self._replicas.exchanged.subscribe(self._on_exchanged),
        )
        for replica in self._replicas.replicas():
            self._assign(replica)

    async def close(self) -> None:
        """Stop following."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        await asyncio.gather(*(fetcher.close() for fetcher in self._fetchers.values()))

    def broker(self, leader_id: int) -> Broker | None:
        """Return the leader's registration, ``None`` if there is none."""
        return self._node.view.image.brokers.get(leader_id)

    def limits(self) -> FollowerLimits | None:
        """Return the fetch limits; ``None`` while this process is not the registered one."""
        own = self._node.view.image.brokers.get(self._node.broker_id)
        if own is None or own.incarnation != self._node.incarnation:
            return None
        config = self.node_config()
        made = self._limits
        if made is None or made[0] is not own or made[1] is not config:
            limits = FollowerLimits(
                replica_id=self._node.broker_id,
                replica_epoch=own.version,
                max_wait_ms=config.replica_fetch_wait_max_ms,
                max_bytes=config.replica_fetch_response_max_bytes,
                partition_max_bytes=config.replica_fetch_max_bytes,
            )
            made = self._limits = (own, config, limits)
        return made[2]

    def now_ms(self) -> float:
        """Return the time of the clock that the roles of replicas use."""
        return self._node.membership.now_ms()

    def on_moved(self, replica: Replica) -> None:
        """Tell the leader soon where a diskless replica ends since its feed has moved it."""
        fetcher = self._fetcher_of(replica)
        if fetcher is not None:
            fetcher.followed.on_moved(replica)

    def _assign(self, replica: Replica) -> None:
        role = replica.role
        follower = None if role is None else role.follower
        if follower is None or follower.leader_id < 0:
            return
        fetcher = self._fetchers.get(follower.leader_id)
        if fetcher is None:
            fetcher = self._fetchers[follower.leader_id] = LeaderFetcher(
                follower.leader_id, self, self._node.broker_id
            )
        replica.is_across_zones = not replica.is_diskless and self._is_across_zones(
            follower.leader_id
        )
        fetcher.followed.add(replica, follower)

    def _is_across_zones(self, leader_id: int) -> bool:
        """Whether the leader is known to be in another zone than this node."""
        brokers = self._node.view.image.brokers
        own, leader = brokers.get(self._node.broker_id), brokers.get(leader_id)
        if own is None or leader is None or own.rack is None or leader.rack is None:
            return False
        return own.rack != leader.rack

    def _on_trouble(self, replica: Replica) -> None:
        fetcher = self._fetcher_of(replica)
        if fetcher is not None:
            fetcher.followed.on_trouble(replica)

    def _on_exchanged(self, replica: Replica) -> None:
        fetcher = self._fetcher_of(replica)
        if fetcher is not None:
            fetcher.followed.on_exchanged(replica)

    def _fetcher_of(self, replica: Replica) -> LeaderFetcher | None:
        follower = None if replica.role is None else replica.role.follower
        return None if follower is None else self._fetchers.get(follower.leader_id)
