"""A consumer reads from the replica of its rack, and from the leader while that is gone (KIP-392)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tidelog import Consumer, TopicPartition

from tests.support.replicated_cluster import (
    SETTLE_SECONDS_MAX,
    replicated_cluster,
    stopped,
)

TP = TopicPartition("t", 0)
VALUES = [b"%d" % n for n in range(900)]


async def read(consumer: Consumer, count: int) -> list[bytes]:
    """Return the values of the next records, and no more than these."""
    values: list[bytes] = []
    async with asyncio.timeout(SETTLE_SECONDS_MAX):
        while len(values) < count:
            records = await consumer.poll(max_records=count - len(values), timeout_ms=1_000)
            values += [record.value or b"" for record in records]
    return values


async def read_from(consumer: Consumer, node_id: int) -> None:
    """Wait until this is the replica that the consumer was sent to."""
    async with asyncio.timeout(SETTLE_SECONDS_MAX):
        while (at := consumer._positions.state(TP).read_replica) is None or at[0] != node_id:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_the_replica_of_the_rack_is_read_and_the_leader_stands_in_for_it(
    tmp_path: Path,
) -> None:
    """While the leader does nothing, all that it had committed can be read."""
    # The leader leads on while it is stopped; who lags leaves the ISR soon.
    config = {"broker.session.timeout.ms": "60000"}

    with replicated_cluster(tmp_path, racks=True, config=config) as cluster:
        cluster.create("t", min_insync_replicas="1")
        cluster.produce("t", VALUES[:300])
        cluster.wait_same_logs("t")
        leader, (near, _) = cluster.node_leading("t"), cluster.followers("t")
        async with Consumer(
            cluster.addresses, rack=f"rack{near.broker_id}", auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([TP])
            assert await read(consumer, 300) == VALUES[:300]
            await read_from(consumer, near.broker_id)
            with stopped(leader):
                consumer.seek(TP, 0)
                assert await read(consumer, 300) == VALUES[:300]

            near.kill()
            await asyncio.to_thread(cluster.produce, "t", VALUES[300:600])
            assert await read(consumer, 300) == VALUES[300:600]

            await asyncio.to_thread(near.start)
            await asyncio.to_thread(cluster.wait_isr, "t", {1, 2, 3})
            await read_from(consumer, near.broker_id)
            await asyncio.to_thread(cluster.produce, "t", VALUES[600:])
            assert await read(consumer, 300) == VALUES[600:]
            with stopped(leader):
                consumer.seek(TP, 0)
                assert await read(consumer, 900) == VALUES
