"""What Kafka's controllers answer, and where a node keeps its replicas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.kafka.compare import compared
from tests.support.peer import Peer

Observations = Iterator[tuple[str, Any]]
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
LONGEST_NAME = "x" * 249


@compared
def test_replicas_are_moved_to_where_they_are_and_nowhere_else(peer: Peer) -> Observations:
    peer.create_topic("moved", partitions=2)
    (described,) = peer.call("describe_log_dirs", 4, topics=None)["results"]
    own = described["log_dir"]
    for version in (1, 2):
        for label, path in {
            "own": own,
            "own with a slash": f"{own}/",
            "other": "/nowhere",
            "relative": "data",
            "empty": "",
        }.items():
            topics = [
                {"name": "moved", "partitions": [0, 1, 7, -1]},
                {"name": "no-such-topic", "partitions": [0]},
                {"name": LONGEST_NAME, "partitions": [0]},
            ]
            answer = peer.call(
                "alter_replica_log_dirs", version, dirs=[{"path": path, "topics": topics}]
            )
            yield f"{label} {version}", by_partition(answer)
        dirs = [
            {"path": own, "topics": [{"name": "moved", "partitions": [0, 0, 1]}]},
            {"path": "/other", "topics": [{"name": "moved", "partitions": [1]}]},
        ]
        yield (
            f"twice {version}",
            by_partition(peer.call("alter_replica_log_dirs", version, dirs=dirs)),
        )
        yield f"none {version}", peer.call("alter_replica_log_dirs", version, dirs=[])


def by_partition(answer: Any) -> Any:
    """Return the codes by topic and partition: Kafka's order is that of a hash map."""
    return sorted(
        (topic["topic_name"], partition["partition_index"], partition["error_code"])
        for topic in answer["results"]
        for partition in topic["partitions"]
    )


@compared
def test_partitions_without_a_quorum(peer: Peer) -> Observations:
    peer.create_topic("no-quorum")
    for version in range(3):
        for label, asked in {
            "a topic": [("no-quorum", 0), ("no-quorum", 1)],
            "no such topic": [("no-such-topic", 0)],
            "another partition": [("__cluster_metadata", 1)],
            "two": [("no-quorum", 0), ("__cluster_metadata", 0)],
            "none": [],
            "the quorum": [("__cluster_metadata", 0)],
        }.items():
            topics = [
                {"topic_name": name, "partitions": [{"partition_index": index}]}
                for name, index in asked
            ]
            yield f"{label} {version}", peer.call("describe_quorum", version, topics=topics)


@compared
def test_features_that_are_not_changed(peer: Peer) -> Observations:
    updates = {
        "the same level": ("transaction.version", 2, UPGRADE),
        "a lower level": ("transaction.version", 1, UPGRADE),
        "a level too high": ("transaction.version", 9, UPGRADE),
        "a negative level": ("transaction.version", -1, UPGRADE),
        "an unknown feature": ("no.such.feature", 1, UPGRADE),
        "an unknown feature's end": ("no.such.feature", 0, SAFE_DOWNGRADE),
        "an unknown type": ("transaction.version", 2, 9),
        "a downgrade to more": ("transaction.version", 9, UNSAFE_DOWNGRADE),
        "a safe downgrade": ("transaction.version", 1, SAFE_DOWNGRADE),
        "an unsafe downgrade": ("transaction.version", 0, UNSAFE_DOWNGRADE),
    }
    for version in range(3):
        flags: dict[str, Any] = {"validate_only": True} if version else {}
        for label, (feature, level, kind) in updates.items():
            how = {"upgrade_type": kind} if version else {"allow_downgrade": kind != UPGRADE}
            update = {"feature": feature, "max_version_level": level, **how}
            answer = peer.call("update_features", version, feature_updates=[update], **flags)
            yield f"{label} {version}", answer
        yield (
            f"nothing {version}",
            peer.call("update_features", version, feature_updates=[], **flags),
        )
