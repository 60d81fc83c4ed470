"""``tidelog group`` over a real node."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer
from tidelog import Admin, Producer
from tidelog_cli.administration.offset_targets import Target, new_offset, parse_time
from tidelog_cli.failures import UsageError
from tidelog_cli.partition_names import parse_topic

from tests.support.command import COMMAND, called, environment
from tests.support.peer import Peer


def offsets(document: Any, field: str) -> list[int]:
    return [row[field] for row in document["partitions"]]


@pytest.fixture(scope="module")
def group(cli_node: Any) -> str:
    """A group without members that has read 6 of 10 records."""
    bootstrap = cli_node.address
    called("produce", "g-topic", bootstrap=bootstrap, given=b"x\n" * 10)
    options = ("--group", "g-readers", "--from-beginning", "-n", 6)
    called("consume", "g-topic", *options, bootstrap=bootstrap)
    return "g-readers"


def test_group_is_listed_and_described_with_its_lag(group: str, bootstrap: str) -> None:
    listed = called("group", "list", "--json", bootstrap=bootstrap).document
    assert {
        "group": group,
        "state": "Empty",
        "type": "classic",
        "protocol_type": "consumer",
    } in listed
    (found,) = called("group", "describe", group, "--json", bootstrap=bootstrap).document
    assert (found["state"], found["lag"], found["members"]) == ("Empty", 4, [])
    (row,) = found["partitions"]
    assert (row["committed_offset"], row["end_offset"], row["lag"]) == (6, 10, 4)
    assert 0 < row["lag_seconds"] < 600
    assert found["lag_seconds"] == row["lag_seconds"]
    lines = called("group", "describe", group, bootstrap=bootstrap).lines
    assert lines[0].startswith(f"group {group}, Empty, 0 members")
    topic, partition, committed, end, lag, seconds, member, host = lines[2].split()
    assert (topic, partition, committed, end, lag) == ("g-topic", "0", "6", "10", "4")
    assert (float(seconds) > 0, member, host) == (True, "-", "-")


def test_settings_of_a_group_are_altered_and_shown(bootstrap: str) -> None:
    name = "share.auto.offset.reset"

    def found(group: str) -> Any:
        return called("group", "configs", group, "--json", bootstrap=bootstrap).document[0]

    assert found("g-new")["configs"] == {}
    assert found("g-new")["in_force"][name] == "latest"
    called("group", "alter", "g-new", "--config", f"{name}=earliest", bootstrap=bootstrap)
    assert found("g-new")["configs"] == {name: "earliest"}
    assert found("g-other")["configs"] == {}
    lines = called("group", "configs", "g-new", bootstrap=bootstrap).lines
    assert lines[0] == "group g-new"
    rows = {line.split()[0]: line.split()[1:] for line in lines[2:]}
    assert rows[name] == ["earliest", "this", "group"]
    assert rows["consumer.session.timeout.ms"] == ["45000", "all", "groups"]
    called("group", "alter", "g-new", "--delete-config", name, bootstrap=bootstrap)
    assert found("g-new")["configs"] == {}


def test_settings_that_no_group_has_are_refused(bootstrap: str) -> None:
    for arguments, said, status in (
        ((), "nothing to change", 2),
        (("--config", "retention.ms=1"), "retention.ms", 2),
    ):
        outcome = called("group", "alter", "g-new", *arguments, bootstrap=bootstrap, status=status)
        assert outcome.errors.count("\n") == 1
        assert said in outcome.errors


def test_offsets_move_only_when_executed(group: str, bootstrap: str) -> None:
    def reset(*arguments: object) -> Any:
        return called(
            "group", "reset-offsets", group, "--json", *arguments, bootstrap=bootstrap
        ).document

    planned = reset("--topic", "g-topic", "--to-earliest")
    assert (planned["executed"], offsets(planned, "after"), offsets(planned, "lag")) == (
        False,
        [0],
        [10],
    )
    assert offsets(reset("--all-topics", "--to-current"), "before") == [6]
    for arguments, after in (
        (("--to-latest",), 10),
        (("--shift-by", -3), 7),
        (("--shift-by", -300), 0),
        (("--to-timestamp", "2100-01-01"), 10),
        (("--to-timestamp", "0"), 0),
        (("--to-offset", 6), 6),
    ):
        done = reset("--topic", "g-topic:0", "--execute", *arguments)
        assert (done["executed"], offsets(done, "after")) == (True, [after])
        (found,) = called("group", "describe", group, "--json", bootstrap=bootstrap).document
        assert offsets(found, "committed_offset") == [after]


def test_group_with_members_is_shown_with_them_and_cannot_be_moved(bootstrap: str) -> None:
    called("produce", "g-live", bootstrap=bootstrap, given=b"x\n")
    process = subprocess.Popen(
        [COMMAND, "consume", "g-live", "--group", "g-alive", "--from-beginning"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(bootstrap),
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"x\n"
        (found,) = called("group", "describe", "g-alive", "--json", bootstrap=bootstrap).document
        outcome = called(
            "group", "reset-offsets", "g-alive", "--all-topics", "--to-earliest", "--execute",
            bootstrap=bootstrap, status=1,
        )  # fmt: skip
        process.terminate()
        process.wait(30)
    assert found["state"] == "Stable"
    assert [member["client_id"] for member in found["members"]] == ["tidelog-cli"]
    assert found["partitions"][0]["host"]
    assert "has members" in outcome.errors
    assert process.returncode == 0


def test_group_of_the_new_protocol_is_shown_with_its_type_and_epochs(bootstrap: str) -> None:
    called("produce", "g-new", bootstrap=bootstrap, given=b"x\n")
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g-consumers",
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "client.id": "new-reader",
        }
    )
    try:
        consumer.subscribe(["g-new"])
        assert consumer.consume(1, 30)
        consumer.commit(asynchronous=False)
        listed = called("group", "list", "--json", bootstrap=bootstrap).document
        (found,) = called(
            "group", "describe", "g-consumers", "--json", bootstrap=bootstrap
        ).document
    finally:
        consumer.close()
    assert [g["type"] for g in listed if g["group"] == "g-consumers"] == ["consumer"]
    assert (found["type"], found["state"], found["assignor"]) == ("consumer", "Stable", "uniform")
    assert found["epoch"] == found["assignment_epoch"] == found["members"][0]["epoch"]
    (row,) = found["partitions"]
    assert (row["client_id"], row["lag"], row["lag_seconds"]) == ("new-reader", 0, 0.0)


def test_committed_topic_that_was_deleted_does_not_hide_the_others(bootstrap: str) -> None:
    called("produce", "g-gone", bootstrap=bootstrap, given=b"x\n")
    called("produce", "g-kept", bootstrap=bootstrap, given=b"x\n")
    for topic in ("g-gone", "g-kept"):
        called(
            "group", "reset-offsets", "g-both", "--topic", topic, "--to-earliest", "--execute",
            bootstrap=bootstrap,
        )  # fmt: skip
    called("topic", "delete", "g-gone", bootstrap=bootstrap)
    deadline = time.monotonic() + 60
    while True:
        (found,) = called("group", "describe", "g-both", "--json", bootstrap=bootstrap).document
        rows = {row["topic"]: row for row in found["partitions"]}
        # What the coordinator still remembers of the deleted topic has no end.
        if rows.get("g-gone", {"end_offset": None})["end_offset"] is None:
            break
        assert time.monotonic() < deadline
    assert (rows["g-kept"]["end_offset"], rows["g-kept"]["lag"]) == (1, 1)


def test_what_cannot_be_moved_is_named(group: str, bootstrap: str) -> None:
    for arguments, said, status in (
        (("--topic", "g-topic"), "give one of --to-earliest", 2),
        (("--topic", "g-topic", "--to-latest", "--shift-by", "1"), "give one of", 2),
        (("--to-latest",), "--all-topics", 2),
        (("--topic", "g-topic:x", "--to-latest"), "TOPIC:P", 2),
        (("--topic", "g-topic:7", "--to-latest"), "partitions 0 to 0, not 7", 1),
        (("--topic", "nowhere", "--to-latest"), "nowhere", 1),
        (("--topic", "g-topic", "--to-timestamp", "tomorrow"), "2026-01-31T12:00:00Z", 2),
    ):
        outcome = called(
            "group", "reset-offsets", group, *arguments, bootstrap=bootstrap, status=status
        )
        assert said in outcome.errors
    outcome = called("group", "describe", "nobody", bootstrap=bootstrap, status=1)
    assert "nobody" in outcome.errors


def test_new_offset_stays_within_what_there_is() -> None:
    def at(target: Target, committed: int | None = 50, found: int | None = None) -> int | None:
        return new_offset(target, committed=committed, start=10, end=100, found=found)

    assert at(Target("offset", 5)) == 10
    assert at(Target("offset", 500)) == 100
    assert at(Target("shift", 7)) == 57
    assert at(Target("shift", -70)) == 10
    assert at(Target("current"), committed=3) == 10
    assert at(Target("current"), committed=None) is None
    assert at(Target("shift", 1), committed=None) is None
    assert at(Target("time"), found=42) == 42
    assert at(Target("time"), found=None) == 100


def test_time_is_in_utc_unless_it_says_otherwise() -> None:
    assert parse_time("1000") == 1000
    assert parse_time("1970-01-01T00:00:01") == 1000
    assert parse_time("1970-01-01T01:00:01+01:00") == 1000
    for text in ("1969-12-31", "soon", "-5"):
        with pytest.raises(UsageError, match="--to-timestamp"):
            parse_time(text)


def test_topic_option_names_partitions_after_a_colon() -> None:
    assert parse_topic("a") == ("a", ())
    assert parse_topic("a:0,2") == ("a", (0, 2))
    for text in ("", ":1", "a:", "a:1,", "a:-1"):
        with pytest.raises(UsageError, match="must be TOPIC or TOPIC:P,P"):
            parse_topic(text)


@pytest.fixture(scope="module")
def sharers(cli_node: Any) -> Iterator[Peer]:
    """Two members of share group ``g-share``, which is to read 10 records of one partition."""
    called("produce", "g-shared", bootstrap=cli_node.address, given=b"x\n" * 10)
    peer = Peer("tidelog", cli_node.port)
    peer.await_coordinator("g-share")
    for member in ("one", "two"):
        share_beat(peer, member, 0)
    yield peer
    peer.close()


def share_beat(peer: Peer, member: str, epoch: int) -> None:
    """Send the heartbeat of a member of ``g-share``."""
    answer = peer.call(
        "share_group_heartbeat",
        1,
        group_id="g-share",
        member_id=member,
        member_epoch=epoch,
        subscribed_topic_names=["g-shared"],
    )
    assert answer["error_code"] == "none"


def test_share_group_is_shown_moved_and_deleted(sharers: Peer, bootstrap: str) -> None:
    listed = called("group", "list", "--json", bootstrap=bootstrap).document
    assert {
        "group": "g-share",
        "state": "Stable",
        "type": "share",
        "protocol_type": "share",
    } in listed
    for chosen, is_listed in (("share", True), ("consumer", False)):
        lines = called("group", "list", "--type", chosen, bootstrap=bootstrap).lines
        assert any(line.startswith("g-share ") for line in lines) == is_listed
    lines = called(
        "group", "list", "--type", "share", "--state", "empty", bootstrap=bootstrap
    ).lines
    assert len(lines) == 1, "only the names of the columns"
    (found,) = called("group", "describe", "g-share", "--json", bootstrap=bootstrap).document
    assert (found["type"], found["assignor"], found["epoch"]) == ("share", "simple", 2)
    (row,) = found["partitions"]
    assert (row["start_offset"], row["end_offset"], row["lag"]) == (None, 10, None)
    assert (row["member_count"], row["member_ids"]) == (2, ["one", "two"])

    def reset(*arguments: object, status: int = 0) -> Any:
        return called(
            "group", "reset-offsets", "g-share", *arguments, bootstrap=bootstrap, status=status
        )

    moving = ("--topic", "g-shared", "--to-offset", 4, "--execute")
    assert "has members" in reset(*moving, status=1).errors
    refused = called("group", "delete", "g-share", bootstrap=bootstrap, status=1)
    assert (refused.lines, "g-share" in refused.errors) == ([], True)
    for member in ("one", "two"):
        share_beat(sharers, member, -1)
    assert offsets(reset(*moving, "--json").document, "after") == [4]
    shifted = reset("--all-topics", "--shift-by", 2, "--execute", "--json").document
    assert offsets(shifted, "before") == [4]
    lines = called("group", "describe", "g-share", bootstrap=bootstrap).lines
    assert lines[0].startswith("group g-share, Empty, 0 members")
    assert lines[1].split() == ["TOPIC", "PARTITION", "START", "END", "LAG", "SECONDS", "MEMBERS"]
    topic, partition, start, end, lag, seconds, members = lines[2].split()
    assert (topic, partition, start, end, lag, members) == ("g-shared", "0", "6", "10", "4", "0")
    assert float(seconds) > 0
    forget = ("group", "delete-offsets", "g-share", "--topic")
    outcome = called(*forget, "g-shared:0", bootstrap=bootstrap, status=2)
    assert "name no partitions" in outcome.errors
    deleted = called(*forget, "g-shared", bootstrap=bootstrap)
    assert deleted.lines == ["group g-share: offsets of g-shared deleted"]
    (found,) = called("group", "describe", "g-share", "--json", bootstrap=bootstrap).document
    assert found["partitions"] == []
    assert "g-shared" in called(*forget, "g-shared", bootstrap=bootstrap, status=1).errors
    deleted = called("group", "delete", "g-share", bootstrap=bootstrap)
    assert deleted.lines == ["group g-share deleted"]
    outcome = called("group", "delete", "g-share", bootstrap=bootstrap, status=1)
    assert "g-share" in outcome.errors
    assert called("group", "delete", "g-share", "--if-exists", bootstrap=bootstrap).lines == []


def test_group_that_committed_forgets_a_topic_and_is_deleted(bootstrap: str) -> None:
    for topic in ("g-deleted", "g-forgotten"):
        called("produce", topic, bootstrap=bootstrap, given=b"x\n")
        begin = ("--topic", topic, "--to-earliest", "--execute")
        called("group", "reset-offsets", "g-over", *begin, bootstrap=bootstrap)
    forget = ("group", "delete-offsets", "g-over", "--topic", "g-forgotten:0")
    assert called(*forget, bootstrap=bootstrap).lines == [
        "group g-over: offsets of g-forgotten:0 deleted"
    ]
    (found,) = called("group", "describe", "g-over", "--json", bootstrap=bootstrap).document
    assert [row["topic"] for row in found["partitions"]] == ["g-deleted"]
    assert called("group", "delete", "g-over", bootstrap=bootstrap).lines == [
        "group g-over deleted"
    ]
    outcome = called("group", "describe", "g-over", bootstrap=bootstrap, status=1)
    assert "g-over" in outcome.errors


def test_group_behind_a_marker_alone_is_not_late(bootstrap: str) -> None:
    """The marker counts as an offset, as in Kafka, but nothing is left to read."""

    async def prepare() -> None:
        async with Producer(bootstrap, transactional_id="marking") as producer:
            async with producer.transaction():
                await producer.send("marked", b"a", timestamp_ms=1_700_000_000_000)
            async with producer.transaction():
                await producer.send("marked", b"b", timestamp_ms=1_700_000_000_000)
        async with Admin(bootstrap) as admin:
            await admin.alter_group_offsets("at-marker", {("marked", 0): 3})
            await admin.alter_group_offsets("before-record", {("marked", 0): 1})

    asyncio.run(prepare())
    (row,) = partitions_of("at-marker", bootstrap)
    assert (row["end_offset"], row["lag"], row["lag_seconds"]) == (4, 1, 0.0)
    (row,) = partitions_of("before-record", bootstrap)  # A marker comes first, then a record.
    assert row["lag"] == 3
    assert row["lag_seconds"] > 1_000_000


def partitions_of(group: str, bootstrap: str) -> list[dict[str, Any]]:
    (found,) = called("group", "describe", group, "--json", bootstrap=bootstrap).document
    partitions: list[dict[str, Any]] = found["partitions"]
    return partitions
