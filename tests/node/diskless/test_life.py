"""The life of a diskless topic's objects beside a running node: verified, erased, and gone."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.command import called
from tests.support.node_process import NodeProcess

pytestmark = pytest.mark.slow
DEADLINE_SECONDS = 120.0
NODE_CONFIG = {
    "remote.task.interval.ms": "50",
    "log.retention.check.interval.ms": "100",
    "metadata.poll.interval.ms": "50",
    "diskless.wal.max.age.ms": "2000",
}
TOPIC_CONFIG = {"diskless.enable": "true", "segment.bytes": "20000", "file.delete.delay.ms": "0"}
SECRET = b"the-key-to-be-erased"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    process = NodeProcess(
        tmp_path / "node",
        metadata_store=f"sqlite://{tmp_path}/metadata.db",
        object_store=f"file://{tmp_path}/objects",
        config=NODE_CONFIG,
    )
    process.start()
    admin = AdminClient({"bootstrap.servers": process.address})
    topics = [NewTopic(name, 1, 1, config=TOPIC_CONFIG) for name in ("t", "other")]
    for future in admin.create_topics(topics).values():
        future.result(20)
    yield process
    if process.process is not None:
        process.stop()


class Load:
    """Producers of both topics that go on until the end of the block."""

    def __init__(self, node: NodeProcess) -> None:
        self._node = node
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._produce)
        self.count = 0

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(DEADLINE_SECONDS)

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self._node.address})
        while not self._ends.is_set():
            for topic in ("t", "other"):
                producer.produce(topic, b"x" * 500, b"some key")
            producer.flush(20)
            self.count += 1


def stores(node: NodeProcess) -> tuple[str, ...]:
    return ("--metadata", str(node.metadata_store), "--objects", str(node.object_store))


def produce_secret(node: NodeProcess) -> None:
    producer = Producer({"bootstrap.servers": node.address})
    for _ in range(5):
        producer.produce("t", b"secret", SECRET)
        assert producer.flush(20) == 0


def objects_with(folder: Path, text: bytes) -> list[str]:
    found = []
    for path in folder.rglob("*"):
        try:
            if path.is_file() and text in path.read_bytes():
                found.append(str(path.relative_to(folder)))
        except FileNotFoundError:
            continue
    return found


def test_a_cluster_that_writes_and_collects_has_no_problem(
    node: NodeProcess, tmp_path: Path
) -> None:
    with Load(node) as load:
        checked = 0
        deadline = time.monotonic() + 20.0
        while time.monotonic() < deadline:
            for way in (stores(node), ("--from", str(node.object_store))):
                found: Any = called("verify", *way, "--json").document
                assert found["problems"] == []
                checked += found.get("chain_objects", 0)
    assert load.count > 20
    assert checked > 0


@pytest.mark.parametrize("is_loaded", [True, False], ids=["loaded", "idle"])
def test_an_erased_key_is_in_no_object_when_the_receipt_says_so(
    node: NodeProcess, tmp_path: Path, is_loaded: bool
) -> None:
    objects = tmp_path / "objects"
    produce_secret(node)
    assert objects_with(objects, SECRET)
    arguments = ("erase", "t", "--key", SECRET.decode(), *stores(node), "--json")
    if is_loaded:
        with Load(node):
            summary = called(*arguments).document
            left = objects_with(objects, SECRET)
    else:
        summary = called(*arguments).document
        left = objects_with(objects, SECRET)
    assert left == []
    assert (summary["is_done"], summary["removed_records"]) == (True, 5)
    assert summary["partitions"][0]["wal_copies_gone_ms"] > 0
    (receipt,) = objects.glob("*/t-*/erasure-*.json")
    assert json.loads(receipt.read_bytes())["is_done"]
