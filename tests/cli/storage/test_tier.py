"""``verify`` and ``tier status`` on a cluster that has tiered segments."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
import sqlite3
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from tidelog import Producer
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import SegmentMeta, put, segment_collection, topic_key
from tidelog_core.metadata.store import ItemKey
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore

from tests.support.command import Outcome, called, tidelog
from tests.support.node_process import NodeProcess
from tests.support.stored_items import overwrite_body, stored_items

TOPICS = ("orders", "other")
SMALL_SEGMENTS = {"remote.task.interval.ms": "50", "log.segment.bytes": "4096"}


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a stopped node that has tiered two topics: no copy was under way."""
    data_dir = tmp_path_factory.mktemp("tiered") / "data"
    with NodeProcess(data_dir, config=SMALL_SEGMENTS) as node:
        asyncio.run(produce_batches(node.address, TOPICS))
        sealed = {t: len(list((data_dir / f"{t}-0").glob("*.log"))) - 1 for t in TOPICS}
        assert min(sealed.values()) >= 4
        deadline = time.monotonic() + 30
        while {row["topic"]: row["segments"] for row in status_rows(data_dir)} != sealed:
            assert time.monotonic() < deadline, node.log
    return data_dir


async def produce_batches(bootstrap: str, topics: tuple[str, ...]) -> None:
    """Write 60 records to each topic, in batches of 6 that each nearly fill a segment."""
    async with Producer(bootstrap) as producer:
        for topic in topics:
            for number in range(60):
                await producer.send(topic, b"%03d" % number + b"x" * 500)
                if number % 6 == 5:
                    await producer.flush()


@pytest.fixture
def damaged(tiered: Path, tmp_path: Path) -> Path:
    """A copy to do harm to."""
    copy = tmp_path / "data"
    copy.mkdir()
    shutil.copytree(tiered / "objects", copy / "objects")
    with sqlite3.connect(tiered / "metadata.db") as source:
        target = sqlite3.connect(copy / "metadata.db")
        source.backup(target)
        target.close()
    source.close()
    return copy


def status_rows(data_dir: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = called("tier", "status", "--data-dir", data_dir, "--json").document
    return [row for row in rows if not row["topic"].startswith("__")]


def objects_of(data_dir: Path, topic: str, suffix: str) -> list[Path]:
    """Return the topic's objects in order of offset."""
    return sorted((data_dir / "objects").glob(f"*/{topic}-*/0/*{suffix}"))


def key_of(data_dir: Path, path: Path) -> str:
    return str(path.relative_to(data_dir / "objects"))


def verified(data_dir: Path, *topics: str, status: int = 0) -> dict[str, Any]:
    outcome = called("verify", *topics, "--data-dir", data_dir, "--json", status=status)
    document: dict[str, Any] = outcome.document
    return document


def wrong_objects(document: dict[str, Any]) -> list[str]:
    return [problem["object"] for problem in document["problems"]]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x01
    path.chmod(0o644)
    path.write_bytes(data)


def test_verify_passes_what_a_node_has_tiered(tiered: Path) -> None:
    document = verified(tiered)
    count = sum(row["segments"] for row in status_rows(tiered))
    assert document == {
        "ok": True,
        "segments": count,
        "bytes": document["bytes"],
        "problem_count": 0,
        "leftover_count": 0,
        "problems": [],
        "leftovers": [],
    }
    logs = objects_of(tiered, "orders", ".log") + objects_of(tiered, "other", ".log")
    assert document["bytes"] == sum(path.stat().st_size for path in logs)
    assert "all is well" in tidelog("verify", "--data-dir", tiered).out.decode()


@pytest.mark.parametrize("position", [0, 70, -1])
def test_verify_names_the_segment_of_which_one_bit_is_wrong(damaged: Path, position: int) -> None:
    victim = objects_of(damaged, "orders", ".log")[1]
    flip(victim, position)
    document = verified(damaged, status=1)
    assert wrong_objects(document) == [key_of(damaged, victim)]
    assert document["problems"][0]["topic"] == "orders"
    outcome: Outcome = called("verify", "--data-dir", damaged, status=1)
    assert key_of(damaged, victim) in outcome.lines[0]
    assert "1 problem" in outcome.lines[-1]


@pytest.mark.parametrize("position", [0, 20, 150, -1])
def test_verify_names_the_index_of_which_one_bit_is_wrong(damaged: Path, position: int) -> None:
    victim = objects_of(damaged, "orders", ".index")[2]
    flip(victim, position)
    assert wrong_objects(verified(damaged, status=1)) == [key_of(damaged, victim)]


def test_verify_goes_on_after_what_is_wrong_and_names_all_of_it(damaged: Path) -> None:
    logs = objects_of(damaged, "orders", ".log")
    indexes = objects_of(damaged, "orders", ".index")
    missing, short, other = logs[0], indexes[2], objects_of(damaged, "other", ".log")[0]
    missing.unlink()
    short.chmod(0o644)
    short.write_bytes(short.read_bytes()[:-8])
    flip(other, 100)
    document = verified(damaged, status=1)
    assert wrong_objects(document) == [key_of(damaged, path) for path in (missing, short, other)]
    assert document["problems"][0]["problem"] == "it is not there"
    assert document["segments"] == sum(row["segments"] for row in status_rows(damaged))
    assert verified(damaged, "other", status=1)["segments"] < document["segments"]


def test_verify_finds_a_segment_that_metadata_has_lost(damaged: Path) -> None:
    """In the middle the offsets have a gap; at the start the chain tells."""
    for row, message in ((1, "are missing before it"), (0, "are missing before it")):
        change_segments(damaged, "orders", drop=row)
        problems = verified(damaged, "orders", status=1)["problems"]
        assert message in problems[0]["problem"]
        assert problems[0]["object"].endswith(".log")


def test_verify_finds_metadata_that_disagrees_with_the_objects(damaged: Path) -> None:
    change_segments(damaged, "orders", size_bytes=17)
    victim = objects_of(damaged, "orders", ".log")[0]
    problems = verified(damaged, "orders", status=1)["problems"]
    assert key_of(damaged, victim) in [problem["object"] for problem in problems]
    assert any("instead of 17" in problem["problem"] for problem in problems)


def test_verify_names_an_item_that_is_no_segment(damaged: Path) -> None:
    store = damaged / "metadata.db"
    first = next(key for key in stored_items(store) if key.collection.startswith("segment:"))
    overwrite_body(store, first, json.dumps({"size_bytes": "many"}))
    document = verified(damaged, status=1)
    assert wrong_objects(document)[0].startswith("segment:")


def test_what_cannot_be_read_of_the_cluster_is_named_and_the_rest_checked(damaged: Path) -> None:
    count = verified(damaged)["segments"]
    store = damaged / "metadata.db"
    topic_id = json.loads(stored_items(store)[topic_key("orders")][1])["topic_id"]
    partition = f"partition:{topic_id}"
    for key in (topic_key("other"), ItemKey(partition, "0000000000")):
        overwrite_body(store, key, "[")
    document = verified(damaged, status=1)
    assert set(wrong_objects(document)) == {"topic/other", f"{partition}/0000000000"}
    assert 0 < document["segments"] < count
    assert wrong_objects(verified(damaged, "orders", status=1)) == [f"{partition}/0000000000"]
    outcome = called("tier", "status", "--data-dir", damaged)
    assert "topic/other cannot be read" in outcome.errors
    assert {row["topic"] for row in status_rows(damaged)} == {"orders"}
    assert "cannot be read" in called("verify", "--data-dir", damaged, "other", status=1).errors


def put_copy(path: Path, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(path, target))


def test_verify_names_what_is_in_the_bucket_and_belongs_to_nobody(damaged: Path) -> None:
    log, index = (objects_of(damaged, "orders", suffix)[1] for suffix in (".log", ".index"))
    foreign = put_copy(log, log.with_name("notes.txt"))
    segment_id, base_offset = log.stem[-36:], log.stem[:20]
    unknown = str(index).replace(segment_id, str(uuid.uuid4()))
    # At an offset that no segment has: it may be all that is left of what metadata has lost.
    orphan = put_copy(index, Path(unknown.replace(base_offset, f"{10**6:020}")))
    folder = log.parent.parent
    stranger = folder.with_name(f"gone-{uuid.uuid4()}")
    put_copy(log, stranger / "0" / log.name)
    document = verified(damaged, status=1)
    problems = {problem["object"]: problem for problem in document["problems"]}
    assert problems.keys() == {key_of(damaged, path) for path in (foreign, orphan, stranger)}
    assert problems[key_of(damaged, orphan)]["topic"] == "orders"
    assert problems[key_of(damaged, stranger)]["topic"] is None
    # Of one topic only what lies in its folder, and a foreign object is of no topic.
    assert wrong_objects(verified(damaged, "orders", status=1)) == [key_of(damaged, orphan)]
    assert verified(damaged, "other")["ok"]


@pytest.mark.parametrize("suffixes", [(".log", ".index"), (".log",), (".index",)])
def test_verify_tells_what_a_given_up_copy_has_left_from_damage(
    damaged: Path, suffixes: tuple[str, ...]
) -> None:
    """As a tier worker leaves it that goes on after its node has lost the lead."""
    segment_id = str(uuid.uuid4())
    left = []
    for suffix in suffixes:
        path = objects_of(damaged, "orders", suffix)[1]
        left.append(put_copy(path, Path(str(path).replace(path.stem[-36:], segment_id))))
    document = verified(damaged, status=3)
    assert (document["ok"], document["problems"]) == (True, [])
    leftovers = {row["object"]: row for row in document["leftovers"]}
    assert leftovers.keys() == {key_of(damaged, path) for path in left}
    assert {row["topic"] for row in leftovers.values()} == {"orders"}
    outcome = called("verify", "--data-dir", damaged, status=3)
    assert "left over from a copy that was given up" in outcome.lines[0]
    counted = "1 object left over" if len(left) == 1 else f"{len(left)} objects left over"
    assert outcome.lines[-1].endswith(f"all is well, {counted}")
    # Damage comes first.
    victim = objects_of(damaged, "other", ".log")[0]
    flip(victim, 70)
    document = verified(damaged, status=1)
    assert (wrong_objects(document), document["ok"]) == ([key_of(damaged, victim)], False)
    assert len(document["leftovers"]) == len(left)


def test_verify_asks_for_the_manifests_that_a_restoration_needs(damaged: Path) -> None:
    manifest = objects_of(damaged, "orders", ".log")[0].parent.parent / "topic.json"
    manifest.unlink()
    cluster = manifest.parent.parent / "cluster.json"
    cluster.chmod(0o644)
    cluster.write_text("{}")
    problems = verified(damaged, status=1)["problems"]
    assert [(problem["object"], problem["problem"]) for problem in problems] == [
        (key_of(damaged, cluster), "it is not a cluster manifest"),
        (key_of(damaged, manifest), "it is not there"),
    ]


def test_verify_of_a_bucket_alone(tiered: Path) -> None:
    document = called("verify", "--from", f"file://{tiered}/objects", "--json").document
    assert document == verified(tiered)
    one = called("verify", "orders", "--from", f"file://{tiered}/objects", "--json").document
    assert 0 < one["segments"] < document["segments"]


def test_verify_of_a_bucket_alone_names_what_is_wrong(damaged: Path) -> None:
    logs, indexes = (objects_of(damaged, "orders", suffix) for suffix in (".log", ".index"))
    flip(logs[0], 100)
    flip(indexes[2], 20)
    objects_of(damaged, "other", ".log")[-1].unlink()
    foreign = put_copy(logs[0], logs[0].with_name("notes.txt"))
    document = called("verify", "--from", f"file://{damaged}/objects", "--json", status=1).document
    named = set(wrong_objects(document))
    assert named >= {key_of(damaged, path) for path in (indexes[2], foreign)}
    # The second segment before the gap that the third leaves is not looked into.
    assert key_of(damaged, logs[3]) in named
    assert any(
        name.startswith(key_of(damaged, foreign).split("/")[0] + "/other-") for name in named
    )
    flip(indexes[2], 20)
    document = called(
        "verify", "orders", "--from", f"file://{damaged}/objects", "--json", status=1
    ).document
    assert wrong_objects(document)[0] == key_of(damaged, logs[0])


def test_verify_of_a_bucket_alone_begins_where_it_says_that_the_log_starts(damaged: Path) -> None:
    logs = objects_of(damaged, "orders", ".log")
    offsets = [int(path.name.partition("-")[0]) for path in logs]
    bucket = ("verify", "orders", "--from", f"file://{damaged}/objects", "--json")
    logs[1].unlink()  # its deletion had begun
    assert key_of(damaged, logs[2]) in wrong_objects(called(*bucket, status=1).document)
    told = logs[0].with_name(f"log-start-{offsets[2]:020d}.json")
    told.write_bytes(b"")
    document = called(*bucket).document
    assert document["ok"]
    assert document["segments"] == len(logs) - 2
    for path in (logs[2], logs[2].with_suffix(".index")):
        path.unlink()
    (problem,) = called(*bucket, status=1).document["problems"]
    assert problem["object"] == key_of(damaged, logs[3])
    gap = f"[{offsets[2]}, {offsets[3]})"
    assert problem["problem"] == f"offsets {gap} are missing before it"


def test_verify_of_a_bucket_alone_passes_deleted_topics_over(damaged: Path) -> None:
    log = objects_of(damaged, "orders", ".log")[0]
    log.unlink()
    folder = log.parent.parent
    folder.with_name(f"{folder.name}.deleted.json").write_bytes(b"")
    document = called("verify", "--from", f"file://{damaged}/objects", "--json").document
    assert document["ok"]
    assert document["segments"] == len(objects_of(damaged, "other", ".log"))


def test_verify_names_what_the_bucket_says_and_the_metadata_does_not(damaged: Path) -> None:
    """As after the metadata was set back; a restoration would believe the bucket."""
    folder = objects_of(damaged, "orders", ".log")[0].parent
    ahead = folder / f"log-start-{7:020d}.json"
    deleted = folder.parent.with_name(f"{folder.parent.name}.deleted.json")
    for path in (ahead, deleted):
        path.write_bytes(b"")
    document = verified(damaged, status=1)
    problems = {problem["object"]: problem["problem"] for problem in document["problems"]}
    assert problems == {
        key_of(damaged, ahead): "the log starts at 0, not at 7 as this says",
        key_of(damaged, deleted): "it says that the topic was deleted, "
        "but the metadata store has it",
    }


def test_verify_takes_a_bucket_or_a_cluster_but_not_both(
    tiered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{tiered}/objects"
    monkeypatch.setenv("TIDELOG_METADATA_STORE", "sqlite:///nowhere/metadata.db")
    assert called("verify", "--from", url, "--json").document["ok"]
    monkeypatch.delenv("TIDELOG_METADATA_STORE")
    outcome = called("verify", "--from", url, "--data-dir", tiered, status=2)
    assert "--from checks a bucket alone" in outcome.errors
    outcome = called("verify", "--data-dir", tiered, "--cluster-id", "x", status=2)
    assert "--cluster-id needs --from" in outcome.errors
    assert "no topic 'ordrs'" in called("verify", "ordrs", "--from", url, status=1).errors


def test_verify_takes_the_stores_by_url(tiered: Path) -> None:
    outcome = called(
        "verify", "orders", "--json",
        "--metadata", f"sqlite://{tiered}/metadata.db", "--objects", f"file://{tiered}/objects",
    )  # fmt: skip
    assert outcome.document["ok"]


def test_unknown_topic_is_named_with_those_that_are_there(tiered: Path) -> None:
    for command in (("verify",), ("tier", "status")):
        outcome = called(*command, "ordrs", "--data-dir", tiered, status=1)
        assert "no topic 'ordrs'" in outcome.errors
        assert "orders" in outcome.errors


def test_status_without_a_node_tells_what_the_metadata_knows(tiered: Path) -> None:
    outcome = called("tier", "status", "orders", "--data-dir", tiered, "--json")
    assert "no node answers" in outcome.errors
    (row,) = outcome.document
    logs, indexes = (objects_of(tiered, "orders", suffix) for suffix in (".log", ".index"))
    assert row["segments"] == len(logs)
    assert row["tiered_bytes"] == sum(path.stat().st_size for path in logs + indexes)
    assert (row["tiered_start"], row["is_tiered"], row["backlog"]) == (0, True, None)
    assert 0 < row["tiered_end"] <= 60


def test_status_asks_the_nodes_for_what_only_they_have(cli_node: NodeProcess) -> None:
    lines = (b"x" * 20_000 + b"\n") * 9
    for _ in range(2):
        called("produce", "status", bootstrap=cli_node.address, given=lines)
    deadline = time.monotonic() + 30
    while True:
        outcome = called("tier", "status", "status", "--data-dir", cli_node.data_dir, "--json")
        (row,) = outcome.document
        if row["segments"]:
            break
        assert time.monotonic() < deadline, cli_node.log
    assert outcome.errors == ""
    assert (row["local_start"], row["log_end"]) == (0, 18)
    assert row["backlog"] == 18 - row["tiered_end"] > 0
    table = called("tier", "status", "status", "--data-dir", cli_node.data_dir).lines
    assert table[0].split()[:4] == ["TOPIC", "PARTITION", "TIERING", "SEGMENTS"]
    assert table[1].split()[:3] == ["status", "0", "on"]


def change_segments(
    data_dir: Path, topic: str, *, drop: int | None = None, size_bytes: int | None = None
) -> None:
    """Remove the item of one of the topic's segments, or change the first one's size."""

    async def change() -> None:
        store = SqliteMetadataStore(data_dir / "metadata.db")
        try:
            image = await ClusterView(store).refresh()
            found = image.topics[topic]
            items = await store.list(segment_collection(found.topic_id, 0))
            segments = [SegmentMeta.from_item(item) for item in items]
            if size_bytes is not None:
                await store.commit([put(dataclasses.replace(segments[0], size_bytes=size_bytes))])
            if drop is not None:
                write = dataclasses.replace(put(segments[drop]), body=None)
                await store.commit([write])
        finally:
            await store.close()

    asyncio.run(change())
