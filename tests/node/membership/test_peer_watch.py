"""In a large cluster a few brokers read the leases often and the others seldom."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.records import (
    BROKER_LEASE_COLLECTION,
    Broker,
    BrokerLease,
    broker_lease_key,
)
from tidelog_core.metadata.store import ANY_VERSION, Write
from tidelog_core.replication.leases.lease_watch import WATCHERS_MIN, unhurried_interval_ms

from tests.node.membership.virtual_cluster import (
    LEASE_S,
    Member,
    VirtualCluster,
    virtual_cluster,
)
from tests.support.virtual_time import run

OTHERS = range(1, 301)
MEMBER = 301


async def register(cluster: VirtualCluster, broker_ids: range) -> None:
    for broker_id in broker_ids:
        broker = Broker(
            broker_id=broker_id,
            incarnation=UUID(int=broker_id),
            endpoints=plaintext_endpoints("h", 1),
            version=0,
        )
        await cluster.store.commit([Write(broker.item_id, broker.to_body(), ANY_VERSION)])


async def renew(cluster: VirtualCluster, broker_ids: range) -> None:
    """Renew the leases of brokers that are nothing but their items."""
    counter = 0
    while True:
        counter += 1
        for broker_id in broker_ids:
            lease = BrokerLease(
                broker_id=broker_id, incarnation=UUID(int=broker_id), counter=counter
            )
            write = Write(broker_lease_key(broker_id), lease.to_body(), ANY_VERSION, False)
            await cluster.store.commit([write])
        await asyncio.sleep(3)


async def join_others(cluster: VirtualCluster) -> tuple[asyncio.Task[None], Member]:
    """Have a member join the others; return the task that renews their leases, and the member."""
    cluster.store.latency = 0
    renewing = asyncio.create_task(renew(cluster, OTHERS))
    await asyncio.sleep(0.1)
    await register(cluster, OTHERS)
    member = await cluster.add(MEMBER)
    await asyncio.sleep(5)
    return renewing, member


def test_who_does_not_watch_reads_seldom_until_the_watchers_are_gone(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=0) as cluster:
            renewing, member = await join_others(cluster)
            listed = member.link.listed
            interval_s = unhurried_interval_ms(len(OTHERS) + 1) / 1000
            before = listed[BROKER_LEASE_COLLECTION]
            await asyncio.sleep(10 * interval_s)
            assert 7 <= listed[BROKER_LEASE_COLLECTION] - before <= 13
            # It learns of a new broker at once all the same, and reads no more for that.
            late = range(MEMBER + 1, MEMBER + 2)
            renewing_late = asyncio.create_task(renew(cluster, late))
            await asyncio.sleep(0.1)
            before = listed[BROKER_LEASE_COLLECTION]
            await register(cluster, late)
            await asyncio.sleep(0.5)
            assert member.membership.is_live(MEMBER + 1)
            assert listed[BROKER_LEASE_COLLECTION] - before <= 1
            # Those that watched die.
            renewing.cancel()
            await asyncio.sleep(LEASE_S + 3 * interval_s)
            assert not member.membership.is_live(WATCHERS_MIN)
            before = listed[BROKER_LEASE_COLLECTION]
            await asyncio.sleep(10)
            assert listed[BROKER_LEASE_COLLECTION] - before >= 15
            renewing_late.cancel()

    run(main())


def test_many_registrations_are_no_reason_to_read_leases(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=0) as cluster:
            renewing, member = await join_others(cluster)
            late = range(MEMBER + 1, MEMBER + 101)
            renewing_late = asyncio.create_task(renew(cluster, late))
            asked = member.link.asked
            before = asked[BROKER_LEASE_COLLECTION]
            for broker_id in late:
                await asyncio.sleep(0.1)
                await register(cluster, range(broker_id, broker_id + 1))
            await asyncio.sleep(0.5)
            assert all(member.membership.is_live(broker_id) for broker_id in late)
            interval_s = unhurried_interval_ms(MEMBER) / 1000
            assert asked[BROKER_LEASE_COLLECTION] - before <= 10 / interval_s * 1.3 + 1
            # Those that die later are found dead as any others.
            renewing_late.cancel()
            await asyncio.sleep(LEASE_S + 3 * interval_s)
            assert not any(member.membership.is_live(broker_id) for broker_id in late)
            renewing.cancel()

    run(main())


def test_an_outage_of_the_store_makes_nobody_read_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=0) as cluster:
            renewing, member = await join_others(cluster)
            interval_s = unhurried_interval_ms(len(OTHERS) + 1) / 1000
            # Nobody reaches the store, and some of the others do so later than this member.
            renewing.cancel()
            member.link.is_cut = True
            asked = member.link.asked
            before = asked[BROKER_LEASE_COLLECTION]
            await asyncio.sleep(10 * interval_s)
            assert asked[BROKER_LEASE_COLLECTION] - before <= 13
            member.link.is_cut = False
            found_dead = asyncio.Event()
            member.membership.subscribe(found_dead.set)
            async with asyncio.timeout(LEASE_S + 3 * interval_s):
                while len(member.membership.dead) < len(OTHERS):
                    found_dead.clear()
                    await found_dead.wait()
            renewing = asyncio.create_task(renew(cluster, OTHERS))
            before = asked[BROKER_LEASE_COLLECTION]
            await asyncio.sleep(5 * interval_s)
            assert asked[BROKER_LEASE_COLLECTION] - before <= 7
            assert not member.membership.dead
            renewing.cancel()

    run(main())
