"""What a listing says is there."""

from __future__ import annotations

import pytest
from tidelog_core.objects.store import ObjectMeta
from tidelog_core.tier.bucket import sort_listing

TOPIC = "5f6dc6a4-35d9-4f1c-9d6c-1f0a3d3a9d11"
SEGMENT = "0a3b7b4e-6f8e-4a53-93f1-0d8a8d2f7c22"
STEM = f"c/t-{TOPIC}/4/{7:020d}-3-{SEGMENT}"


def listing(*keys: str) -> list[ObjectMeta]:
    return [ObjectMeta(key, 1, 1) for key in keys]


def test_objects_are_sorted_by_cluster_topic_and_partition() -> None:
    clusters, outside = sort_listing(
        listing(
            "c/cluster.json", "c/object-store.json", f"c/t-{TOPIC}/topic.json", f"{STEM}.index",
            f"{STEM}.log", "other/cluster.json", "readme.txt", "logs/2024/x",
        )
    )  # fmt: skip
    assert outside == ["readme.txt", "logs/2024/x"]
    assert clusters.keys() == {"c", "other"}
    cluster = clusters["c"]
    assert cluster.has_manifest
    assert cluster.foreign == []
    (topic,) = cluster.topics.values()
    assert topic.has_manifest
    assert (topic.folder, topic.manifest_key) == (f"c/t-{TOPIC}", f"c/t-{TOPIC}/topic.json")
    ((segment,),) = topic.partitions.values()
    assert (segment.log_key, segment.index_key) == (f"{STEM}.log", f"{STEM}.index")
    assert segment.log is not None
    assert segment.index is not None


def test_of_what_tells_a_log_start_the_greatest_counts_and_a_deletion_is_its_topics() -> None:
    start = f"c/t-{TOPIC}/4/log-start-{9:020d}.json"
    clusters, outside = sort_listing(
        listing(
            start, start.replace("9.json", "7.json"), start.replace("/4/", "/0/"),
            f"c/t-{TOPIC}.deleted.json", f"c/t-{SEGMENT}/topic.json",
        )
    )  # fmt: skip
    assert (outside, clusters["c"].foreign) == ([], [])
    deleted, live = clusters["c"].topics.values()
    assert (deleted.folder, deleted.is_deleted) == (f"c/t-{TOPIC}", True)
    assert deleted.deletion_key == f"c/t-{TOPIC}.deleted.json"
    assert deleted.log_starts == {4: 9, 0: 9}
    assert deleted.partition_numbers == [0, 4]
    assert not deleted.has_manifest
    assert (live.is_deleted, live.log_starts) == (False, {})


@pytest.mark.parametrize(
    "key",
    [
        "c/notes.txt",
        f"c/t-{TOPIC}.json",
        f"c/t-{TOPIC}/4/log-start-9.json",
        f"c/t-{TOPIC}/notes.txt",
        f"c/t-{TOPIC}/4/{7:020d}-3-{SEGMENT}.log.bak",
        f"c/t-{TOPIC}/04/{7:020d}-3-{SEGMENT}.log",
        f"c/t-{TOPIC}/4/{7:020d}-03-{SEGMENT}.log",
        f"c/t-{TOPIC}/4/7-3-{SEGMENT}.log",
        f"c/t-{TOPIC}/4/{2**63}-3-{SEGMENT}.log".replace("/922", "/0922"),
        f"c/t-{TOPIC}/4/{7:020d}-{2**31}-{SEGMENT}.log",
        f"c/t-{TOPIC}/4/{7:020d}-3-{SEGMENT.upper()}.log",
        f"c/t-{TOPIC}/\u0664/{7:020d}-3-{SEGMENT}.log",
    ],
)
def test_what_nobody_writes_is_foreign(key: str) -> None:
    clusters, outside = sort_listing(listing("c/cluster.json", key))
    assert clusters["c"].foreign == [key]
    assert clusters["c"].topics == {}
    assert outside == []
