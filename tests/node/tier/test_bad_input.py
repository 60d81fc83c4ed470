"""What lies in the stores and should not: named in the log, and no other partition suffers.

Each test spoils what one partition of a real node has in the tier. Its other partition, and
the node's work in the background, must go on as if nothing were.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode

from tests.support.node_process import NodeProcess
from tests.support.stored_items import overwrite_body, stored_items
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient

SETTLE_SECONDS_MAX = 30.0
SEGMENT_RECORDS = 25
SPOILED, SOUND = 0, 1  # partitions of a topic


class Tiered:
    """A node with a topic of two partitions, all but the active segments in the tier only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.produced: dict[tuple[str, int], list[bytes]] = {}
        self.node = NodeProcess(
            folder / "node",
            metadata_store=f"sqlite://{folder}/metadata.db",
            object_store=f"file://{folder}/objects",
            config={"remote.task.interval.ms": "50", "log.retention.check.interval.ms": "200"},
        )

    def create(self, topic: str) -> None:
        config = {
            "segment.bytes": "20000",
            "local.retention.bytes": "1",
            "file.delete.delay.ms": "0",
        }
        admin = AdminClient({"bootstrap.servers": self.node.address})
        admin.create_topics([NewTopic(topic, 2, 1, config=config)])[topic].result(60)

    def fill(self, topic: str, partition: int, segment_count: int) -> None:
        """Produce so many segments and a little more, and wait until they are evicted."""
        known = self.produced.setdefault((topic, partition), [])
        count = segment_count * SEGMENT_RECORDS + 1
        values = [b"%06d" % (len(known) + n) + b"x" * 994 for n in range(count)]
        producer = Producer({"bootstrap.servers": self.node.address, "batch.size": 5000})
        for value in values:
            producer.produce(topic, value, partition=partition)
        assert producer.flush(60) == 0
        known += values
        folder = self.node.data_dir / f"{topic}-{partition}"
        self.wait(lambda: len(list(folder.glob("*.log"))) == 1)

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while not condition():
            assert time.monotonic() < deadline, self.node.log[-3000:]
            time.sleep(0.02)

    def objects(self, topic: str, partition: int, suffix: str) -> list[Path]:
        """Return the partition's objects by base offset."""
        root = self.folder / "objects"
        return sorted(root.glob(f"*/{topic}-*/{partition}/*{suffix}"))

    def fetch(self, topic: str, partition: int, offset: int = 0) -> Any:
        with WireClient(self.node.port) as client:
            client.socket.settimeout(30)
            return client.fetch(topic, offset, partition=partition)

    def require_served(self, topic: str, partition: int, offset: int = 0) -> None:
        """Read the partition to its end and compare."""
        expected = self.produced[topic, partition][offset:]
        consumer = Consumer(
            {
                "bootstrap.servers": self.node.address,
                "group.id": "readers",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )
        consumer.assign([TopicPartition(topic, partition, offset)])
        found: list[bytes | None] = []
        try:
            while len(found) < len(expected):
                messages = consumer.consume(len(expected), timeout=60)
                assert messages, self.node.log[-3000:]
                found += [message.value() for message in messages]
        finally:
            consumer.close()
        assert found == expected

    def require_refused(self, topic: str, names: str, offset: int = 0) -> None:
        """Check that a read of the spoiled partition fails retriably and the log says why."""
        answer = self.fetch(topic, SPOILED, offset)
        assert answer.error_code is ErrorCode.kafka_storage_error
        assert not answer.records

        def is_said() -> bool:
            return any(names in line for line in self.node.log.splitlines() if " ERROR " in line)

        eventually(is_said, f"an error about {names!r} is logged")

    def require_works(self, topic: str) -> None:
        """Check that the node goes on with both partitions, also in the background."""
        assert self.node.process is not None
        assert self.node.process.poll() is None
        self.require_served(topic, SOUND)
        for partition in (SPOILED, SOUND):
            before = len(self.objects(topic, partition, ".index"))
            self.fill(topic, partition, 1)
            assert len(self.objects(topic, partition, ".index")) > before


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiered]:
    """A node for all of these tests, each with a topic of its own."""
    running = Tiered(tmp_path_factory.mktemp("bad-input"))
    with running.node:
        yield running


@pytest.fixture
def topic(tiered: Tiered, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"\W", "-", request.node.name)[:60]
    tiered.create(name)
    for partition in (SPOILED, SOUND):
        tiered.fill(name, partition, 3)
    return name


def damage(path: Path, position: int) -> bytes:
    """Flip a bit and return what the object was."""
    data = path.read_bytes()
    damaged = bytearray(data)
    damaged[position] ^= 1
    path.write_bytes(damaged)
    return data


def test_a_corrupt_index_object_spoils_its_partition_until_it_is_whole_again(
    tiered: Tiered, topic: str
) -> None:
    index = tiered.objects(topic, SPOILED, ".index")[0]
    was = damage(index, index.stat().st_size // 2)
    tiered.require_refused(topic, f"{index.name}' is corrupt")
    tiered.require_works(topic)
    tiered.require_served(topic, SPOILED, offset=2 * SEGMENT_RECORDS)
    index.write_bytes(was)
    tiered.require_served(topic, SPOILED)


def test_corrupt_records_never_reach_a_client(tiered: Tiered, topic: str) -> None:
    log = tiered.objects(topic, SPOILED, ".log")[0]
    was = damage(log, 100)
    tiered.require_refused(topic, f"{log.name}' is corrupt")
    tiered.require_works(topic)
    log.write_bytes(was)
    tiered.require_served(topic, SPOILED)


def test_an_object_that_has_lost_its_end_is_corrupt(tiered: Tiered, topic: str) -> None:
    log = tiered.objects(topic, SPOILED, ".log")[0]
    log.write_bytes(log.read_bytes()[:-10])
    tiered.require_refused(topic, f"{log.name}' is corrupt: it ends at")
    tiered.require_works(topic)


@pytest.mark.parametrize("suffix", [".log", ".index"])
def test_metadata_that_points_at_a_missing_object(tiered: Tiered, topic: str, suffix: str) -> None:
    """Reads name it; what is behind it is read; and retention can still remove the rest."""
    missing = tiered.objects(topic, SPOILED, suffix)[0]
    missing.unlink()
    tiered.require_refused(topic, f"{missing.name}' is not there")
    tiered.require_works(topic)
    admin = AdminClient({"bootstrap.servers": tiered.node.address})
    start = 2 * SEGMENT_RECORDS
    admin.delete_records([TopicPartition(topic, SPOILED, start)])
    tiered.wait(lambda: not any(p.name < f"{start // 2:020d}" for p in missing.parent.iterdir()))
    assert tiered.fetch(topic, SPOILED).error_code is ErrorCode.offset_out_of_range
    tiered.require_served(topic, SPOILED, offset=start)


def test_a_foreign_object_in_the_prefix_is_let_be(tiered: Tiered, topic: str) -> None:
    folder = tiered.objects(topic, SPOILED, ".index")[0].parent
    foreign = [folder / "notes.txt", folder / "my notes.txt", folder / f"{0:020d}-0-x.index"]
    for path in foreign:
        path.write_text("not yours")
    tiered.require_served(topic, SPOILED)
    tiered.require_works(topic)
    assert [path.read_text() for path in foreign] == ["not yours"] * 3


def test_a_segments_item_that_is_none_spoils_its_partition_alone(
    tiered: Tiered, topic: str
) -> None:
    index = tiered.objects(topic, SPOILED, ".index")[0]
    store, segment_id = tiered.folder / "metadata.db", index.stem[-36:]
    ((key, body),) = [
        (key, body) for key, (_, body) in stored_items(store).items() if segment_id in body
    ]
    overwrite_body(store, key, json.dumps({**json.loads(body), "base_offset": "none"}))
    tiered.node.kill()  # What the node knows already it does not read again.
    tiered.node.start()
    tiered.require_refused(topic, f"metadata item {key.collection}/{key.key} is corrupt")
    tiered.require_served(topic, SOUND)
    tiered.fill(topic, SOUND, 1)
