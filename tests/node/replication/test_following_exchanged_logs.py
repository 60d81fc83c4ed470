"""What a leader is told of a log that fails, comes back shorter, or was registered again."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_node.membership.registration import register_broker
from tidelog_node.replicas.replica import Replica

from tests.node.replication.led_node import LedNode
from tests.node.replication.session_leader import SessionLeader
from tests.node.replication.test_following_sessions import following, held, run
from tests.support.waiting import eventually_async

RECORDS = 3


async def fill(node: LedNode, leader: SessionLeader) -> Replica:
    """Have the first partition followed to its end, and a fetch held."""
    for number in range(RECORDS):
        leader.append(0, b"%d" % number)
    replica = node.replica(0)
    await eventually_async(lambda: replica.log.high_watermark == RECORDS, "it is committed")
    await held(leader)
    return replica


async def register_again(node: LedNode) -> int:
    """Register the node's process once more; return the epoch."""
    own = node.view.image.brokers[1]
    await register_broker(
        node.store,
        broker_id=1,
        incarnation=own.incarnation,
        endpoints=plaintext_endpoints(own.endpoint.host, 1),
        rack=None,
    )
    await node.view.refresh()
    return node.view.image.brokers[1].version


def lose_two(replica: Replica) -> None:
    """Reopen the log, of which the disk has lost the last two records."""
    before = replica.log
    before.close()
    (path,) = before.directory.glob("*.log")
    os.truncate(path, path.stat().st_size // RECORDS)
    replica.take(replica.reopen(None))


def test_a_log_that_goes_offline_by_itself_is_left_out_at_once(tmp_path: Path) -> None:
    """Also where nobody reports it, and while a fetch is held."""

    async def test() -> None:
        async with following(tmp_path) as (node, leader):
            replica = await fill(node, leader)
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(node.executor, replica.log._segments.go_offline)
            await eventually_async(
                lambda: any(seen.forgotten == [0] for seen in leader.seen), "it is forgotten"
            )
            assert leader.connection_count == 1

    run(test())


def test_a_log_that_comes_back_while_a_fetch_is_held_is_told_of_everything_again(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with following(tmp_path, wait_ms=200) as (node, leader):
            replica = await fill(node, leader)
            before = replica.log
            before._segments.go_offline()
            before.close()
            replica.take(replica.reopen(None))  # In the same turn of the loop.
            assert replica.log.high_watermark == 0
            await eventually_async(
                lambda: replica.log.high_watermark == RECORDS, "it is told again"
            )
            assert leader.connection_count == 1

    run(test())


def test_a_shorter_log_is_what_a_new_registration_begins_with(tmp_path: Path) -> None:
    """The leader may count on all that it hears in the new epoch, so no old end is among it."""

    async def test() -> None:
        async with following(tmp_path) as (node, leader):
            replica = await fill(node, leader)
            replica.log._segments.go_offline()
            epoch = await register_again(node)
            lose_two(replica)
            assert replica.log.log_end_offset == 1
            leader.append(1, b"another")  # The held fetch is answered.
            await eventually_async(
                lambda: replica.log.log_end_offset == RECORDS, "it is fetched again"
            )
            since = [seen for seen in leader.seen if seen.replica_epoch == epoch]
            assert since[0].session_epoch == 0
            named = [seen.named[0] for seen in since if 0 in seen.named]
            assert named[0] == 1

    run(test())


def test_every_log_is_looked_at_again_for_a_new_registration(tmp_path: Path) -> None:
    """Whatever has happened to it meanwhile, and to its place in the session."""

    async def test() -> None:
        async with following(tmp_path) as (node, leader):
            replica = await fill(node, leader)
            replica.log.truncate_to(1)
            epoch = await register_again(node)
            leader.append(1, b"another")
            await eventually_async(lambda: leader.seen[-1].replica_epoch == epoch, "it is told")
            first = next(seen for seen in leader.seen if seen.replica_epoch == epoch)
            assert first.session_epoch == 0
            assert first.named == {0: 1, 1: 1, 2: 0, 3: 0, 4: 0}

    run(test())


def test_what_is_new_waits_for_no_fetch_of_an_older_registration(tmp_path: Path) -> None:
    async def test() -> None:
        async with following(tmp_path) as (node, leader):
            await fill(node, leader)
            epoch = await register_again(node)
            await node.change_partition(1, leader_epoch=1)
            await eventually_async(
                lambda: leader.seen[-1].replica_epoch == epoch, "it is asked for"
            )
            begun = next(seen for seen in leader.seen if seen.replica_epoch == epoch)
            assert begun.session_epoch == 0
            leader.append(1, b"record")
            await eventually_async(
                lambda: node.replica(1).log.log_end_offset == 1, "it is followed"
            )

    run(test())
