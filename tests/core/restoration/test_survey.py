"""Reading a bucket in which anything may be wrong."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from pathlib import Path

import pytest
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.restoration.plan import plan_restoration
from tidelog_core.restoration.survey import Survey, list_clusters, survey
from tidelog_core.tier.manifest import ClusterManifest, TopicManifest

from tests.support.docs_reader import only
from tests.support.tier_segments import put_segment


@pytest.fixture
def objects(tmp_path: Path) -> Path:
    """A cluster with one topic, of which partition 4 has two segments."""
    folder = tmp_path / "objects"
    first = put_segment(folder, range(0, 20, 10))
    put_segment(folder, range(20, 40, 10), previous=first.chained_hash)
    (folder / "cluster/cluster.json").write_bytes(ClusterManifest(cluster_id="cluster").to_bytes())
    return folder


def surveyed(folder: Path) -> Survey:
    async def read() -> Survey:
        store = FolderObjectStore(folder)
        try:
            clusters, outside = await list_clusters(store)
            assert outside == []
            return await survey(store, clusters["cluster"])
        finally:
            await store.close()

    return asyncio.run(read())


def problems_of(folder: Path) -> dict[str, str]:
    restoration = plan_restoration(surveyed(folder), brokers=[1])
    return {problem.object: problem.text for problem in restoration.problems}


def key_of(folder: Path, path: Path) -> str:
    return str(path.relative_to(folder))


def test_a_whole_bucket_gives_its_segments(objects: Path) -> None:
    found = surveyed(objects)
    assert found.problems == []
    topic = only(found.topics)
    assert topic.manifest is not None
    selection = topic.selections[4]
    assert [s.meta.base_offset for s in selection.segments] == [0, 20]
    restored = only(plan_restoration(found, brokers=[1]).topics)
    assert restored.plan.topic.partition_count == len(restored.plan.partitions) == 5
    sizes = sorted(path.stat().st_size for path in objects.rglob("*.log"))
    assert sorted(segment.size_bytes for segment in restored.segments) == sizes


def test_more_partitions_than_the_manifest_knows_are_all_restored(objects: Path) -> None:
    """A leader may have seen the topic widened later than another."""
    manifest = only(objects.rglob("topic.json"))
    manifest.write_text(
        manifest.read_text().replace('"partition_count": 5', '"partition_count": 2')
    )
    restored = only(plan_restoration(surveyed(objects), brokers=[1, 2]).topics)
    assert [p.partition for p in restored.plan.partitions] == [0, 1, 2, 3, 4]


def topic_folder(folder: Path) -> Path:
    path = only(folder.rglob("topic.json")).parent
    assert isinstance(path, Path)
    return path


def test_the_log_starts_where_the_bucket_tells(objects: Path) -> None:
    (topic_folder(objects) / "4" / f"log-start-{25:020d}.json").write_bytes(b"")
    # Nothing but this is left of a partition that had more: its offsets are not given again.
    (topic_folder(objects) / "6").mkdir()
    (topic_folder(objects) / "6" / f"log-start-{70:020d}.json").write_bytes(b"for people")
    restoration = plan_restoration(surveyed(objects), brokers=[1])
    restored = only(restoration.topics)
    starts = [p.log_start_offset for p in restored.plan.partitions]
    assert starts == [0, 0, 0, 0, 25, 0, 70]
    assert {p.restored_log_start for p in restored.plan.partitions} == {0}
    assert [segment.base_offset for segment in restored.segments] == [20]
    assert restoration.problems == ()


def test_a_deleted_topic_stays_deleted_whatever_is_left_of_it(objects: Path) -> None:
    folder = topic_folder(objects)
    folder.with_name(f"{folder.name}.deleted.json").write_bytes(b"")
    max(objects.rglob("*.index")).write_bytes(b"cut short")
    found = surveyed(objects)
    restoration = plan_restoration(found, brokers=[1])
    assert (restoration.topics, restoration.problems) == ((), ())
    (left_out,) = restoration.left_out
    assert (left_out.object, left_out.text) == (key_of(objects, folder), "the topic was deleted")
    shutil.rmtree(folder)
    assert plan_restoration(surveyed(objects), brokers=[1]).topics == ()


def test_a_log_that_begins_behind_a_hole_says_so(objects: Path) -> None:
    min(objects.rglob("*.index")).write_bytes(b"cut short")
    partition = only(plan_restoration(surveyed(objects), brokers=[1]).topics).plan.partitions[4]
    assert (partition.log_start_offset, partition.restored_log_start) == (20, 20)


@pytest.mark.parametrize(
    ("told", "asked", "brokers", "expected"),
    [
        (None, None, 2, 2), (None, None, 5, 3), (None, 1, 5, 1),
        (1, None, 5, 1), (4, None, 5, 4), (4, None, 2, 2), (4, 5, 5, 5),
    ],
)  # fmt: skip
def test_topics_have_as_many_replicas_as_they_had(
    objects: Path, told: int | None, asked: int | None, brokers: int, expected: int
) -> None:
    path = only(objects.rglob("topic.json"))
    manifest = TopicManifest.parse(path.read_bytes())
    path.write_bytes(dataclasses.replace(manifest, replication_factor=told).to_bytes())
    restoration = plan_restoration(
        surveyed(objects), brokers=range(brokers), replication_factor=asked
    )
    partitions = only(restoration.topics).plan.partitions
    assert {len(set(partition.replicas)) for partition in partitions} == {expected}
    assert restoration.fewer_replicas == (("t",) if (told, asked, brokers) == (4, None, 2) else ())


def test_any_damage_of_an_index_is_named_and_never_breaks_the_reading(objects: Path) -> None:
    path = max(objects.rglob("*.index"))
    whole = path.read_bytes()
    for position in [*range(0, len(whole), 7), len(whole) - 1]:
        data = bytearray(whole)
        data[position] ^= 0x20
        path.write_bytes(data)
        problems = problems_of(objects)
        assert problems.keys() <= {key_of(objects, path)}
        # Between sections lie zeros that nothing depends on.
        assert problems or whole[position] == 0
    for size in (0, 1, 111, 112, 300, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert problems_of(objects).keys() == {key_of(objects, path)}


def test_an_index_under_another_name_is_named(objects: Path) -> None:
    first, second = sorted(objects.rglob("*.index"))
    shutil.copyfile(first, second)
    assert "its name says" in problems_of(objects)[key_of(objects, second)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not JSON"),
        ("[]", "not a topic manifest"),
        ('{"kind": "topic", "format_version": 2}', "format version"),
        ('"retention.ms": "soon"', "settings are not valid here"),
        ('"name": "u"', "of another topic"),
        ('"partition_count": 0', "0 partitions"),
        ('"created_ms": 0, "replication_factor": 0', "replication_factor must be at least 1"),
    ],
)
def test_a_manifest_that_cannot_be_used_keeps_its_topic_out(
    objects: Path, text: str, problem: str
) -> None:
    path = only(objects.rglob("topic.json"))
    whole = path.read_text()
    name = text.partition(":")[0]
    if '"retention' in text:
        text = whole.replace('"configs": {}', f'"configs": {{{text}}}')
    elif name in whole and name.startswith('"'):
        text = "\n".join(
            f"  {text}," if line.strip().startswith(name) else line for line in whole.splitlines()
        )
    path.write_text(text)
    found = surveyed(objects)
    restoration = plan_restoration(found, brokers=[1])
    assert restoration.topics == ()
    assert problem in {p.object: p.text for p in restoration.problems}[key_of(objects, path)]
