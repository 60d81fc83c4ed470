"""``tidelog restore``: metadata store and disks are gone, the bucket brings the cluster back."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tidelog_core.errors import ErrorCode
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import RestorationMark, put, topic_key
from tidelog_core.metadata.store import ANY_VERSION, Write
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.records.batch import patch

from tests.support.command import called, tidelog
from tests.support.docs_reader import reader
from tests.support.node_process import NodeProcess
from tests.support.stored_items import stored_items
from tests.support.tiered_topics import (
    CONFIG,
    DEADLINE_SECONDS,
    RECORDS,
    TOPIC_CONFIG,
    produce,
    read,
    seal,
    values,
    wait_tiered,
)
from tests.support.wire_client import WireClient

PARTITIONS = 3
SMALL_START = 13  # of the topic "small", by DeleteRecords: within its first segment

Rows = dict[int, list[tuple[int, int, bytes | None, bytes | None]]]


def wait_told(node: NodeProcess, objects: Path) -> None:
    """Wait until the bucket is told what was deleted; the objects are there still."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    for pattern in (f"*/small-*/0/log-start-{SMALL_START:020d}.json", "*/gone-*.deleted.json"):
        while not list(objects.glob(pattern)):
            assert time.monotonic() < deadline, f"no {pattern}:\n{node.log[-3000:]}"
            time.sleep(0.1)
    assert list(objects.glob("*/gone-*/0/*.log"))


def make_node(folder: Path, broker_id: int = 1) -> NodeProcess:
    return NodeProcess(
        folder / f"node-{broker_id}",
        broker_id=broker_id,
        metadata_store=f"sqlite://{folder}/metadata.db",
        object_store=f"file://{folder}/objects",
        config=CONFIG,
    )


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Rows]:
    """The bucket that is left of a cluster, and what consumers read while it was whole."""
    folder = tmp_path_factory.mktemp("lost")
    with make_node(folder) as node:
        admin = AdminClient({"bootstrap.servers": node.address})
        topics = [
            NewTopic("orders", PARTITIONS, 1, config=TOPIC_CONFIG),
            NewTopic("small", 1, 1, config=TOPIC_CONFIG),
            NewTopic("gone", 1, 1, config=TOPIC_CONFIG),
        ]
        for future in admin.create_topics(topics).values():
            future.result(60)
        for partition in range(2):  # the third stays empty
            produce(node.address, "orders", partition, values(partition))
        produce(node.address, "small", 0, values(0, 30))
        produce(node.address, "gone", 0, values(0, 30))
        ends = {("orders", 0): RECORDS, ("orders", 1): RECORDS, ("small", 0): 30, ("gone", 0): 30}
        seal(node, list(ends))
        wait_tiered(node, ends)
        small = TopicPartition("small", 0, SMALL_START)
        admin.delete_records([small])[small].result(60)
        admin.delete_topics(["gone"])["gone"].result(60)
        wait_told(node, folder / "objects")
        rows = {partition: read(node, "orders", partition, RECORDS) for partition in range(2)}
    return folder / "objects", rows


@pytest.fixture
def folder(lost: tuple[Path, Rows], tmp_path: Path) -> Path:
    """A folder with a copy of the bucket and nothing else."""
    shutil.copytree(lost[0], tmp_path / "objects")
    return tmp_path


@pytest.fixture
def restored(folder: Path) -> Iterator[NodeProcess]:
    """A node on the restored metadata, not started yet."""
    node = make_node(folder)
    yield node
    if node.process is not None:
        node.stop()


def restore(folder: Path, *arguments: object, status: int = 0) -> Any:
    return called(
        "restore", "--from", f"file://{folder}/objects",
        "--metadata", f"sqlite://{folder}/metadata.db", "--json", *arguments,
        status=status,
    )  # fmt: skip


def verify(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = called(
        "verify", "--metadata", f"sqlite://{folder}/metadata.db",
        "--objects", f"file://{folder}/objects", "--json", status=None,
    ).document  # fmt: skip
    return document


def send_again(folder: Path, node: NodeProcess) -> int:
    """Send the last batch of orders-0 once more, as its producer would; return its offset."""
    found, get = reader.open_bucket(str(folder / "objects"))
    partitions = reader.read_bucket(found, get, pytest.fail)
    ((_, segments),) = [
        one for one in partitions.items() if "/orders-" in one[0][0] and not one[0][1]
    ]
    log = get(segments[-1].key)
    *_, (base, _, _, position, size, _, _) = segments[-1].batches
    data = bytearray(log[position : position + size])
    patch(data, 0, base_offset=0, leader_epoch=-1)  # as a client sends it
    with WireClient(node.port) as client:
        answer = client.produce("orders", bytes(data), acks=-1)
    assert answer.error_code is ErrorCode.none
    assert answer.base_offset == base, "it was taken for a new one"
    return int(answer.base_offset)


def path_of(folder: Path, key: str) -> Path:
    return folder / "objects" / key


def wait_retained(node: NodeProcess) -> None:
    """Wait until retention has come by: it tells the bucket of the topics that are made now."""
    objects = Path(node.object_store.removeprefix("file://"))
    deadline = time.monotonic() + DEADLINE_SECONDS
    for name in ("one", "two"):
        admin = AdminClient({"bootstrap.servers": node.address})
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(60)
        while not list(objects.glob(f"*/{name}-*/topic.json")):
            assert time.monotonic() < deadline, node.log[-3000:]
            time.sleep(0.1)


def keys_of(folder: Path, topic: str, partition: int, suffix: str) -> list[str]:
    root = folder / "objects"
    paths = root.glob(f"*/{topic}-*/{partition}/*{suffix}")
    return sorted(str(path.relative_to(root)) for path in paths)


def test_a_cluster_comes_back_from_its_bucket_alone(
    lost: tuple[Path, Rows], folder: Path, restored: NodeProcess
) -> None:
    document = restore(folder).document
    assert (document["ok"], document["written"], document["problems"]) == (True, True, [])
    assert [topic["topic"] for topic in document["topics"]] == ["orders", "small"]
    partitions = document["topics"][0]["partitions"]
    assert [partition["tiered_end"] for partition in partitions] == [RECORDS, RECORDS, None]
    assert document["topics"][1]["partitions"][0]["log_start"] == SMALL_START
    (gone,) = (folder / "objects").glob("*/gone-*/")
    assert [one["object"] for one in document["left_out"]] == [
        f"{document['cluster_id']}/{gone.name}"
    ]
    restored.start()
    small = TopicPartition("small", 0)
    consumer = Consumer({"bootstrap.servers": restored.address, "group.id": "g"})
    assert consumer.get_watermark_offsets(small)[0] == SMALL_START
    consumer.close()
    for partition, rows in lost[1].items():
        assert read(restored, "orders", partition, RECORDS) == rows
    assert send_again(folder, restored) < RECORDS

    # The log goes on where the tier ends, and what is new is tiered too.
    more = [b"new %d" % number + b"y" * 100 for number in range(60)]
    for partition in range(PARTITIONS):
        produce(restored.address, "orders", partition, more)
    ends = [RECORDS + 60, RECORDS + 60, 60]
    for partition, end in enumerate(ends):
        found = read(restored, "orders", partition, end)
        assert [row[0] for row in found] == list(range(end))
        assert [row[3] for row in found[-60:]] == more
        assert found[:-60] == lost[1].get(partition, [])
    seal(restored, [("orders", partition) for partition in range(PARTITIONS)])
    wait_tiered(restored, {("orders", p): end for p, end in enumerate(ends)})
    restored.stop()
    checked = verify(folder)
    assert checked["problems"] == []
    assert checked["segments"] > sum(partition["segments"] for partition in partitions)


def test_topics_have_their_settings_and_the_cluster_its_id(
    lost: tuple[Path, Rows], folder: Path
) -> None:
    document = restore(folder, "--brokers", "4,5,6,7", "--dry-run").document
    partitions = document["topics"][0]["partitions"] + document["topics"][1]["partitions"]
    assert {len(partition["replicas"]) for partition in partitions} == {1}  # as it was
    document = restore(folder, "--brokers", "4,5,6,7", "--replication-factor", 3).document

    async def image() -> Any:
        store = SqliteMetadataStore(folder / "metadata.db")
        try:
            return await ClusterView(store).refresh()
        finally:
            await store.close()

    found = asyncio.run(image())
    assert (
        found.cluster_id
        == document["cluster_id"]
        == next(lost[0].glob("*/cluster.json")).parent.name
    )
    topic = found.topics["orders"]
    assert topic.configs == TOPIC_CONFIG
    assert topic.partition_count == PARTITIONS
    assert str(topic.topic_id) in keys_of(folder, "orders", 0, ".log")[0]
    partitions = found.partitions("orders") + found.partitions("small")
    assert {p.leader for p in partitions} == {4, 5, 6, 7}
    for partition in partitions:
        assert len(set(partition.replicas)) == 3
        assert partition.isr == (partition.leader,) == partition.replicas[:1]
        assert partition.leader_epoch >= 999


def test_replicas_follow_and_producers_are_known_again(folder: Path) -> None:
    """With several replicas the log begins anew at the tier's end, with the tier's producers."""
    restore(folder, "--brokers", "1,2", "--replication-factor", 2)
    nodes = [make_node(folder, broker_id) for broker_id in (1, 2)]
    try:
        for node in nodes:
            node.start()
        deadline = time.monotonic() + DEADLINE_SECONDS
        admin = AdminClient({"bootstrap.servers": nodes[0].address})
        while True:
            partitions = admin.list_topics("orders", timeout=60).topics["orders"].partitions
            if all(sorted(p.isrs) == [1, 2] for p in partitions.values()):
                break
            assert time.monotonic() < deadline, [node.log[-2000:] for node in nodes]
            time.sleep(0.2)
        assert send_again(folder, nodes[0]) < RECORDS
        produce(nodes[1].address, "orders", 0, [b"after"])
        assert read(nodes[0], "orders", 0, RECORDS + 1)[-1][3] == b"after"
    finally:
        for node in nodes:
            if node.process is not None:
                node.stop()


def test_a_store_that_holds_anything_is_refused(folder: Path) -> None:
    restore(folder)
    before = stored_items(folder / "metadata.db")
    outcome = restore(folder, status=1)
    assert "not empty: it holds cluster" in outcome.errors
    assert outcome.out == b""
    assert stored_items(folder / "metadata.db") == before


def test_a_restoration_that_was_cut_short_goes_on(folder: Path) -> None:
    """As a crash leaves it: some topics are written, the mark is there."""
    cluster_id = restore(folder).document["cluster_id"]

    async def cut_short() -> None:
        store = SqliteMetadataStore(folder / "metadata.db")
        await store.commit([put(RestorationMark(cluster_id=cluster_id), is_logged=False)])
        await store.commit([Write(topic_key("small"), None, ANY_VERSION)])
        await store.close()

    asyncio.run(cut_short())
    assert restore(folder).document["ok"]
    assert verify(folder)["ok"]
    assert "not empty" in restore(folder, status=1).errors


def test_a_dry_run_writes_nothing(folder: Path) -> None:
    outcome = called("restore", "--from", f"file://{folder}/objects", "--dry-run", "--json")
    assert (outcome.document["ok"], outcome.document["written"]) == (True, False)
    assert {path.name for path in folder.iterdir()} == {"objects"}


def test_what_is_damaged_or_foreign_is_named_and_the_rest_restored(
    lost: tuple[Path, Rows], folder: Path, restored: NodeProcess
) -> None:
    victim = keys_of(folder, "orders", 1, ".index")[1]
    data = bytearray(path_of(folder, victim).read_bytes())
    data[-1] ^= 1
    path_of(folder, victim).chmod(0o644)
    path_of(folder, victim).write_bytes(data)
    foreign = str(Path(victim).parent / "notes.txt")
    path_of(folder, foreign).write_text("not ours")
    manifest = next((folder / "objects").glob("*/small-*/topic.json"))
    manifest.chmod(0o644)
    manifest.write_text(json.dumps({"kind": "topic"}))
    outcome = restore(folder, status=1)
    problems = {problem["object"]: problem["problem"] for problem in outcome.document["problems"]}
    after = keys_of(folder, "orders", 1, ".log")[2]
    assert problems.keys() == {
        victim, foreign, after, str(manifest.relative_to(folder / "objects")),
    }  # fmt: skip
    assert "no object of the tier's" in problems[foreign]
    assert "are missing before it" in problems[after]
    (topic,) = outcome.document["topics"]
    assert topic["topic"] == "orders"
    starts = [partition["log_start"] for partition in topic["partitions"]]
    assert starts[0] == 0
    assert 0 < starts[1] < RECORDS
    restored.start()
    assert read(restored, "orders", 0, RECORDS) == lost[1][0]
    consumer = Consumer({"bootstrap.servers": restored.address, "group.id": "g"})
    assert consumer.get_watermark_offsets(TopicPartition("orders", 1)) == (starts[1], RECORDS)
    consumer.close()
    wait_retained(restored)
    restored.stop()

    # For people: a line for each, and a summary.
    (folder / "metadata.db").unlink()
    plain = tidelog(
        "restore", "--from", f"file://{folder}/objects",
        "--metadata", f"sqlite://{folder}/metadata.db", status=1,
    )  # fmt: skip
    assert sum(line.startswith(f"{victim}: ") for line in plain.lines) == 1
    assert plain.lines[-1].startswith("cluster ")
    assert plain.lines[-1].endswith("4 problems")

    # Put right again, all of it is there, though a node has run meanwhile.
    data[-1] ^= 1
    path_of(folder, victim).write_bytes(data)
    (folder / "metadata.db").unlink()
    topics = {t["topic"]: t for t in restore(folder, status=1).document["topics"]}
    topic = topics["orders"]
    assert [partition["log_start"] for partition in topic["partitions"]] == [0, 0, 0]
    assert [partition["tiered_end"] for partition in topic["partitions"][:2]] == [RECORDS] * 2


def test_what_retention_has_deleted_does_not_come_back(folder: Path) -> None:
    """The oldest segments are gone; of the next one the deletion got as far as its log."""
    logs, indexes = (keys_of(folder, "orders", 0, suffix) for suffix in (".log", ".index"))
    for key in (logs[0], indexes[0], logs[1]):
        path_of(folder, key).unlink()
    document = restore(folder).document
    start = int(Path(logs[2]).name.partition("-")[0])
    assert document["topics"][0]["partitions"][0]["log_start"] == start
    assert document["problems"] == []
    assert [one["object"] for one in document["left_out"] if "gone" not in one["object"]] == [
        logs[1]
    ]


def test_topics_that_get_fewer_replicas_than_they_had_are_named(folder: Path) -> None:
    manifest = next((folder / "objects").glob("*/small-*/topic.json"))
    fields = json.loads(manifest.read_text())
    assert fields["replication_factor"] == 1
    manifest.write_text(json.dumps(fields | {"replication_factor": 3}))
    assert restore(folder, "--dry-run", "--brokers", "1,2").document["fewer_replicas"] == ["small"]
    assert restore(folder, "--dry-run", "--brokers", "1,2,3").document["fewer_replicas"] == []
    outcome = called("restore", "--from", f"file://{folder}/objects", "--dry-run")
    assert "fewer replicas than before" in outcome.errors
    assert outcome.errors.rstrip().endswith(": small")


def test_offsets_of_what_was_deleted_altogether_are_not_given_again(
    folder: Path, restored: NodeProcess
) -> None:
    """The bucket has nothing of the partition any more but where its log starts."""
    topic_folder = path_of(folder, keys_of(folder, "orders", 0, ".log")[0]).parent.parent
    (topic_folder / "2").mkdir()
    (topic_folder / "2" / f"log-start-{500:020d}.json").write_bytes(b"")
    partition = restore(folder).document["topics"][0]["partitions"][2]
    assert (partition["log_start"], partition["segments"]) == (500, 0)
    restored.start()
    produce(restored.address, "orders", 2, [b"next"])
    consumer = Consumer({"bootstrap.servers": restored.address, "group.id": "g"})
    assert consumer.get_watermark_offsets(TopicPartition("orders", 2)) == (500, 501)
    consumer.close()
    assert read(restored, "orders", 2, 1, start=500)[0][0] == 500


def test_of_topics_of_one_name_the_newest_is_restored(folder: Path) -> None:
    """The older one was deleted; its objects had not gone yet."""
    old = next((folder / "objects").glob("*/small-*/topic.json")).parent
    manifest = json.loads((old / "topic.json").read_text())
    topic_id = str(uuid.uuid4())
    new = old.with_name(f"small-{topic_id}")
    new.mkdir()
    manifest |= {"topic_id": topic_id, "created_ms": manifest["created_ms"] + 1}
    (new / "topic.json").write_text(json.dumps(manifest))
    document = restore(folder).document
    assert [t["topic_id"] for t in document["topics"] if t["topic"] == "small"] == [topic_id]
    (left_out,) = [one for one in document["left_out"] if "gone" not in one["object"]]
    assert left_out["object"].endswith(f"{old.name}/topic.json")
    assert "was deleted" in left_out["problem"]


def test_one_of_several_clusters_is_named(folder: Path) -> None:
    objects = folder / "objects"
    (first,) = (path.name for path in objects.iterdir() if path.name != ".staging")
    shutil.copytree(objects / first, objects / "other")
    outcome = restore(folder, status=1)
    assert f"{first}, other" in outcome.errors or f"other, {first}" in outcome.errors
    assert "no cluster third" in restore(folder, "--cluster-id", "third", status=1).errors
    # Its own manifest still says whose it is.
    (problem,) = restore(folder, "--cluster-id", "other", status=1).document["problems"]
    assert problem["object"] == "other/cluster.json"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--from", "file:///nowhere", "--metadata", "sqlite:///nowhere/m.db"), "no object store"),
        (("--metadata", "sqlite:///nowhere/m.db"), "give --from"),
        (("--from", "file:///tmp"), "give --metadata"),
        (("--from", "file:///tmp", "--dry-run", "--brokers", "1,x"), "--brokers"),
        (("--from", "file:///tmp", "--dry-run", "--replication-factor", "2"), "cannot hold 2"),
    ],
)
def test_a_wrong_command_line_is_told(arguments: tuple[str, ...], message: str) -> None:
    outcome = called("restore", *arguments, status=None)
    assert outcome.status in {1, 2}
    assert message in outcome.errors
