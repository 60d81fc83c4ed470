"""Reading a bucket in which anything may be wrong."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.restoration.plan import plan_restoration
from tidelog_core.restoration.survey import Survey, list_clusters, survey
from tidelog_core.tier.manifest import ClusterManifest

from tests.docs.reader import only
from tests.docs.test_read_segments import put_segment


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
