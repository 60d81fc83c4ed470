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

from tidelog_core.metadata.records import SegmentState
from tidelog_core.records.batch import decode_records, iter_headers

from tests.node.tier.tier_node import TierNode, running_node

SEED = 20_240_607
ROUNDS = 4

WRITER = """
import asyncio, sys
from pathlib import Path
from tests.node.tier.tier_node import TOPIC, running_node

async def main():
    async with running_node(Path(sys.argv[1])) as node:
        if TOPIC in node.view.image.topics:
            replica = node.replica()
        else:
            replica = await node.create_topic(
                configs={"local.retention.bytes": "0", "retention.bytes": "60000",
                         "file.delete.delay.ms": "0"})
        print(node.tier.client.worker_pid, flush=True)
        while True:
            node.produce_segments(replica, 2, batch_count=20)
            await asyncio.sleep(0.005)
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
        asyncio.run(check(folder))


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
            await node.tier.apply_retention()
            states = {m.state for m in await node.metas(replica)}
            is_copying = node.tier.status["copying_partition_count"] > 0
            sealed = replica.log.sealed_segments()
            is_behind = bool(sealed) and sealed[-1].end_offset > replica.log.tiered_up_to
            replica.log.flush()
            if states <= {SegmentState.COPY_FINISHED} and not is_copying and not is_behind:
                return
            await asyncio.sleep(0.02)
