"""Who is to lead diskless partitions, which have one replica and any live node may lead."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from pathlib import Path

from tidelog_core.config import NodeConfig
from tidelog_core.metadata.records import Partition
from tidelog_core.replication.placement.heirs import heir_of

from tests.node.membership.virtual_cluster import LEASE_S, VirtualCluster, virtual_cluster
from tests.support.virtual_time import run

STAYS = NodeConfig(auto_leader_rebalance_enable=False)


async def create(cluster: VirtualCluster, *, partitions: int, leader: int = 1) -> None:
    await cluster.create("t", partitions=partitions, replicas=(leader,), diskless_enable="true")
    await asyncio.sleep(3)


def was_led_by(partition: Partition, broker_id: int) -> Partition:
    alone = (broker_id,)
    return dataclasses.replace(partition, leader=broker_id, replicas=alone, isr=alone)


def assert_led_alone(partition: Partition) -> None:
    assert partition.replicas == partition.isr == (partition.leader,)


def test_all_other_nodes_inherit_the_partitions_of_a_dead_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=4, config=STAYS) as cluster:
            await create(cluster, partitions=60)
            await cluster[1].kill()
            await asyncio.sleep(LEASE_S + 3)
            found = await cluster.partitions("t")
            for partition in found:
                assert partition.leader == heir_of(was_led_by(partition, 1), (2, 3, 4))
                assert partition.leader_epoch == 1
                assert_led_alone(partition)
                assert cluster[partition.leader].leads("t", partition.partition)
            assert min(Counter(partition.leader for partition in found).values()) >= 10

    run(main())


async def seconds_until_inherited(cluster: VirtualCluster) -> float:
    """Wait until broker 1 leads nothing of ``t``."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while 1 in await cluster.leaders("t"):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return loop.time() - began


def test_a_killed_process_is_missed_within_half_a_second_whenever_it_dies(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, config=STAYS) as cluster:
            await cluster.create("replicated", partitions=6)
            await create(cluster, partitions=6)
            for phase in range(6):
                await asyncio.sleep(phase * 0.17)
                await cluster[1].kill()
                seconds = await seconds_until_inherited(cluster)
                assert 0.25 < seconds < 0.6, phase
                assert 1 in await cluster.leaders("replicated")  # they wait for the lease's end
                await cluster[1].start(was_clean=False)
                await asyncio.sleep(1)
                for partition in await cluster.partitions("t"):
                    await cluster.lead(partition, 1)
                await asyncio.sleep(4)  # It renews every second by then.

    run(main())


def test_a_host_that_is_down_is_missed_after_two_renewals(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, config=STAYS) as cluster:
            await create(cluster, partitions=6)
            for other in (2, 3):
                cluster[other].ports.dropped.add(1)
            await cluster[1].kill()
            assert 3.0 < await seconds_until_inherited(cluster) < 5.5 < LEASE_S

    run(main())


def test_a_filter_between_nodes_moves_leads_once_at_most(tmp_path: Path) -> None:
    """Its port refuses all others, and it renews its lease: it is alive."""

    async def main() -> None:
        async with virtual_cluster(tmp_path, config=STAYS) as cluster:
            await create(cluster, partitions=6)
            epochs = []
            for turn in range(4):
                for other in (2, 3)[: 1 + turn % 2]:
                    cluster[other].ports.filter(1)
                await asyncio.sleep(20)
                for other in (2, 3)[: 1 + turn % 2]:
                    cluster[other].ports.end_filter(1)
                await asyncio.sleep(2)
                for partition in await cluster.partitions("t"):
                    await cluster.lead(partition, 1)
                await asyncio.sleep(4)
                epochs.append([p.leader_epoch for p in await cluster.partitions("t")])
            # In each turn it is made the leader again. Two others may be wrong once each.
            for first, last in zip(epochs[0], epochs[-1], strict=True):
                assert last - first <= 3 + 1
            assert epochs[3] == [epoch + 2 for epoch in epochs[1]]

    run(main())


def test_a_node_that_all_others_refuse_takes_nothing_from_them(tmp_path: Path) -> None:
    """A filter in front of it rejects what it sends; it reaches the metadata store."""

    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=4, config=STAYS) as cluster:
            for leader in (1, 2, 3):
                name = f"t-{leader}"
                await cluster.create(name, partitions=4, replicas=(leader,), diskless_enable="true")
            await asyncio.sleep(5)
            assert dict(cluster[4].ports.held) == {1: 1, 2: 1, 3: 1}
            # Once it lasts for longer than a renewal, the others need not be reached at once.
            for seconds, pause_s in ((0.4, 0.0), (1.1, 0.0), (20.0, 0.4)):
                for other in (1, 2, 3):
                    cluster[4].ports.filter(other)
                await asyncio.sleep(seconds)
                for other in (1, 2, 3):
                    cluster[4].ports.end_filter(other)
                    await asyncio.sleep(pause_s)
                await asyncio.sleep(3)
                for leader in (1, 2, 3):
                    for partition in await cluster.partitions(f"t-{leader}"):
                        assert (partition.leader, partition.leader_epoch) == (leader, 0)

    run(main())


def test_processes_that_are_killed_at_once_are_missed_with_their_next_renewal(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, config=STAYS) as cluster:
            for leader in (1, 2):
                name = f"t-{leader}"
                await cluster.create(name, partitions=4, replicas=(leader,), diskless_enable="true")
            await asyncio.sleep(5)
            await cluster[1].kill()
            await cluster[2].kill()
            await asyncio.sleep(2.5)
            for leader in (1, 2):
                assert await cluster.leaders(f"t-{leader}") == [3] * 4

    run(main())


def test_only_a_process_that_was_reached_has_others_dialed_when_it_refuses(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=6, config=STAYS) as cluster:
            await create(cluster, partitions=6)
            assert not any(member.ports.asked for member in cluster)
            await cluster[1].kill()
            await seconds_until_inherited(cluster)
            for observer in (2, 3, 4, 5, 6):
                asked = cluster[observer].ports.asked
                assert len(set(asked)) == len(asked) == 3
                assert not {1, observer} & set(asked)
            # They begin at different ones.
            counts = Counter(b for member in cluster for b in member.ports.asked)
            assert max(counts.values()) <= 4

    run(main())


def test_a_leader_that_refuses_while_the_store_is_away_is_hidden_for_a_moment_only(
    tmp_path: Path,
) -> None:
    """It may be alive, and clients may reach it."""

    async def main() -> None:
        async with virtual_cluster(tmp_path, config=STAYS) as cluster:
            await create(cluster, partitions=6)
            await asyncio.sleep(2)
            other = cluster[2]
            other.link.is_cut = True
            other.ports.filter(1)
            await asyncio.sleep(0.5)
            assert 1 in other.membership.vanished
            await asyncio.sleep(5)
            for _ in range(20):
                assert 1 not in other.membership.vanished
                await asyncio.sleep(0.5)
            other.ports.end_filter(1)
            await asyncio.sleep(1)
            other.link.is_cut = False
            await asyncio.sleep(4)
            assert 1 not in other.membership.vanished
            assert set(await cluster.leaders("t")) == {1}

    run(main())


def test_a_port_that_is_closed_for_a_moment_moves_no_leads(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, config=STAYS) as cluster:
            await create(cluster, partitions=6)
            for seconds in (0.05, 0.15, 0.25):
                for other in (2, 3):
                    cluster[other].ports.filter(1)
                await asyncio.sleep(seconds)
                for other in (2, 3):
                    cluster[other].ports.end_filter(1)
                await asyncio.sleep(6)
            for partition in await cluster.partitions("t"):
                assert (partition.leader, partition.leader_epoch) == (1, 0)

    run(main())


def test_a_leader_whose_connections_end_at_once_is_named_as_long_as_it_renews(
    tmp_path: Path,
) -> None:
    """A proxy between the nodes does that. Clients may reach it all the same."""

    async def main() -> None:
        async with virtual_cluster(tmp_path, config=STAYS) as cluster:
            await create(cluster, partitions=6)
            await asyncio.sleep(2)
            ports, membership = cluster[2].ports, cluster[2].membership
            ports.closing.add(1)
            ports.filter(1)
            ports.end_filter(1)
            hidden = []
            for _ in range(200):
                await asyncio.sleep(0.1)
                hidden.append(1 in membership.vanished)
            assert any(hidden[:5])
            assert hidden.count(True) < 30
            assert ports.held[1] > 40
            assert set(await cluster.leaders("t")) == {1}

    run(main())


def test_a_process_that_is_back_within_a_moment_keeps_its_leads(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, config=STAYS) as cluster:
            await create(cluster, partitions=6)
            for turn in range(4):
                await cluster[1].kill()
                await asyncio.sleep(0.1)
                await cluster[1].start(was_clean=False)
                await asyncio.sleep(LEASE_S + 0.3 * turn)
                for partition in await cluster.partitions("t"):
                    assert (partition.leader, partition.leader_epoch) == (1, 1 + turn)

    run(main())


def test_a_process_that_is_back_within_a_second_gets_its_share_again_once(tmp_path: Path) -> None:
    """Its leads go to others and come back. Nothing moves then until it ends again."""

    async def main() -> None:
        async with virtual_cluster(tmp_path) as cluster:
            await create(cluster, partitions=30)
            await asyncio.sleep(15)
            for _ in range(3):
                before = await cluster.partitions("t")
                await cluster[1].kill()
                await asyncio.sleep(0.8)
                await cluster[1].start(was_clean=False)
                await asyncio.sleep(20)
                found = await cluster.partitions("t")
                assert Counter(p.leader for p in found) == {1: 10, 2: 10, 3: 10}
                for old, new in zip(before, found, strict=True):
                    assert new.leader_epoch - old.leader_epoch <= 2
                await asyncio.sleep(30)
                assert await cluster.partitions("t") == found

    run(main())


def test_a_process_that_does_not_listen_yet_keeps_its_leads(tmp_path: Path) -> None:
    """It has registered, and renews its lease. Nobody has reached it."""

    async def main() -> None:
        async with virtual_cluster(tmp_path, config=STAYS) as cluster:
            await create(cluster, partitions=6)
            await cluster[1].kill()
            for other in (2, 3):
                cluster[other].ports.filter(1)
            await cluster[1].start(was_clean=False)
            await asyncio.sleep(1.2)
            for other in (2, 3):
                cluster[other].ports.end_filter(1)
            await asyncio.sleep(4)
            for partition in await cluster.partitions("t"):
                assert (partition.leader, partition.leader_epoch) == (1, 1)

    run(main())


def test_only_brokers_that_lead_diskless_partitions_are_watched(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, config=STAYS) as cluster:
            await cluster.create("replicated", partitions=6)
            await asyncio.sleep(2)
            assert not any(member.ports.held for member in cluster)
            await create(cluster, partitions=6)
            assert [dict(member.ports.held) for member in cluster] == [{}, {1: 1}, {1: 1}]
            before = cluster[1].link.commits, cluster[2].link.commits
            await asyncio.sleep(9)
            renewals = cluster[1].link.commits - before[0], cluster[2].link.commits - before[1]
            assert renewals[0] in (8, 9, 10)  # It leads by its chain, so it renews every second.
            assert renewals[1] in (2, 3, 4)

    run(main())


def test_a_leader_that_renews_late_keeps_what_others_were_about_to_take(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, config=STAYS) as cluster:
            await create(cluster, partitions=6)
            for seconds in (0.7, 1.3):
                cluster[1].link.is_cut = True
                await asyncio.sleep(seconds)
                cluster[1].link.is_cut = False
                await asyncio.sleep(4)
            assert set(await cluster.leaders("t")) == {1}

    run(main())


def test_the_next_heir_takes_over_if_the_first_one_has_died_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, config=STAYS) as cluster:
            await create(cluster, partitions=8)
            await cluster[1].kill()
            await cluster[2].kill()
            await asyncio.sleep(2 * LEASE_S)
            assert set(await cluster.leaders("t")) == {3}

    run(main())


def test_a_restarted_node_takes_its_own_again_in_the_next_epoch(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, config=STAYS) as cluster:
            await create(cluster, partitions=4)
            await cluster[1].kill()
            await cluster[1].start(was_clean=False)
            await asyncio.sleep(2)
            for partition in await cluster.partitions("t"):
                assert (partition.leader, partition.leader_epoch) == (1, 1)
                assert cluster[1].leads("t", partition.partition)

    run(main())


def test_a_leader_that_was_away_comes_back_to_nothing_and_takes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, config=STAYS) as cluster:
            await create(cluster, partitions=4)
            cluster[1].link.is_cut = True
            await asyncio.sleep(LEASE_S + 3)
            cluster[1].link.is_cut = False
            await asyncio.sleep(LEASE_S)
            for partition in await cluster.partitions("t"):
                assert partition.leader in (2, 3)
                assert partition.leader_epoch == 1
                assert not cluster[1].leads("t", partition.partition)

    run(main())


def test_a_node_that_stops_hands_all_over_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, config=STAYS) as cluster:
            await create(cluster, partitions=20)
            loop = asyncio.get_running_loop()
            began = loop.time()
            await cluster[1].stop()
            assert loop.time() - began < 1
            for partition in await cluster.partitions("t"):
                assert partition.leader == heir_of(was_led_by(partition, 1), (2, 3))
                assert partition.leader_epoch == 1
                assert_led_alone(partition)

    run(main())


def test_a_node_without_a_fit_disk_names_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, config=STAYS) as cluster:
            await create(cluster, partitions=6)
            cluster[1].membership.report_disk(is_fit=False)
            await asyncio.sleep(3)
            assert set(await cluster.leaders("t")) == {2, 3}
            await cluster[2].kill()
            await asyncio.sleep(LEASE_S)
            assert set(await cluster.leaders("t")) == {3}  # not the unfit one
            await cluster[3].kill()
            await asyncio.sleep(LEASE_S)
            assert set(await cluster.leaders("t")) == {1}  # but rather than nobody

    run(main())


def test_a_node_that_joins_gets_its_share_within_10_seconds(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=2) as cluster:
            await create(cluster, partitions=30)
            await asyncio.sleep(10)
            assert Counter(await cluster.leaders("t")) == {1: 15, 2: 15}
            await cluster.add(3)
            await asyncio.sleep(10)
            assert Counter(await cluster.leaders("t")) == {1: 10, 2: 10, 3: 10}
            moved = [p.leader_epoch for p in await cluster.partitions("t")]
            await asyncio.sleep(30)
            assert [p.leader_epoch for p in await cluster.partitions("t")] == moved

    run(main())


def test_a_rolling_restart_leaves_the_leads_spread(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path) as cluster:
            await create(cluster, partitions=31)
            await asyncio.sleep(10)
            for broker_id in (1, 2, 3):
                await cluster[broker_id].stop()
                await cluster[broker_id].start()
                await asyncio.sleep(12)
            counts = Counter(await cluster.leaders("t"))
            assert sorted(counts.values()) == [10, 10, 11]

    run(main())


def test_the_last_node_keeps_what_it_leads(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=1, config=STAYS) as cluster:
            await create(cluster, partitions=2)
            await cluster[1].stop()
            assert await cluster.leaders("t") == [1, 1]
            await cluster[1].start()
            await asyncio.sleep(2)
            assert cluster[1].leads("t", 0)

    run(main())
