"""The SDK against several nodes: leaders and coordinators on each of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from tidelog import Admin, Consumer, Producer

from tests.support.node_process import NodeProcess


async def test_three_nodes_share_the_work_and_one_may_go_away(tmp_path: Path) -> None:
    """The topics' partitions and the groups are spread; a killed node's come back with it."""
    store = f"sqlite:///{tmp_path / 'metadata.db'}"
    objects = f"file://{tmp_path / 'objects'}"
    nodes = [
        NodeProcess(
            tmp_path / f"node{n}", broker_id=n, metadata_store=store, object_store=objects
        ).start()
        for n in (1, 2, 3)
    ]

    try:
        # One address is enough to find the others; the node there is not the one killed.
        address = nodes[0].address
        async with Admin(address) as admin:
            while len((await admin.describe_cluster()).nodes) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await admin.create_topic("spread", partition_count=6)
            described = (await admin.describe_topics(["spread"]))["spread"]
            leaders = Counter(partition.leader for partition in described.partitions)
            assert leaders == {1: 2, 2: 2, 3: 2}
            async with (
                Producer(address, partitioner="round-robin", linger_ms=1) as producer,
                Consumer(
                    address,
                    topics="spread",
                    group_id="g",
                    auto_offset_reset="earliest",
                    heartbeat_interval_ms=200,
                ) as consumer,
            ):
                deliveries = []

                async def produce() -> None:
                    for n in range(3_000):
                        deliveries.append(await producer.send("spread", b"%d" % n))
                        if n % 20 == 0:
                            await asyncio.sleep(0.01)

                producing = asyncio.create_task(produce())
                seen: Counter[bytes] = Counter()

                async def consume() -> None:
                    while len(seen) < 3_000:
                        for record in await consumer.poll(timeout_ms=500):
                            seen[record.value or b""] += 1

                consuming = asyncio.create_task(consume())
                await asyncio.sleep(0.5)
                await asyncio.to_thread(nodes[1].kill)
                await asyncio.sleep(0.2)
                await asyncio.to_thread(nodes[1].start)
                await producing
                await producer.flush()
                for delivery in deliveries:
                    await delivery
                async with asyncio.timeout(60):
                    await consuming
                assert set(seen.values()) == {1}
            for n in range(8):
                await admin.alter_group_offsets(f"group-{n}", {("spread", 0): n})
            listed = {group.group_id for group in await admin.list_groups()}
            assert {f"group-{n}" for n in range(8)} <= listed
            coordinators = {
                group.coordinator
                for group in (
                    await admin.describe_groups([f"group-{n}" for n in range(8)])
                ).values()
            }
            assert len(coordinators) > 1
            log_dirs = await admin.describe_log_dirs()
            assert sorted(log_dir.node_id for log_dir in log_dirs) == [1, 2, 3]
    finally:
        for node in nodes:
            if node.process is not None:
                node.stop()
