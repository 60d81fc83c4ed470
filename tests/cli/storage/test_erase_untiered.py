"""``tidelog erase`` of a topic without tiering: every replica erases its own copy."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tidelog_core.metadata.erasures import (
    KEY_ERASURE_COLLECTION,
    KeyErasure,
    ReplicaErasure,
)
from tidelog_core.metadata.location import open_metadata_store
from tidelog_core.metadata.records import Topic, put
from tidelog_core.metadata.store import Item

from tests.cli.storage.test_erase import files_with
from tests.support.command import COMMAND, called, environment, tidelog
from tests.support.compacted_topics import Value, consume, create, records_on_disk
from tests.support.node_process import NodeProcess
from tests.support.replicated_cluster import replicated_cluster
from tests.support.waiting import eventually

KEYS = 5
SECRET = b"k3"
SECONDS_MAX = 60
CONFIG = {"metadata.poll.interval.ms": "50", "log.cleaner.backoff.ms": "100"}


def produce(address: str, topic: str, first: int, count: int) -> None:
    """Produce records in turn over the keys, a few in a batch."""
    producer = Producer(
        {"bootstrap.servers": address, "acks": "all", "linger.ms": 2, "batch.size": 700}
    )
    for number in range(first, first + count):
        value = b"%06d" % number + b"x" * 90
        producer.produce(topic, value, b"k%d" % (number % KEYS), partition=0)
        producer.poll(0)
    assert producer.flush(30) == 0


def requests(metadata_store: str) -> list[Item]:
    async def read() -> list[Item]:
        store = open_metadata_store(metadata_store)
        try:
            return await store.list(KEY_ERASURE_COLLECTION)
        finally:
            await store.close()

    return asyncio.run(read())


def offsets(found: list[tuple[bytes | None, Value]]) -> list[int]:
    return [offset for _, (offset, _) in found]


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_key_is_gone_from_a_disk_that_has_no_tier(tmp_path: Path, policy: str) -> None:
    with NodeProcess(tmp_path / "data", config=CONFIG) as node:
        create(node, "t", cleanup_policy=policy, segment_bytes="3000")
        produce(node.address, "t", 0, 60)
        before = dict(consume(node.address, "t"))
        stores = (  # It is there, though nothing has ever been put.
            *("--metadata", f"sqlite://{node.data_dir}/metadata.db"),
            *("--objects", f"file://{node.data_dir}/objects"),
        )
        file = tmp_path / "receipt.json"
        outcome = called(
            *("erase", "t", *stores, "--key", SECRET.decode(), "--receipt", file, "--json")
        )
        receipt = json.loads(file.read_bytes())
        removed_count = outcome.document["removed_records"]  # Compaction may have been sooner.
        assert removed_count == 12 if policy == "delete" else 1 <= removed_count <= 12
        assert receipt["is_done"]
        assert receipt["key_sha256"] == hashlib.sha256(SECRET).hexdigest()
        (partition,) = receipt["partitions"]
        assert partition["up_to_offset"] == 60
        (replica,) = partition["replicas"]
        assert replica["segments_replaced"] != []
        assert files_with(node.data_dir, SECRET) == []
        assert requests(f"sqlite://{node.data_dir}/metadata.db") == []
        produce(node.address, "t", 60, 10)
        node.kill()
        node.start()
        seen = consume(node.address, "t")
        assert dict(seen).keys() == before.keys()
        assert [n for n in offsets(seen) if n % KEYS == 3] == [63, 68]
        if policy == "delete":
            assert offsets(seen) == [n for n in range(70) if n % KEYS != 3 or n >= 60]
            on_disk = {int(path.stem) for path in (node.data_dir / "t-0").glob("*.log")}
            assert {one["base_offset"] for one in replica["segments_replaced"]} <= on_disk
            removed = [one["removed_record_count"] for one in replica["segments_replaced"]]
            assert sum(removed) == 12
        (stored,) = (node.data_dir / "objects").rglob("erasure-*.json")
        assert json.loads(stored.read_bytes()) == receipt
        assert "ERROR" not in node.log


def test_a_replica_that_has_lost_its_log_takes_back_that_it_is_done(tmp_path: Path) -> None:
    """The records may come again, from a replica that has yet to erase them."""
    with NodeProcess(tmp_path / "data", config=CONFIG) as node:
        create(node, "t", cleanup_policy="delete", segment_bytes="3000")
        produce(node.address, "t", 0, 30)
        node.stop()
        store = f"sqlite://{node.data_dir}/metadata.db"
        asyncio.run(write_done_request(store, up_to=30))
        shutil.rmtree(node.data_dir / "t-0")
        node.start()
        assert not read_request(store).of(1).is_done
        produce(node.address, "t", 0, 40)
        eventually(lambda: read_request(store).of(1).is_done, "it erases them again")
        assert offsets(consume(node.address, "t")) == [
            n for n in range(40) if n % KEYS != 3 or n >= 30
        ]


def read_request(metadata_store: str) -> KeyErasure:
    (item,) = requests(metadata_store)
    return KeyErasure.from_item(item)


async def write_done_request(metadata_store: str, *, up_to: int) -> None:
    """Store a request that broker 1 has carried out and another broker has not."""
    store = open_metadata_store(metadata_store)
    try:
        (topic,) = [Topic.from_item(item) for item in await store.list("topic")]
        request = KeyErasure(
            topic_id=topic.topic_id,
            partition=0,
            key_sha256=hashlib.sha256(SECRET).hexdigest(),
            up_to=up_to,
            replicas=(ReplicaErasure(1, is_done=True),),
        )
        await store.commit([put(request)])
    finally:
        await store.close()


@pytest.mark.slow
@pytest.mark.parametrize("victim_leads", [False, True])
def test_a_replica_that_is_killed_while_it_erases_does_so_when_it_is_back(
    tmp_path: Path, victim_leads: bool
) -> None:
    count = 1_000
    slow = {**CONFIG, "log.cleaner.io.max.bytes.per.second": "100000"}
    with replicated_cluster(tmp_path, config=slow) as cluster:
        cluster.create("t", remote_storage_enable="false", segment_bytes="30000")
        produce(cluster.addresses, "t", 0, count)
        victim = cluster.node_leading("t") if victim_leads else cluster.followers("t")[0]
        directory = victim.data_dir / "t-0"
        locations = (
            *("--metadata", str(victim.metadata_store)),
            *("--objects", str(victim.object_store)),
        )
        asked = ("erase", *locations, "--topic", "t", "--key", SECRET.decode())
        command = subprocess.Popen(
            [COMMAND, *asked, "--receipt", "/dev/stdout", "--timeout", "12"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        eventually(lambda: bool(list(directory.glob("cleaned/*.log"))), "the victim erases")
        victim.kill()
        out, errors = command.communicate(timeout=SECONDS_MAX)
        assert command.returncode == 1, errors
        receipt = json.JSONDecoder().raw_decode(out.decode())[0]
        (problem,) = receipt["partitions"][0]["problems"]
        assert problem == f"broker {victim.broker_id} has not erased the key from its replica"
        done = {one["broker"] for one in receipt["partitions"][0]["replicas"] if one["is_done"]}
        assert done == {1, 2, 3} - {victim.broker_id}
        assert files_with(directory, SECRET) != []
        for node in cluster.running:
            assert files_with(node.data_dir, SECRET) == []
        produce(cluster.addresses, "t", count, 20)  # what comes later stays

        victim.start()
        eventually(
            lambda: all(
                record.offset >= count
                for record in records_on_disk(directory)
                if record.key == SECRET
            ),
            "the victim erases without being asked again",
        )
        tidelog(*asked, "--receipt", tmp_path / "receipt.json")
        receipt = json.loads((tmp_path / "receipt.json").read_bytes())
        assert receipt["is_done"]
        named = {
            one["broker"]: one["segments_replaced"] for one in receipt["partitions"][0]["replicas"]
        }
        # What was replaced before the kill is named too.
        removed = {b: sum(s["removed_record_count"] for s in named[b]) for b in named}
        assert removed.keys() == {1, 2, 3}
        assert min(removed.values()) >= count // KEYS
        assert requests(str(victim.metadata_store)) == []
        expected = [n for n in range(count + 20) if n % KEYS != 3]
        for node in cluster.nodes.values():
            held = [record.offset for record in records_on_disk(node.data_dir / "t-0")]
            assert held == expected, node.broker_id
        assert offsets(consume(cluster.addresses, "t")) == expected
