"""Who may serve: leases renewed, lapsed, taken and given up, in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest
from tidelog_core.config import NodeConfig
from tidelog_core.errors import OutcomeUnknown
from tidelog_core.metadata.records import BROKER_LEASE_COLLECTION, BrokerLease, put
from tidelog_core.metadata.store import Write
from tidelog_core.replication.leases.lease_times import lease_times
from tidelog_core.replication.leases.own_lease import RELEASED
from tidelog_node.membership.lease_keeper import read_lease, wait_until_gone
from tidelog_node.membership.registration import BrokerIdTaken
from tidelog_node.membership.run_mark import (
    UNSETTLED,
    RunMark,
    may_have_lost_records,
    read_run_mark,
    write_run_mark,
)

from tests.node.membership.virtual_cluster import LEASE_S, virtual_cluster
from tests.support.virtual_time import VirtualTimeLoop, run


def test_a_node_serves_as_long_as_it_renews(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=1) as cluster:
            for _ in range(100):
                assert cluster[1].can_serve
                await asyncio.sleep(1)

    run(main())


def test_a_node_without_its_store_stops_serving_before_anyone_takes_it_for_dead(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=2) as cluster:
            cluster[1].link.is_cut = True
            fenced_at = dead_at = None
            loop = asyncio.get_running_loop()
            while dead_at is None:
                await asyncio.sleep(0.01)
                if fenced_at is None and not cluster[1].can_serve:
                    fenced_at = loop.time()
                if cluster[2].membership.peers.is_dead(1):
                    dead_at = loop.time()
            assert fenced_at is not None
            assert dead_at > fenced_at
            cluster[1].link.is_cut = False
            await asyncio.sleep(2)
            assert cluster[1].can_serve
            assert cluster[2].membership.is_live(1)

    run(main())


def test_a_store_that_is_slow_is_no_reason_to_stop(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=2) as cluster:
            for member in cluster:
                member.link.delay_s = 2.5
            for _ in range(600):
                await asyncio.sleep(0.1)
                assert all(member.can_serve for member in cluster)
                assert not cluster[2].membership.peers.is_dead(1)

    run(main())


def test_a_store_that_hangs_fences_the_node_and_frees_it_when_it_answers(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=1) as cluster:
            cluster[1].link.delay_s = 20
            await asyncio.sleep(LEASE_S)
            assert not cluster[1].can_serve
            cluster[1].link.delay_s = 0
            await asyncio.sleep(20)
            assert cluster[1].can_serve

    run(main())


def test_a_fenced_node_is_shown_to_clients_only_while_it_leads_by_its_chain(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=1) as cluster:
            membership, image = cluster[1].membership, cluster[1].view.image
            assert 1 in membership.live_brokers(image)
            cluster[1].link.delay_s = 20
            await asyncio.sleep(LEASE_S)
            for leads in (False, True, False):
                membership.leads_by_chain = lambda leads=leads: leads  # type: ignore[misc]
                assert (1 in membership.live_brokers(image)) == leads
            cluster[1].link.delay_s = 0

    run(main())


def test_a_stopped_process_does_nothing_until_it_has_renewed_and_read(tmp_path: Path) -> None:
    """The clock tells it before any of its tasks has run."""

    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=1) as cluster:
            await cluster.create("t", partitions=1, replicas=(1,))
            await asyncio.sleep(1)
            assert cluster[1].leads("t", 0)
            loop = asyncio.get_running_loop()
            assert isinstance(loop, VirtualTimeLoop)
            loop.stall(2 * LEASE_S)
            assert not cluster[1].can_serve
            told = []
            cluster[1].membership.subscribe(lambda: told.append(cluster[1].can_serve))
            await asyncio.sleep(1)
            assert cluster[1].can_serve
            assert told == [True]

    run(main())


def test_a_renewal_whose_answer_was_lost_is_found_in_the_store(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=1) as cluster:
            losses = iter([True, False, True, True, False])

            def lose(writes: list[Write]) -> Exception | None:
                is_lease = writes[0].id.collection == BROKER_LEASE_COLLECTION
                return OutcomeUnknown("no answer") if is_lease and next(losses, False) else None

            cluster.store.on_commit = lose  # type: ignore[assignment]
            for _ in range(300):
                await asyncio.sleep(0.1)
                assert cluster[1].can_serve

    run(main())


def test_a_node_that_leaves_in_order_is_known_to_be_gone_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=2) as cluster:
            await cluster[1].stop()
            assert not cluster[1].can_serve
            lease = await read_lease(cluster.store, 1)
            assert lease is not None
            assert lease.counter == RELEASED
            await asyncio.sleep(1)
            assert cluster[2].membership.peers.is_dead(1)
            await cluster[1].start()
            assert cluster[1].can_serve

    run(main())


def test_a_node_that_was_killed_starts_again_in_its_directory_without_waiting(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=1) as cluster:
            await cluster[1].kill()
            started = asyncio.get_running_loop().time()
            await cluster[1].start(was_clean=False)
            assert cluster[1].can_serve
            assert asyncio.get_running_loop().time() - started < 1

    run(main())


def test_a_live_process_is_waited_for_and_then_left_its_id(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=1) as cluster:
            found = await read_lease(cluster.store, 1)
            with pytest.raises(BrokerIdTaken, match="runs already"):
                await wait_until_gone(cluster.store, cluster[1].membership, found)

    run(main())


def test_a_dead_process_of_another_directory_is_waited_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=1) as cluster:
            await cluster[1].kill()
            found = await read_lease(cluster.store, 1)
            loop = asyncio.get_running_loop()
            started = loop.time()
            assert await wait_until_gone(cluster.store, cluster[1].membership, found) == found
            assert LEASE_S <= loop.time() - started < LEASE_S + 2

    run(main())


def test_a_node_whose_id_another_process_took_leaves_for_good(tmp_path: Path) -> None:
    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=1) as cluster:
            lease = await read_lease(cluster.store, 1)
            assert lease is not None
            other = BrokerLease(
                broker_id=1, incarnation=uuid4(), counter=lease.counter + 1, version=lease.version
            )
            await cluster.store.commit([put(other, is_logged=False)])
            await asyncio.sleep(LEASE_S)
            assert not cluster[1].can_serve
            (problem,) = cluster[1].problems()
            assert isinstance(problem, BrokerIdTaken)
            await cluster[1].member.leave()
            assert await read_lease(cluster.store, 1) == other
            await cluster[1].kill()
            del cluster.members[1]

    run(main())


def test_the_lease_alone_need_be_set() -> None:
    assert lease_times(NodeConfig()).renew_ms == 3000
    short = lease_times(NodeConfig(broker_session_timeout_ms=2000))
    assert (short.lease_ms, short.renew_ms) == (2000, 666)


def test_records_may_be_lost_only_where_the_machine_went_down_or_the_disk_is_new(
    tmp_path: Path,
) -> None:
    mark = RunMark(uuid4(), "boot-1")
    write_run_mark(tmp_path, mark)
    assert read_run_mark(tmp_path) == mark
    assert not may_have_lost_records(mark, was_clean=False, boot_id="boot-1")
    assert not may_have_lost_records(mark, was_clean=True, boot_id="boot-2")
    assert may_have_lost_records(mark, was_clean=False, boot_id="boot-2")
    assert may_have_lost_records(mark, was_clean=False, boot_id="")
    assert may_have_lost_records(None, was_clean=True, boot_id="boot-1")
    unsettled = RunMark(uuid4(), UNSETTLED)
    assert may_have_lost_records(unsettled, was_clean=True, boot_id="boot-1")
    (tmp_path / "run").write_text("torn")
    assert read_run_mark(tmp_path) is None
