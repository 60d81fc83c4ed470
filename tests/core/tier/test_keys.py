"""Keys of the tier's objects."""

from __future__ import annotations

from uuid import UUID

import pytest
from tidelog_core.errors import CorruptObject
from tidelog_core.objects.key_rules import check_key
from tidelog_core.tier.keys import (
    DeletionKey,
    LogStartKey,
    cluster_manifest_key,
    deletion_key,
    log_start_key,
    parse_deletion_key,
    parse_log_start_key,
    parse_segment_key,
    parse_topic_manifest_key,
    segment_keys,
    store_identity_key,
    topic_manifest_key,
)
from tidelog_core.tier.manifest import ClusterManifest, StoreIdentityObject, TopicManifest

from tests.support.segment_items import segment_meta


@pytest.mark.parametrize("topic", ["t", "a.b_c-d", ".hidden", "-", "x" * 249])
def test_a_segments_keys_are_allowed_and_read_back(topic: str) -> None:
    segment = segment_meta()
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
        store_identity_key("c"),
        topic_manifest_key("c", "t", UUID(int=7)),
        "c/t/0/x.log",
    ):
        assert parse_segment_key(key) is None


@pytest.mark.parametrize("topic", ["t", "a.b_c-d", ".hidden", "-", "x" * 249])
def test_what_tells_of_log_starts_and_deletions_is_read_back(topic: str) -> None:
    topic_id = UUID(int=7)
    for offset in (0, 42, 2**63 - 1):
        key = log_start_key("cluster-1", topic, topic_id, 3, offset)
        check_key(key)
        assert parse_log_start_key(key) == LogStartKey(topic_id, 3, offset)
        assert parse_segment_key(key) is None
    key = deletion_key("cluster-1", topic, topic_id)
    check_key(key)
    folder = topic_manifest_key("cluster-1", topic, topic_id).rpartition("/")[0]
    assert parse_deletion_key(key) == DeletionKey(topic_id, folder)
    assert parse_topic_manifest_key(key) is None
    for other in (
        key.replace("deleted", "Deleted"),
        f"{folder}/log-start-{1:020d}.json",
        f"{folder}/3/log-start-1.json",
        f"{folder}/03/log-start-{1:020d}.json",
        f"{folder}/3/log-start-{2**63:020d}.json",
    ):
        assert parse_log_start_key(other) is None
        assert parse_deletion_key(other) is None


def test_manifests_of_before_do_not_tell_how_many_replicas_there_were() -> None:
    topic = TopicManifest(
        name="t", topic_id=UUID(int=7), partition_count=3, created_ms=9, replication_factor=None
    )
    assert b"replication_factor" not in topic.to_bytes()
    assert TopicManifest.parse(topic.to_bytes()) == topic
    for wrong in (b"0", b"null", b'"2"', b"true"):
        data = topic.to_bytes().replace(b"{", b'{"replication_factor": ' + wrong + b",", 1)
        with pytest.raises(CorruptObject, match="replication_factor"):
            TopicManifest.parse(data)


def test_manifests_are_read_back() -> None:
    cluster = ClusterManifest(cluster_id="c")
    assert ClusterManifest.parse(cluster.to_bytes()) == cluster
    identity = StoreIdentityObject(store_id="one")
    assert StoreIdentityObject.parse(identity.to_bytes()) == identity
    with pytest.raises(CorruptObject, match=r"object-store\.json"):
        StoreIdentityObject.parse(cluster.to_bytes())
    topic = TopicManifest(
        name="t",
        topic_id=UUID(int=7),
        partition_count=3,
        created_ms=9,
        replication_factor=2,
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
