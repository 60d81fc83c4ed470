"""Measures the units of leases, polls, ISRs and elections."""

from __future__ import annotations

import asyncio
import dataclasses

from tidelog_core.metadata import records
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import (
    Broker,
    BrokerLease,
)
from tidelog_core.metadata.store import Check
from tidelog_core.replication.change import ChangeReason, PartitionChange
from tidelog_core.replication.election import LeaderElector
from tidelog_core.replication.leases.lease_times import LeaseTimes
from tidelog_core.replication.leases.peer_leases import PeerLeases
from tidelog_core.replication.partition_writer import write_changes
from tidelog_node.membership.lease_keeper import LeaseKeeper
from tidelog_node.membership.membership import Membership
from tidelog_node.membership.node_loop import NodeLoop
from tidelog_node.membership.peer_watch import PeerWatch
from tidelog_node.node_health import NodeHealth

from bench.day.measure_world import (
    BROKERS,
    CHANGED_TOGETHER,
    DEAD,
    LEADER,
    PEERS,
    THIRD,
    MeasuredCluster,
    identity,
)
from tests.support.clock import Clock


class Brokers:
    """Measures leases, polls, ISRs and elections."""

    def __init__(self, world: MeasuredCluster) -> None:
        self._world = world

    async def leases(self) -> None:
        """Measure renewing a broker's lease and reading all leases."""
        others = [
            BrokerLease(broker_id=100 + number, incarnation=identity(number), counter=100_000)
            for number in range(PEERS)
        ]
        for lease in others:
            await self._world.store.commit([records.put(lease, is_logged=False)])
        clock = Clock(0)
        membership = Membership(
            LEADER, times=LeaseTimes(), elector=LeaderElector(LEADER), clock=clock
        )
        keeper = LeaseKeeper(
            membership=membership,
            store=self._world.store,
            node_loop=NodeLoop(
                membership, read_cluster=lambda: asyncio.sleep(0), health=NodeHealth()
            ),
            incarnation=identity(LEADER),
            found=dataclasses.replace(others[LEADER - 100], version=1),
        )
        await keeper.acquire()
        clock.now_ms += LeaseTimes().renew_ms
        await self._world.note("renew a lease", keeper.step)
        view = ClusterView(self._world.store)
        watch = PeerWatch(
            membership=membership, store=self._world.store, view=view, poll_interval_ms=200
        )
        await self._world.note(f"read {PEERS} leases", watch.read)

    async def polls(self) -> None:
        """Measure polls of the changelog."""
        view = ClusterView(self._world.store)
        await view.refresh()
        await self._world.note("poll, nothing has changed", view.refresh)
        await self._write([await self._isr_change(BROKERS)])
        await self._world.note("poll, a partition has changed", view.refresh)

    async def _isr_change(self, isr: tuple[int, ...], *checks: Check) -> PartitionChange:
        after = dataclasses.replace(await self._world.partition(), isr=isr)
        return PartitionChange(after, ChangeReason.ALTER_ISR, checks)

    async def _write(self, changes: list[PartitionChange]) -> None:
        outcome = await write_changes(self._world.store, changes)
        assert len(outcome.written) == len(changes)

    async def partition_changes(self) -> None:
        """Measure ISR changes, and takeovers from a broker whose lease is not renewed."""
        leaves = await self._isr_change(BROKERS[:2])
        await self._world.note("a replica leaves an ISR", lambda: self._write([leaves]))
        broker = await self._world.store.get(records.broker_key(THIRD))
        assert broker is not None
        check = records.check(Broker.from_item(broker))
        joins = await self._isr_change(BROKERS, check)
        await self._world.note("a replica joins an ISR", lambda: self._write([joins]))
        partitions = [await self._world.partition(n) for n in range(CHANGED_TOGETHER)]
        peers, elector = PeerLeases(LeaseTimes()), LeaderElector(LEADER)
        items = await self._world.store.list(records.BROKER_LEASE_COLLECTION)
        leases = [BrokerLease.from_item(item) for item in items]
        peers.observe(leases, started_ms=0, now_ms=0)
        others = [lease for lease in leases if lease.broker_id != DEAD]
        moved = [dataclasses.replace(lease, version=lease.version + 1) for lease in others]
        late_ms = LeaseTimes().lease_ms + 1
        dead = [lease for lease in leases if lease.broker_id == DEAD]
        peers.observe([*moved, *dead], started_ms=late_ms, now_ms=late_ms)
        taken = [
            elector.takeover(p, peers, is_unclean_allowed=False, now_ms=late_ms) for p in partitions
        ]
        changes = [change for change in taken if change is not None]
        assert len(changes) == CHANGED_TOGETHER
        first, rest = changes[:1], changes[1:]
        await self._world.note("take 1 partition over", lambda: self._write(first))
        await self._world.note(f"take {len(rest)} partitions over", lambda: self._write(rest))
