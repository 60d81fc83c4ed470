"""``tidelog topic`` over a real node."""

from __future__ import annotations

from tidelog_core.errors import UnknownTopicOrPartition

from tests.support.command import called


def test_topic_is_created_altered_described_and_deleted(bootstrap: str) -> None:
    created = called(
        "topic", "create", "t1", "--partitions", 2, "--config", "retention.ms=1000000",
        "--json", bootstrap=bootstrap,
    ).document  # fmt: skip
    assert (created["partitions"], created["created"]) == (2, True)
    called(
        "topic", "alter", "t1", "--partitions", 3, "--config", "segment.ms=60000",
        "--delete-config", "retention.ms", bootstrap=bootstrap,
    )  # fmt: skip
    called("produce", "t1", "--partition", 2, bootstrap=bootstrap, given=b"a\nb\n")
    (found,) = called("topic", "describe", "t1", "--json", bootstrap=bootstrap).document
    assert found["configs"] == {"segment.ms": "60000"}
    assert [p["end_offset"] for p in found["partitions"]] == [0, 0, 2]
    assert found["partitions"][0]["leader"] == 1
    listed = called("topic", "list", "--json", bootstrap=bootstrap).document
    assert {row["topic"]: row["partitions"] for row in listed}["t1"] == 3
    called("topic", "delete", "t1", bootstrap=bootstrap)
    assert "t1" not in called("topic", "list", bootstrap=bootstrap).out.decode()
    called("topic", "delete", "t1", "--if-exists", bootstrap=bootstrap)


def test_topic_is_described_as_a_table(bootstrap: str) -> None:
    called("topic", "create", "t2", "--partitions", 2, bootstrap=bootstrap)
    lines = called("topic", "describe", "t2", bootstrap=bootstrap).lines
    assert lines[0].startswith("topic t2, id ")
    assert lines[1] == "settings: all by default"
    assert lines[2].split() == [
        "PARTITION",
        "LEADER",
        "EPOCH",
        "REPLICAS",
        "IN",
        "SYNC",
        "START",
        "END",
    ]
    assert [line.split()[0] for line in lines[3:]] == ["0", "1"]


def test_what_the_node_refuses_is_told_in_one_line(bootstrap: str) -> None:
    called("topic", "create", "t3", bootstrap=bootstrap)
    for arguments, said, status in (
        (("create", "t3"), "already exists", 1),
        (("create", "no/such"), "no/such", 1),
        (("create", "t4", "--config", "retention.seconds=1"), "'retention.seconds'", 2),
        (("create", "t4", "--config", "retention.ms=soon"), "'retention.ms'", 2),
        (("create", "t4", "--config", "retention.ms"), "NAME=VALUE", 2),
        (("alter", "t3"), "nothing to change", 2),
        (("alter", "t3", "--partitions", "1"), "already has 1 partition", 1),
        (("describe", "nowhere"), "nowhere", 1),
        (("delete", "nowhere"), "nowhere", 1),
    ):
        outcome = called("topic", *arguments, bootstrap=bootstrap, status=status)
        assert outcome.errors.count("\n") == 1
        assert said in outcome.errors
    # What to do next is in the same line.
    assert outcome.errors.endswith(f"; {UnknownTopicOrPartition.hint}\n")
    assert called("topic", "create", "t3", "--if-not-exists", bootstrap=bootstrap).status == 0
