"""Creating, widening and deleting topics, and what Metadata says of them."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.kafka.compare import compared
from tests.support.peer import Peer

Observations = Iterator[tuple[str, Any]]
NO_ID = uuid.UUID(int=0)
CREATABLE = {"num_partitions": 1, "replication_factor": 1}


def creation(peer: Peer, *topics: dict[str, Any], version: int = 7, **fields: Any) -> Any:
    """Create topics; return the answer without the settings, which have a case of their own."""
    answer = peer.call(
        "create_topics",
        version,
        topics=[{**CREATABLE, **topic} for topic in topics],
        timeout=10_000,
        **fields,
    )
    if isinstance(answer, dict):
        for topic in answer["topics"]:
            configs = topic.pop("configs", None)
            topic["has configs"] = None if configs is None else bool(configs)
            if topic["error_code"] == "none" and not fields.get("validate_only"):
                peer.await_topic(topic["name"], partitions=max(topic.get("num_partitions", 1), 1))
    return answer


@compared
def test_topic_names(peer: Peer) -> Observations:
    names = (
        "",
        ".",
        "..",
        "a/b",
        "a b",
        "ä",
        "a" * 249,
        "a" * 250,
        "a,b",
        "-",
        "...",
        "good.name",
        "good_name",
        "__consumer_offsets",
        "__cluster_metadata",
        "__mine",
    )
    peer.await_coordinator("any")
    for name in names:
        yield f"create {name[:20]} {len(name)}", creation(peer, {"name": name})
    for name in names:
        if name == "__consumer_offsets":
            continue
        answer = peer.call("metadata", 12, topics=[{"name": name}], allow_auto_topic_creation=False)
        yield f"metadata {name[:20]} {len(name)}", answer["topics"]


@compared
def test_creation_in_every_version(peer: Peer) -> Observations:
    for version in range(2, 8):
        yield f"new {version}", creation(peer, {"name": f"created-{version}"}, version=version)
        yield f"again {version}", creation(peer, {"name": f"created-{version}"}, version=version)
        yield (
            f"defaults {version}",
            creation(
                peer,
                {"name": f"defaults-{version}", "num_partitions": -1, "replication_factor": -1},
                version=version,
            ),
        )
        yield f"bad name {version}", creation(peer, {"name": "a b"}, version=version)
        for name in (f"created-{version}", f"defaults-{version}"):
            yield f"{name} as seen", peer.call("metadata", 12, topics=[{"name": name}])["topics"]


@compared
def test_numbers_of_partitions_and_replicas(peer: Peer) -> Observations:
    for partitions in (0, -1, -2, 5):
        yield (
            f"partitions {partitions}",
            creation(peer, {"name": f"partitions-{partitions}", "num_partitions": partitions}),
        )
    for factor in (0, -1, -2, 1, 2, 3, 32_767):
        yield (
            f"factor {factor}",
            creation(peer, {"name": f"factor-{factor}", "replication_factor": factor}),
        )
    yield (
        "both wrong",
        creation(peer, {"name": "both-wrong", "num_partitions": 0, "replication_factor": 0}),
    )


@compared
def test_assignments_by_hand(peer: Peer) -> Observations:
    free = {"num_partitions": -1, "replication_factor": -1}

    def assigned(*partitions: tuple[int, list[int]]) -> dict[str, Any]:
        return {
            "assignments": [
                {"partition_index": index, "broker_ids": brokers} for index, brokers in partitions
            ]
        }

    cases: dict[str, dict[str, Any]] = {
        "one": {**free, **assigned((0, [1]))},
        "two": {**free, **assigned((1, [1]), (0, [1]))},
        "unknown broker": {**free, **assigned((0, [9]))},
        "negative broker": {**free, **assigned((0, [-1]))},
        "broker twice": {**free, **assigned((0, [1, 1]))},
        "no brokers": {**free, **assigned((0, []))},
        "gap": {**free, **assigned((0, [1]), (2, [1]))},
        "not from zero": {**free, **assigned((1, [1]))},
        "partition twice": {**free, **assigned((0, [1]), (0, [1]))},
        "uneven": {**free, **assigned((0, [1]), (1, [1, 9]))},
        "with partitions": {**free, "num_partitions": 1, **assigned((0, [1]))},
        "with factor": {**free, "replication_factor": 1, **assigned((0, [1]))},
        "with both": assigned((0, [1])),
    }
    for label, fields in cases.items():
        name = "assigned-" + label.replace(" ", "-")
        yield label, creation(peer, {"name": name, **fields})


@compared
def test_settings_at_creation(peer: Peer) -> Observations:
    cases: dict[str, list[tuple[str, str | None]]] = {
        "good": [("retention.ms", "1000")],
        "unknown": [("no.such.setting", "1")],
        "not a number": [("retention.ms", "soon")],
        "too small": [("retention.ms", "-2")],
        "segment too small": [("segment.bytes", "1")],
        "policy": [("cleanup.policy", "burn")],
        "policies": [("cleanup.policy", "compact,delete")],
        "policy twice": [("cleanup.policy", "delete,delete")],
        "no policy": [("cleanup.policy", "")],
        "null": [("retention.ms", None)],
        "codec": [("compression.type", "brotli")],
        "boolean": [("preallocate", "maybe")],
        "ratio": [("min.cleanable.dirty.ratio", "1.5")],
        "twice": [("retention.ms", "1"), ("retention.ms", "2")],
        "empty name": [("", "1")],
        "node's": [("log.retention.ms", "1")],
        "insync": [("min.insync.replicas", "0")],
        "timestamp type": [("message.timestamp.type", "Sometime")],
        "lags": [("min.compaction.lag.ms", "10"), ("max.compaction.lag.ms", "5")],
        "spaces": [("retention.ms", " 1000 ")],
        "version": [("message.format.version", "2.0")],
        "gzip level": [("compression.gzip.level", "0")],
        "gzip default": [("compression.gzip.level", "-1")],
        "lz4 level": [("compression.lz4.level", "18")],
        "lz4 best": [("compression.lz4.level", "17")],
        "zstd level": [("compression.zstd.level", "-131073")],
        "zstd fast": [("compression.zstd.level", "-131072")],
    }
    for label, configs in cases.items():
        name = "set-" + label.replace(" ", "-").replace("'", "")
        yield (
            label,
            creation(
                peer, {"name": name, "configs": [{"name": k, "value": v} for k, v in configs]}
            ),
        )


@compared
def test_requests_to_create_that_contradict_themselves(peer: Peer) -> Observations:
    yield "twice", creation(peer, {"name": "twice"}, {"name": "twice"})
    yield (
        "twice and another",
        creation(peer, {"name": "twice"}, {"name": "once"}, {"name": "twice"}),
    )
    yield "nothing", creation(peer)
    yield "validate", creation(peer, {"name": "only-valid"}, validate_only=True)
    yield "validate a bad one", creation(peer, {"name": "a b"}, validate_only=True)
    yield "validate one that is there", creation(peer, {"name": "once"}, validate_only=True)
    yield (
        "not created",
        peer.call("metadata", 12, topics=[{"name": "only-valid"}], allow_auto_topic_creation=False)[
            "topics"
        ],
    )
    yield "collision", creation(peer, {"name": "with.dot"}, {"name": "with_dot"})
    yield "one good, one bad", creation(peer, {"name": "fine"}, {"name": "not fine"})


@compared
def test_deletion(peer: Peer) -> Observations:
    for version in range(1, 7):
        name = f"delete-{version}"
        peer.create_topic(name)
        topics: dict[str, Any] = (
            {"topics": [{"name": name, "topic_id": None}]}
            if version >= 6
            else {"topic_names": [name]}
        )
        first = peer.call("delete_topics", version, timeout=5000, **topics)
        yield f"first {version}", first
        peer.await_gone(name)
        yield f"second {version}", peer.call("delete_topics", version, timeout=5000, **topics)
    peer.create_topic("by-id")
    peer.create_topic("both")
    peer.create_topic("double")
    cases: dict[str, list[tuple[str | None, uuid.UUID | None]]] = {
        "unknown name": [("nowhere", None)],
        "unknown id": [(None, uuid.UUID(int=77))],
        "zero id": [(None, NO_ID)],
        "name and id": [("both", peer.topic_ids["both"])],
        "neither": [(None, None)],
        "empty name": [("", None)],
        "name twice": [("double", None), ("double", None)],
        "id twice": [(None, peer.topic_ids["double"]), (None, peer.topic_ids["double"])],
        "same by name and by id": [("double", None), (None, peer.topic_ids["double"])],
        "by id": [(None, peer.topic_ids["by-id"])],
        "nothing": [],
        "one good, one unknown": [("double", None), ("nowhere", None)],
    }
    for label, topics_given in cases.items():
        yield (
            label,
            peer.call(
                "delete_topics",
                6,
                timeout=5000,
                topics=[{"name": name, "topic_id": topic_id} for name, topic_id in topics_given],
            ),
        )
    peer.await_gone("by-id")


@compared
def test_a_topic_made_again_is_another(peer: Peer) -> Observations:
    from tests.kafka.batches import good_batch

    peer.create_topic("again")
    old = peer.topic_ids["again"]
    peer.produce("again", good_batch())
    peer.call("delete_topics", 6, timeout=5000, topics=[{"name": "again", "topic_id": None}])
    peer.await_gone("again")
    yield "produce while gone", peer.produce("again", good_batch(), version=13)
    yield "fetch by the old id", peer.fetch(old, 0, version=16)
    peer.create_topic("again")
    yield "is another", peer.topic_ids["again"] != old
    yield "end", peer.end_offset("again")
    yield "old id", peer.fetch(old, 0, version=16)
    yield "new id", peer.fetch("again", 0, version=16)
    yield (
        "metadata by the old id",
        peer.call("metadata", 12, topics=[{"topic_id": old, "name": None}])["topics"],
    )


@compared
def test_more_partitions(peer: Peer) -> Observations:
    peer.create_topic("widen", partitions=2)
    peer.create_topic("widen-other")

    def widen(name: str, count: int, assignments: Any = None, **fields: Any) -> Any:
        topic = {"name": name, "count": count, "assignments": assignments}
        return peer.call("create_partitions", 3, topics=[topic], timeout=10_000, **fields)

    one = {"broker_ids": [1]}
    yield "fewer", widen("widen", 1)
    yield "as many", widen("widen", 2)
    yield "none", widen("widen", 0)
    yield "negative", widen("widen", -1)
    yield "unknown topic", widen("nowhere", 3)
    yield "empty name", widen("", 3)
    yield "validate", widen("widen", 3, validate_only=True)
    yield "too few assignments", widen("widen", 4, [one])
    yield "too many assignments", widen("widen", 3, [one, one])
    yield "unknown broker", widen("widen", 3, [{"broker_ids": [9]}])
    yield "two replicas", widen("widen", 3, [{"broker_ids": [1, 9]}])
    yield "broker twice", widen("widen", 3, [{"broker_ids": [1, 1]}])
    yield "no brokers", widen("widen", 3, [{"broker_ids": []}])
    yield "empty assignments", widen("widen", 3, [])
    both = [{"name": "widen", "count": 5, "assignments": None}] * 2
    yield "twice", peer.call("create_partitions", 3, topics=both, timeout=5000)
    yield "nothing", peer.call("create_partitions", 3, topics=[], timeout=5000)
    yield "more", widen("widen", 3)
    yield "assigned", widen("widen", 4, [one])
    for version in (0, 1, 2):
        topic = {"name": "widen-other", "count": version + 2, "assignments": None}
        yield (
            f"version {version}",
            peer.call("create_partitions", version, topics=[topic], timeout=5000),
        )
    peer.await_topic("widen", partitions=4)
    yield "seen", peer.call("metadata", 12, topics=[{"name": "widen"}])["topics"]


@compared
def test_metadata_of_topics_in_every_version(peer: Peer) -> Observations:
    peer.create_topic("described", partitions=2)
    for version in range(13):
        fields: dict[str, Any] = {} if version < 4 else {"allow_auto_topic_creation": False}
        for label, topics in (
            ("there", [{"name": "described"}]),
            ("unknown", [{"name": "not-described"}]),
            ("twice", [{"name": "described"}, {"name": "described"}]),
            ("invalid", [{"name": "a b"}]),
            ("empty name", [{"name": ""}]),
        ):
            if version < 4 and label in {"unknown", "invalid", "empty name"}:
                continue  # these would create
            answer = peer.call("metadata", version, topics=topics, **fields)
            yield f"{label} {version}", answer
        if version >= 1:
            yield f"none {version}", peer.call("metadata", version, topics=[], **fields)
            everything = peer.call("metadata", version, topics=None, **fields)
            yield f"all {version}", "described" in {t["name"] for t in everything["topics"]}
        else:
            everything = peer.call("metadata", version, topics=[])
            yield f"all {version}", "described" in {t["name"] for t in everything["topics"]}


@compared
def test_metadata_by_id(peer: Peer) -> Observations:
    peer.create_topic("known-by-id")
    known = peer.topic_ids["known-by-id"]
    for version in (10, 11, 12, 13):
        for label, topic in (
            ("id", {"topic_id": known, "name": None}),
            ("unknown id", {"topic_id": uuid.UUID(int=5), "name": None}),
            ("zero id", {"topic_id": None, "name": None}),
            ("both", {"topic_id": known, "name": "known-by-id"}),
        ):
            given = {**topic, "name": topic["name"] or ""} if version < 10 else topic
            try:
                yield f"{label} {version}", peer.call("metadata", version, topics=[given])
            except TypeError:  # the version has no null names
                yield f"{label} {version}", "cannot be said"
    yield (
        "operations",
        peer.call(
            "metadata",
            12,
            topics=[{"name": "known-by-id"}],
            include_topic_authorized_operations=True,
        ),
    )
    yield (
        "cluster operations",
        peer.call("metadata", 10, topics=[], include_cluster_authorized_operations=True),
    )


@compared
def test_metadata_may_create(peer: Peer) -> Observations:
    first = peer.call("metadata", 12, topics=[{"name": "made"}], allow_auto_topic_creation=True)
    yield (
        "first",
        first["topics"][0]["error_code"]
        in {
            "unknown_topic_or_partition",
            "leader_not_available",
            "none",
        },
    )
    peer.await_topic("made")
    yield "later", peer.call("metadata", 12, topics=[{"name": "made"}])["topics"]
    for name in ("a b", "", "x" * 250, "__made"):
        answer = peer.call("metadata", 12, topics=[{"name": name}], allow_auto_topic_creation=True)
        yield (
            f"create {name[:5]}",
            answer["topics"][0]["error_code"]
            in {"leader_not_available", "unknown_topic_or_partition", "none"},
        )
    peer.call("metadata", 12, topics=[{"name": "unmade"}], allow_auto_topic_creation=False)
    time.sleep(0.3)
    answer = peer.call("metadata", 12, topics=[{"name": "unmade"}], allow_auto_topic_creation=False)
    yield "not created", answer["topics"]


@compared
def test_description_of_partitions_by_cursor(peer: Peer) -> Observations:
    peer.create_topic("paged", partitions=5)
    peer.create_topic("paged-too", partitions=2)
    for label, fields in {
        "all": {},
        "limit": {"response_partition_limit": 3},
        "limit zero": {"response_partition_limit": 0},
        "limit negative": {"response_partition_limit": -1},
        "cursor": {"cursor": {"topic_name": "paged", "partition_index": 3}},
        "cursor at the second": {"cursor": {"topic_name": "paged-too", "partition_index": 0}},
        "cursor behind": {"cursor": {"topic_name": "zzz", "partition_index": 0}},
        "cursor past the end": {"cursor": {"topic_name": "paged", "partition_index": 50}},
        "cursor negative": {"cursor": {"topic_name": "paged", "partition_index": -1}},
    }.items():
        given = {"response_partition_limit": 2000, "cursor": None, **fields}
        yield (
            label,
            peer.call(
                "describe_topic_partitions",
                0,
                topics=[{"name": "paged"}, {"name": "paged-too"}],
                **given,
            ),
        )
    for name in ("not-paged", "a b", ""):
        answer = peer.call(
            "describe_topic_partitions",
            0,
            topics=[{"name": name}],
            response_partition_limit=10,
            cursor=None,
        )
        yield f"unknown {name!r}", answer


@compared
def test_description_of_the_cluster(peer: Peer) -> Observations:
    for version in (0, 1, 2):
        for requested in (False, True):
            yield (
                f"{version} {requested}",
                peer.call(
                    "describe_cluster", version, include_cluster_authorized_operations=requested
                ),
            )
    for endpoint_type in (0, 1, 2, 3):
        yield f"type {endpoint_type}", peer.call("describe_cluster", 1, endpoint_type=endpoint_type)


@compared
def test_description_of_log_directories(peer: Peer) -> Observations:
    from tests.kafka.batches import good_batch

    peer.create_topic("on-disk", partitions=2)
    peer.produce("on-disk", good_batch(b"x" * 100))
    for version in (1, 2, 3, 4):
        for label, topics in (
            ("topic", [{"topic": "on-disk", "partitions": [0, 1]}]),
            ("one partition", [{"topic": "on-disk", "partitions": [0]}]),
            ("unknown", [{"topic": "nowhere", "partitions": [0]}]),
            ("unknown partition", [{"topic": "on-disk", "partitions": [7]}]),
            ("no partitions", [{"topic": "on-disk", "partitions": []}]),
            ("nothing", []),
        ):
            yield f"{label} {version}", peer.call("describe_log_dirs", version, topics=topics)


@compared
def test_more_partitions_than_one_request_may_create(peer: Peer) -> Observations:
    many = [{"name": f"many-{n}", "num_partitions": 100} for n in range(100)]
    requests: dict[str, list[dict[str, Any]]] = {
        "topics": [*many, {"name": "one-more", "num_partitions": 1}],
        "one topic": [{"name": "too-wide", "num_partitions": 10_001}],
        "defaults": [{"name": f"default-{n}", "num_partitions": -1} for n in range(10_001)],
        "with others wrong": [*many, {"name": "a b", "num_partitions": 1}],
    }
    for label, wanted in requests.items():
        topics = [{"replication_factor": 1, **topic} for topic in wanted]
        answer = peer.call("create_topics", 7, topics=topics, timeout=20_000, validate_only=True)
        yield label, Counter(topic["error_code"] for topic in answer["topics"])
        yield f"message of {label}", answer["topics"][0]["error_message"]
