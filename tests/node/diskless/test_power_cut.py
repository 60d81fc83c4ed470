"""After a power cut every acknowledged record is there, whatever is left of the local logs.

The objects and the metadata are flushed before anything is acknowledged. The local logs are not:
the test leaves of their files what a disk may have, cut or with zeros from any byte on, or nothing.
"""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode
from tidelog_core.records.batch import decode_records

from tests.support.batches import batch_of
from tests.support.hand_chain import DISKLESS
from tests.support.node_process import NodeProcess
from tests.support.wire_client import WireClient
from tools.ports import free_ports

TOPIC = "t"
PARTITIONS = 2
PRODUCER_ID = 4_700
SECONDS_MAX = 60.0
CUTS = 8
FLUSHED = ("recovery-point",)  # the parts of names of files that are flushed when written


class Writer:
    """An idempotent producer of one partition, over all starts of the cluster."""

    def __init__(self, ports: Sequence[int], partition: int) -> None:
        self.ports, self.partition = ports, partition
        self.node = 0  # the index of the node that leads, as far as is known
        self.acknowledged: dict[int, bytes] = {}  # by offset
        self.sequence = 0  # of the next batch, or of the one that has no answer yet

    def write(self, seconds: float, count: int) -> None:
        """Send batches, one after the other, until the time is up or the node is gone."""
        until = time.monotonic() + seconds
        with suppress(OSError, EOFError):
            while time.monotonic() < until and count:
                with WireClient(self.ports[self.node]) as client:
                    while count and self.send(client):
                        count -= 1

    def send(self, client: WireClient) -> bool:
        """Send the batch; return whether it was acknowledged. If not, another node may lead."""
        value = b"%d/%d " % (self.partition, self.sequence) * 20
        answer = client.produce(
            TOPIC,
            batch_of(value, producer=(PRODUCER_ID + self.partition, 0, self.sequence)),
            partition=self.partition,
            acks=-1,
            timeout_ms=10_000,
        )
        if answer.error_code is ErrorCode.none:
            assert self.acknowledged.setdefault(answer.base_offset, value) == value
            self.sequence += 1
            return True
        assert answer.error_code in (
            ErrorCode.not_leader_or_follower,
            ErrorCode.request_timed_out,
            ErrorCode.unknown_topic_or_partition,
        ), answer
        self.node = (self.node + 1) % len(self.ports)
        time.sleep(0.02)
        return False

    def check(self) -> None:
        """Read the partition; every acknowledged record must be there, once."""
        found: dict[int, bytes] = {}
        count = len(self.acknowledged)
        self.write(SECONDS_MAX, 1)
        assert len(self.acknowledged) > count or not self.sequence, "nothing is acknowledged"
        with WireClient(self.ports[self.node]) as client:
            end = max(self.acknowledged) + 1
            offset = 0
            while offset < end:
                answer = client.fetch(TOPIC, offset, partition=self.partition)
                assert answer.error_code is ErrorCode.none
                for record in decode_records(memoryview(answer.records)):
                    if record.offset >= offset:
                        found[record.offset] = record.value or b""
                        offset = record.offset + 1
        assert found == self.acknowledged | {
            # A batch without an answer may have been stored.
            at: value
            for at, value in found.items()
            if at not in self.acknowledged
        }
        assert len(set(found.values())) == len(found), "a record is there twice"


def cut(folder: Path, chance: random.Random) -> None:
    """Leave of the topic's local files what a power cut may leave."""
    for path in sorted(folder.glob(f"**/{TOPIC}-[0-9]/*")):
        if not path.is_file() or any(part in path.name for part in FLUSHED):
            continue
        size = path.stat().st_size
        fate = chance.choice(("whole", "cut", "zeros", "cut", "zeros", "gone"))
        if fate == "gone" and path.suffix != ".log":
            path.unlink()
        elif fate in ("cut", "zeros"):
            os.truncate(path, chance.randint(0, size))
            if fate == "zeros":
                os.truncate(path, size)


def create(port: int) -> None:
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
    config = {**DISKLESS, "segment.bytes": "30000"}
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, config=config)])[TOPIC].result(SECONDS_MAX)


@pytest.mark.slow
def test_a_node_whose_power_was_cut_has_every_acknowledged_record(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "node", config={"diskless.append.puts.per.second.max": "0"})
    with node:
        create(node.port)
        writers = [Writer([node.port], partition) for partition in range(PARTITIONS)]
        for writer in writers:
            writer.write(SECONDS_MAX, 8)
        node.kill()
        cut(node.data_dir, random.Random(1))
        node.start()
        for writer in writers:
            writer.check()


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 3])
def test_a_cluster_on_one_machine_survives_power_cuts(tmp_path: Path, nodes: int) -> None:
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")
    chance = random.Random(seed)
    port = free_ports(nodes)
    ports = range(port, port + nodes)
    writers = [Writer(ports, partition) for partition in range(PARTITIONS)]
    for number in range(CUTS):
        with tidelog_up(tmp_path / "data", port, nodes):
            if number == 0:
                create(port)
            else:
                for writer in writers:
                    writer.check()
            working = [
                threading.Thread(target=writer.write, args=(SECONDS_MAX, 1_000))
                for writer in writers
            ]
            for thread in working:
                thread.start()
            time.sleep(chance.uniform(0.1, 1.5))
        for thread in working:
            thread.join(SECONDS_MAX)
            assert not thread.is_alive()
        cut(tmp_path / "data", chance)
    assert all(len(writer.acknowledged) > 2 * CUTS for writer in writers)


@contextmanager
def tidelog_up(data: Path, port: int, nodes: int) -> Iterator[None]:
    """Run ``tidelog up``; at the end all its processes are killed at once."""
    command = [sys.executable, "-m", "tidelog_cli", "up", "--port", str(port)]
    command += ["--data-dir", str(data), "--http-port", "0", "--nodes", str(nodes)]
    with data.with_suffix(".log").open("ab") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], SECONDS_MAX)
        assert ready, "the cluster does not start"
        yield
    finally:
        found = family(process.pid)
        for pid in found:
            os.kill(pid, signal.SIGSTOP)  # None of them shall see another one's end.
        for pid in family(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def family(pid: int) -> list[int]:
    """Return the process and all that it has started, itself first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for one in found:
        found.extend(children.get(one, ()))
    return found
