"""A node killed at any moment leaves a tier that the next start puts in order."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Partition, SegmentState, partition_key
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.records.batch import decode_records, iter_headers
from tidelog_core.restoration.plan import plan_restoration
from tidelog_core.restoration.survey import list_clusters, survey
from tidelog_core.tier.lifecycle import read_segments

from tests.support.tier_node import TOPIC, TierNode, running_node

SEED = 20_240_607
ROUNDS = 4

WRITER = """
import asyncio, sys
from pathlib import Path
from tests.support.tier_node import TOPIC, running_node

async def main():
    async with running_node(Path(sys.argv[1])) as node:
        if TOPIC in node.view.image.topics:
            replica = node.replica()
        else:
            replica = await node.create_topic(
                configs={"local.retention.bytes": "0", "retention.bytes": "60000",
                         "file.delete.delay.ms": "50"})
        print(node.tier.client.worker_pid, flush=True)
        while True:
            node.produce_segments(replica, 2, batch_count=20)
            await asyncio.sleep(0.005)
            node.clock.now_ms += 25
            await node.tier.apply_retention()

asyncio.run(main())
"""


def wait_gone(pid: int) -> None:
    """Wait until the worker of a killed node has noticed; it may still end an upload."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    raise TimeoutError(f"worker {pid} outlives its node")


def test_a_node_killed_at_any_moment_leaves_nothing_wrong(tmp_path: Path) -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    folder = tmp_path / "node"
    folder.mkdir()
    for _ in range(ROUNDS):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        worker_pid = int(child.stdout.readline())
        time.sleep(chance.uniform(0.05, 0.9))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        wait_gone(worker_pid)
        asyncio.run(check_bucket(folder))
        asyncio.run(check(folder))


async def check_bucket(folder: Path) -> None:
    """Compare what the bucket alone would bring back with what the metadata says."""
    store = SqliteMetadataStore(folder / "metadata.db")
    objects = FolderObjectStore(folder / "objects")
    try:
        topic = (await ClusterView(store).refresh()).topics.get(TOPIC)
        clusters, _ = await list_clusters(objects)
        if topic is None or not clusters:
            return
        (found,) = clusters.values()
        restoration = plan_restoration(await survey(objects, found), brokers=[1])
        assert restoration.problems == ()
        metas = await read_segments(store, topic.topic_id, 0)
        if not restoration.topics:  # It was killed before the bucket was told of the topic.
            assert metas == []
            return
        (restored,) = restoration.topics
        item = await store.get(partition_key(topic.topic_id, 0))
        assert item is not None
        # What a copy has left goes at once; its records are there still and are copied again.
        going = [m.end_offset for m in metas if m.deletable_ms > 0]
        (partition,) = restored.plan.partitions
        log_start = Partition.from_item(item).log_start_offset
        assert max(going, default=0) <= partition.log_start_offset <= log_start
        finished = {m.segment_id for m in metas if m.state is SegmentState.COPY_FINISHED}
        assert {m.segment_id for m in metas if m.end_offset > log_start} & finished <= {
            m.segment_id for m in restored.segments
        }
    finally:
        await objects.close()
        await store.close()


async def check(folder: Path) -> None:
    async with running_node(folder) as node:
        replica = node.replica()
        log = replica.log
        before = [m for m in await node.metas(replica) if m.state is SegmentState.COPY_FINISHED]
        await settle(node)
        finished = await node.finished(replica)
        assert {m.segment_id for m in before if m.end_offset > log.log_start_offset} <= {
            m.segment_id for m in finished
        }
        # Two objects for each segment and none besides; every byte verified.
        assert len(await node.objects()) == 2 * len(finished)
        logs = await node.verify(replica)
        offset = finished[0].base_offset if finished else 0
        for data in logs:
            for position, header in iter_headers(data):
                assert header.base_offset == offset
                assert [r.key for r in decode_records(data, position)] == [
                    f"k{n}".encode() for n in range(offset, offset + 10)
                ]
                offset = header.next_offset
        assert log.local_log_start_offset <= offset
        if finished:
            start = max(log.log_start_offset, finished[0].base_offset)
            whole = b"".join(logs)
            assert whole.endswith(await node.read_all(replica, start, offset, max_bytes=10_000))


async def settle(node: TierNode) -> None:
    """Wait until nothing is left half done."""
    replica = node.replica()
    async with asyncio.timeout(30):
        while True:
            node.clock.now_ms += 1000
            await node.tier.apply_retention()
            states = {m.state for m in await node.metas(replica)}
            is_copying = node.tier.status["copying_partition_count"] > 0
            sealed = replica.log.sealed_segments()
            is_behind = bool(sealed) and sealed[-1].end_offset > replica.log.tiered_up_to
            replica.log.flush()
            if states <= {SegmentState.COPY_FINISHED} and not is_copying and not is_behind:
                return
            await asyncio.sleep(0.02)
