"""What disks, clocks and pauses do."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from confluent_kafka import Consumer, TopicPartition

from tests.attack.scene import AttackSucceeded
from tests.support.arena import TOPIC, Arena
from tests.support.batches import batch_of
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient

ALL = {1, 2, 3}
BATCH_COUNT = 60
BATCH_BYTES = 2_000
VERIFY_SECONDS_MAX = 60.0
SECONDS_MIN = 4.0


def fill_the_disk(arena: Arena, size: float) -> str:
    """Leave no room on the disk of a leader."""
    return _fail_the_disk(arena, errno.ENOSPC, ("write",), size)


def break_the_disk(arena: Arena, size: float) -> str:
    """Have writes and flushes of a leader fail with EIO."""
    return _fail_the_disk(arena, errno.EIO, ("write", "fsync"), size)


def _fail_the_disk(arena: Arena, number: int, calls: Sequence[str], size: float) -> str:
    node = arena.cluster.node_leading(TOPIC)
    started = time.monotonic()
    with arena.faults[node.broker_id].failing(number, calls, node.data_dir):
        eventually(lambda: arena.cluster.leader(TOPIC) != node.broker_id, "another node leads")
        handed_over_s = time.monotonic() - started
        time.sleep(max(20.0 * size, SECONDS_MIN))
    healed = time.monotonic()
    for partition in range(len(ALL)):
        arena.cluster.wait_isr(TOPIC, ALL, partition)
    back_s = time.monotonic() - healed
    return f"another led after {handed_over_s:.1f} s, in sync again {back_s:.1f} s after its end"


def flip_a_bit(arena: Arena, _size: float) -> str:
    """Damage a sealed segment of a leader before it is in the tier."""
    topic = f"flipped-{os.urandom(3).hex()}"
    arena.cluster.create(topic, segment_bytes="16384", remote_storage_enable="false")
    node = _fill(arena, topic)
    path = _second_sealed(node, topic)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    with path.open("r+b") as file:
        file.write(content)
    arena.cluster.alter(topic, remote_storage_enable="true")
    eventually(lambda: _count_objects(arena, topic) >= 5, "its segments are in the tier")
    if str(path) not in node.log:
        raise AttackSucceeded("the damaged file is not named")
    count = _count_readable(arena, topic)
    if count != BATCH_COUNT:
        raise AttackSucceeded(f"{count} of {BATCH_COUNT} records are readable")
    return f"{path.name} was named, all {count} records are readable"


def remove_a_segment(arena: Arena, _size: float) -> str:
    """Remove a sealed segment of a node that is stopped, without a tier."""
    topic = f"removed-{os.urandom(3).hex()}"
    arena.cluster.create(topic, segment_bytes="16384", remote_storage_enable="false")
    node = _fill(arena, topic)
    path = _second_sealed(node, topic)
    node.stop()
    path.unlink()
    node.start()
    arena.cluster.wait_isr(topic, ALL)
    if path.name not in node.log:
        raise AttackSucceeded("the missing file is not named")
    count = _count_readable(arena, topic)
    if count != BATCH_COUNT:
        raise AttackSucceeded(f"{count} of {BATCH_COUNT} records are readable")
    return f"{path.name} was named, all {count} records are readable"


def take_the_metadata_away(arena: Arena, _size: float) -> str:
    """Move the files of the metadata store aside under running nodes, then back."""
    files = [path for path in arena.directory.glob("metadata.db*") if path.is_file()]
    aside = arena.directory / "aside"
    aside.mkdir()
    taken = time.monotonic()
    for path in files:
        path.rename(aside / path.name)
    for node in arena.nodes.values():
        with WireClient(node.port) as client:
            eventually(lambda client=client: not _takes_records(client), "it takes no records")
    refused_s = time.monotonic() - taken
    time.sleep(1)
    back = time.monotonic()
    for path in files:
        (aside / path.name).rename(path)
    aside.rmdir()
    for partition in range(len(ALL)):
        eventually(
            lambda partition=partition: _is_led_and_writable(arena, partition),
            "records are taken again",
        )
    back_s = time.monotonic() - back
    return f"no node took records after {refused_s:.1f} s, all did {back_s:.1f} s after its return"


def _is_led_and_writable(arena: Arena, partition: int) -> bool:
    leader = arena.nodes.get(arena.cluster.leader(TOPIC, partition))
    if leader is None:
        return False
    with WireClient(leader.port) as client:
        return _takes_records(client, partition)


def _takes_records(client: WireClient, partition: int = 0) -> bool:
    answer = client.produce(TOPIC, batch_of(b"attack"), partition=partition, acks=-1)
    return bool(answer.error_code.value == 0)


def resume_a_tier_worker(arena: Arena, _size: float) -> str:
    """Pause a leader and its tier worker while they upload, until another node leads."""
    topic = f"paused-{os.urandom(3).hex()}"
    arena.cluster.create(topic, segment_bytes="16384")
    node = _fill(arena, topic)
    pids = [node.pid, *(child.pid for child in psutil.Process(node.pid).children())]
    _signal(pids, signal.SIGSTOP)
    try:
        other = next(each for each in arena.nodes.values() if each is not node)
        eventually(
            lambda: arena.cluster.leader(topic, by=other) not in {-1, node.broker_id},
            "another node leads",
        )
    finally:
        _signal(pids, signal.SIGCONT)
    arena.cluster.wait_isr(topic, ALL)
    eventually(lambda: _count_objects(arena, topic) >= 5, "its segments are in the tier")
    command = [str(Path(sys.executable).with_name("tidelog")), "verify"]
    command += ["--metadata", f"sqlite://{arena.metadata_path}"]
    command += ["--objects", f"file://{arena.objects_dir}"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=VERIFY_SECONDS_MAX, check=False
    )
    if done.returncode != 0:
        raise AttackSucceeded(f"verify ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout.strip().replace("\n", "; ")


def put_a_clock_ahead(arena: Arena, size: float) -> str:
    """Put the clock of a leader eight days ahead for a while: nothing may expire by it."""
    topic = f"aging-{os.urandom(3).hex()}"
    arena.cluster.create(topic, segment_bytes="16384", file_delete_delay_ms="0")
    node = _fill(arena, topic)
    eventually(lambda: _count_objects(arena, topic) >= 5, "its segments are in the tier")
    before = _count_objects(arena, topic)
    arena.clocks[node.broker_id].set_off(8 * 86_400)
    try:
        time.sleep(max(12.0 * size, SECONDS_MIN))  # the retention check of the nodes: 2 s
    finally:
        arena.clocks[node.broker_id].set_off(0)
    after, count = _count_objects(arena, topic), _count_readable(arena, topic)
    if after < before or count != BATCH_COUNT:
        raise AttackSucceeded(f"{before - after} objects, {BATCH_COUNT - count} records are gone")
    return f"all {count} records and {after} objects are there"


def _fill(arena: Arena, topic: str) -> NodeProcess:
    """Write batches of one record, a few to a segment; return the leader."""
    node = arena.cluster.node_leading(topic)
    with WireClient(node.port) as client:
        for _ in range(BATCH_COUNT):
            answer = client.produce(topic, batch_of(os.urandom(BATCH_BYTES)), acks=-1)
            assert answer.error_code.value == 0, answer
    return node


def _second_sealed(node: NodeProcess, topic: str) -> Path:
    """Return the second segment once it is sealed and flushed."""

    def segments() -> list[Path]:
        return sorted((node.data_dir / f"{topic}-0").glob("*.log"))

    eventually(lambda: len(segments()) > 3, "segments are sealed")
    path = segments()[1]
    eventually(lambda: path.with_suffix(".index").exists(), "the segment is flushed")
    return path


def _count_objects(arena: Arena, topic: str) -> int:
    return sum(1 for _ in arena.objects_dir.glob(f"**/{topic}-*/**/*.log"))


def _count_readable(arena: Arena, topic: str) -> int:
    """Return how many records there are between the log's start and its end."""
    consumer = Consumer({"bootstrap.servers": arena.cluster.addresses, "group.id": "attack"})
    try:
        start, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    finally:
        consumer.close()
    return len(arena.cluster.consume(topic, end - start, offset=start))


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)
