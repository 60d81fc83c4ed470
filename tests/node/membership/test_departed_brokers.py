"""Brokers that leave for good, in virtual time: who is taken out, and who leads what they led."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import uuid4

from tidelog_core.config import NodeConfig
from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import broker_key
from tidelog_core.metadata.store import ANY_VERSION, Write
from tidelog_core.model import CONSUMER_OFFSETS_TOPIC
from tidelog_node.membership.kept_registration import keep_registered
from tidelog_node.membership.registration import register_broker

from tests.node.membership.virtual_cluster import VirtualCluster, virtual_cluster
from tests.support.virtual_time import run

AFTER_S = 60.0
LOOK_S = 0.5
CONFIG = NodeConfig(broker_unregister_after_ms=int(AFTER_S * 1000))
OFFSETS = CONSUMER_OFFSETS_TOPIC


async def until(holds: Callable[[], Awaitable[bool]], seconds: float) -> None:
    """Wait until it holds, in virtual time."""
    for _ in range(round(seconds / LOOK_S)):
        if await holds():
            return
        await asyncio.sleep(LOOK_S)
    raise AssertionError(f"not within {seconds} s")


async def registered(cluster: VirtualCluster) -> set[int]:
    """Return the brokers that the cluster has."""
    return set((await ClusterView(cluster.store).refresh()).brokers)


def test_a_broker_that_has_left_is_taken_out_after_the_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, config=CONFIG) as cluster:
            await cluster[3].stop()
            await asyncio.sleep(AFTER_S - 10)
            assert await registered(cluster) == {1, 2, 3}

            async def is_out() -> bool:
                return await registered(cluster) == {1, 2}

            await until(is_out, AFTER_S)
            await cluster[3].start()
            assert await registered(cluster) == {1, 2, 3}
            await asyncio.sleep(2 * AFTER_S)  # its lease was kept, and it is renewed
            assert await registered(cluster) == {1, 2, 3}
            assert cluster[3].can_serve

    run(main())


def test_a_broker_that_may_have_the_only_copy_stays(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, config=CONFIG) as cluster:
            await cluster.create("t", partitions=1, replicas=(2, 3))
            await cluster.create("bucket", partitions=1, replicas=(1,), diskless_enable="true")
            await asyncio.sleep(1)
            await cluster[3].kill()
            await asyncio.sleep(5 * AFTER_S)
            assert await registered(cluster) == {1, 2, 3}

    run(main())


def test_nobody_is_taken_out_where_the_time_is_negative(tmp_path: Path) -> None:
    async def main() -> None:
        config = NodeConfig(broker_unregister_after_ms=-1)
        async with virtual_cluster(tmp_path, config=config) as cluster:
            await cluster[3].kill()
            await asyncio.sleep(5 * AFTER_S)
            assert await registered(cluster) == {1, 2, 3}

    run(main())


def test_no_time_at_all_is_no_reason_to_look_all_the_time(tmp_path: Path) -> None:
    async def main() -> None:
        config = NodeConfig(broker_unregister_after_ms=0)
        async with virtual_cluster(tmp_path, config=config) as cluster:
            await cluster[3].stop()
            await asyncio.sleep(5)  # It would never end if the others looked without a pause.
            assert await registered(cluster) == {1, 2}

    run(main())


def test_the_clusters_own_topics_go_back_to_brokers_that_started_later(tmp_path: Path) -> None:
    """The first broker of a cluster that starts again must not keep them for ever."""

    async def main() -> None:
        config = NodeConfig(leader_imbalance_check_interval_seconds=10)
        async with virtual_cluster(tmp_path, config=config) as cluster:
            await cluster.create(OFFSETS, partitions=6)
            await asyncio.sleep(3)
            before = await cluster.leaders(OFFSETS)
            await cluster.add(4)
            for broker_id in (1, 2, 3, 4):
                await cluster[broker_id].kill()
            await cluster[4].start()

            async def are_led_by_4() -> bool:
                return set(await cluster.leaders(OFFSETS)) == {4}

            await until(are_led_by_4, 15)
            for broker_id in (1, 2, 3):
                await cluster[broker_id].start()

            async def are_back() -> bool:
                return await cluster.leaders(OFFSETS) == before

            await until(are_back, 60)
            assert all(len(one.replicas) == 3 for one in await cluster.partitions(OFFSETS))

    run(main())


def test_the_clusters_own_topics_follow_when_all_of_their_replicas_leave(tmp_path: Path) -> None:
    """Their records are none: any broker may lead them."""

    async def main() -> None:
        async with virtual_cluster(tmp_path, config=CONFIG) as cluster:
            await cluster.create(OFFSETS, partitions=6)
            await asyncio.sleep(3)
            for broker_id in (4, 5):
                await cluster.add(broker_id)
            for broker_id in (1, 2, 3):
                await cluster[broker_id].stop()
                await asyncio.sleep(2)  # Until the others have read that it has left.
            assert set(await cluster.leaders(OFFSETS)) <= {4, 5}  # handed over, without a pause

            async def are_replaced() -> bool:
                named = {b for one in await cluster.partitions(OFFSETS) for b in one.replicas}
                return named == {4, 5} == await registered(cluster)

            await until(are_replaced, 3 * AFTER_S)
            for partition in await cluster.partitions(OFFSETS):
                assert set(partition.isr) == {4, 5}

    run(main())


def test_the_clusters_own_topics_are_led_again_when_all_of_their_replicas_die(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, config=CONFIG) as cluster:
            await cluster.create(OFFSETS, partitions=6)
            await cluster.create("t", partitions=2)
            await asyncio.sleep(3)
            for broker_id in (4, 5):
                await cluster.add(broker_id)
            for broker_id in (1, 2, 3):
                await cluster[broker_id].kill()

            async def are_led() -> bool:
                return set(await cluster.leaders(OFFSETS)) <= {4, 5}

            await until(are_led, 15)
            assert set(await cluster.leaders("t")) <= {1, 2, 3}  # there records would be lost

    run(main())


def test_a_broker_that_slept_registers_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, config=CONFIG) as cluster:
            member, incarnation = cluster[3], uuid4()

            async def register() -> None:
                await register_broker(
                    cluster.store,
                    broker_id=3,
                    incarnation=incarnation,
                    endpoints=plaintext_endpoints("localhost", 9003),
                    rack=None,
                )
                await member.view.refresh()

            await register()
            keeping = asyncio.create_task(
                keep_registered(member.view, member.membership, incarnation, register=register)
            )
            await cluster.store.commit([Write(broker_key(3), None, ANY_VERSION)])
            assert await registered(cluster) == {1, 2}

            async def is_back() -> bool:
                return await registered(cluster) == {1, 2, 3}

            await until(is_back, 5)
            assert not keeping.done()
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    run(main())
