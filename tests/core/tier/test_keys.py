"""Keys of the tier's objects."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from tidelog_core.errors import CorruptObject
from tidelog_core.metadata.records import SegmentMeta, SegmentState
from tidelog_core.objects.key_rules import check_key
from tidelog_core.tier.keys import (
    cluster_manifest_key,
    parse_segment_key,
    segment_keys,
    topic_manifest_key,
)
from tidelog_core.tier.manifest import ClusterManifest, TopicManifest


def meta(base: int = 42, end: int = 100, **fields: object) -> SegmentMeta:
    values: dict[str, object] = {
        "topic_id": UUID(int=7),
        "partition": 3,
        "base_offset": base,
        "end_offset": end,
        "leader_epoch": 5,
        "segment_id": uuid4(),
        "state": SegmentState.COPY_FINISHED,
        "size_bytes": 1000,
        "index_size_bytes": 100,
        "max_timestamp_ms": 1,
        "leader_epochs": ((5, base),),
        "chained_hash": "00" * 32,
        "created_ms": 2,
    }
    return SegmentMeta(**{**values, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("topic", ["t", "a.b_c-d", ".hidden", "-", "x" * 249])
def test_a_segments_keys_are_allowed_and_read_back(topic: str) -> None:
    segment = meta()
    keys = segment_keys("cluster-1", topic, segment)
    for key, is_index in ((keys.log, False), (keys.index, True)):
        check_key(key)
        parsed = parse_segment_key(key)
        assert parsed is not None
        assert parsed.topic == topic[:200]
        assert (parsed.topic_id, parsed.partition) == (segment.topic_id, 3)
        assert (parsed.base_offset, parsed.leader_epoch) == (42, 5)
        assert (parsed.segment_id, parsed.is_index) == (segment.segment_id, is_index)
    check_key(topic_manifest_key("cluster-1", topic, segment.topic_id))


def test_other_keys_are_not_segments() -> None:
    for key in (
        "",
        cluster_manifest_key("c"),
        topic_manifest_key("c", "t", UUID(int=7)),
        "c/t/0/x.log",
    ):
        assert parse_segment_key(key) is None


def test_manifests_are_read_back() -> None:
    cluster = ClusterManifest(cluster_id="c")
    assert ClusterManifest.parse(cluster.to_bytes()) == cluster
    topic = TopicManifest(
        name="t",
        topic_id=UUID(int=7),
        partition_count=3,
        created_ms=9,
        configs={"retention.ms": "5"},
    )
    assert TopicManifest.parse(topic.to_bytes()) == topic


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"kind": "topic", "format_version": 2}', b'{"kind": "cluster"}', b"\xff"],
)
def test_what_is_no_manifest_is_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptObject, match=r"x\.json"):
        TopicManifest.parse(data, key="x.json")
