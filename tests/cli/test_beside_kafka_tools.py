"""The same tasks by the command and by Kafka's own scripts: the same answers, both ways."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import called, tidelog
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually
from tools import kafka_broker

PACKAGE = "org.apache.kafka.tools"
pytestmark = pytest.mark.slow  # a JVM for each script


@pytest.fixture(scope="module")
def two(cli_cluster: tuple[NodeProcess, ...]) -> str:
    """The address of a cluster of two nodes."""
    if kafka_broker.class_path() is None:
        pytest.skip("Kafka's tools are not installed")
    return cli_cluster[0].address


def script(name: str, bootstrap: str, *arguments: str) -> str:
    name = name if "." in name and name.startswith("kafka.") else f"{PACKAGE}.{name}"
    return kafka_broker.run_tool(name, "--bootstrap-server", bootstrap, *arguments)


def described(topic: str, bootstrap: str) -> dict[str, Any]:
    (found,) = called("topic", "describe", topic, "--json", bootstrap=bootstrap).document
    document: dict[str, Any] = found
    return document


def test_topic_is_made_by_one_and_described_by_the_other(two: str) -> None:
    settings = ("--config", "retention.ms=123456789")
    called(
        *("topic", "create", "by-command", "--partitions", 3, "--replication-factor", 2),
        *settings, bootstrap=two,
    )  # fmt: skip
    text = script("TopicCommand", two, "--describe", "--topic", "by-command")
    assert re.search(r"PartitionCount: 3\s+ReplicationFactor: 2", text)
    assert "retention.ms=123456789" in text
    ours = described("by-command", two)["partitions"]
    theirs = re.findall(
        r"Partition: (\d+)\s+Leader: (\d+)\s+Replicas: ([\d,]+)\s+Isr: ([\d,]+)", text
    )
    assert [
        (str(p["partition"]), str(p["leader"]), ",".join(map(str, p["replicas"]))) for p in ours
    ] == [(partition, leader, replicas) for partition, leader, replicas, _ in theirs]
    script(
        *("TopicCommand", two, "--create", "--topic", "by-script", "--partitions", "2"),
        *("--config", "segment.ms=7777"),
    )
    assert described("by-script", two)["configs"] == {"segment.ms": "7777"}
    listed = {row["topic"] for row in called("topic", "list", "--json", bootstrap=two).document}
    assert listed == {
        name for name in script("TopicCommand", two, "--list").split() if not name.startswith("__")
    }


def test_records_and_offsets_are_the_same(two: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("a\t1\nb\t2\nc\t3\n")
    called("topic", "create", "read-by-both", bootstrap=two)
    called("produce", "read-by-both", lines, "--key-separator", r"\t", bootstrap=two)
    options = ("--topic", "read-by-both", "--from-beginning", "--max-messages", "3")
    properties = ("print.key=true", "print.offset=true", "print.timestamp=true")
    theirs = script(
        *("consumer.ConsoleConsumer", two, *options),
        *(part for one in properties for part in ("--property", one)),
    )
    ours = called(
        *("consume", "read-by-both", "--from-beginning", "-n", 3),
        *("--format", r"CreateTime:%T\tOffset:%o\t%k\t%s\n"),
        bootstrap=two,
    ).out.decode()
    assert [line for line in theirs.splitlines() if "CreateTime" in line] == ours.splitlines()
    offsets = script("GetOffsetShell", two, "--topic", "read-by-both").split()
    assert offsets == [
        f"read-by-both:{p['partition']}:{p['end_offset']}"
        for p in described("read-by-both", two)["partitions"]
    ]


def test_groups_lag_the_same(two: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_text("x\n" * 10)
    called("produce", "lagged", lines, bootstrap=two)
    called("consume", "lagged", "--group", "both", "--from-beginning", "-n", 4, bootstrap=two)
    text = script(
        "consumer.group.ConsumerGroupCommand", two, "--describe", "--group", "both", "--offsets"
    )
    (found,) = called("group", "describe", "both", "--json", bootstrap=two).document
    (row,) = found["partitions"]
    theirs = re.search(r"both\s+lagged\s+0\s+(\d+)\s+(\d+)\s+(\d+)", text)
    assert theirs is not None, text
    assert tuple(map(int, theirs.groups())) == (
        row["committed_offset"],
        row["end_offset"],
        row["lag"],
    )
    script(
        *("consumer.group.ConsumerGroupCommand", two, "--reset-offsets", "--group", "both"),
        *("--topic", "lagged", "--to-earliest", "--execute"),
    )
    (found,) = called("group", "describe", "both", "--json", bootstrap=two).document
    assert found["lag"] == 10


def test_settings_are_the_same(two: str) -> None:
    called("topic", "create", "set-by-both", bootstrap=two)
    called("config", "set", "topic", "set-by-both", "retention.ms=4242", bootstrap=two)
    entity = ("--entity-type", "topics", "--entity-name", "set-by-both")
    text = script("kafka.admin.ConfigCommand", two, "--describe", *entity, "--all")
    theirs = dict(re.findall(r"^\s+([\w.]+)=(\S*) sensitive=false", text, re.MULTILINE))
    rows = called("config", "describe", "topic", "set-by-both", "--all", "--json", bootstrap=two)
    ours = {row["name"]: row["value"] for row in rows.document}
    assert theirs == ours
    script("kafka.admin.ConfigCommand", two, "--alter", *entity, "--delete-config", "retention.ms")
    assert described("set-by-both", two)["configs"] == {}


def test_records_are_deleted_sizes_told_and_partitions_moved_the_same(
    two: str, tmp_path: Path
) -> None:
    for topic in ("cut-by-command", "cut-by-script"):
        called("topic", "create", topic, "--replication-factor", 2, bootstrap=two)
        lines = tmp_path / "lines"
        lines.write_text("x\n" * 10)
        called("produce", topic, lines, bootstrap=two)
    called("topic", "delete-records", "cut-by-command:0", "--before", 6, bootstrap=two)
    request = tmp_path / "delete.json"
    request.write_text(
        json.dumps({"partitions": [{"topic": "cut-by-script", "partition": 0, "offset": 6}]})
    )
    script("DeleteRecordsCommand", two, "--offset-json-file", str(request))
    starts = [
        described(topic, two)["partitions"][0]["start_offset"]
        for topic in ("cut-by-command", "cut-by-script")
    ]
    assert starts == [6, 6]
    text = script("LogDirsCommand", two, "--describe", "--topic-list", "cut-by-command")
    sizes = map(int, re.findall(r'"partition":"cut-by-command-0","size":(\d+)', text))
    (row,) = called("topic", "size", "cut-by-command", "--json", bootstrap=two).document
    assert sum(sizes) == row["bytes"]
    plan = tmp_path / "move.json"
    moved = {"topic": "cut-by-script", "partition": 0, "replicas": [2, 1]}
    plan.write_text(json.dumps({"version": 1, "partitions": [moved]}))
    script(
        "reassign.ReassignPartitionsCommand",
        two,
        "--reassignment-json-file",
        str(plan),
        "--execute",
    )
    called("topic", "reassign", "cut-by-command", "--replicas", "2,1", bootstrap=two)
    for topic in ("cut-by-command", "cut-by-script"):
        eventually(
            lambda t=topic: described(t, two)["partitions"][0]["replicas"] == [2, 1], "moved"
        )  # type: ignore[misc]
    script(
        *("LeaderElectionCommand", two, "--election-type", "PREFERRED", "--topic"),
        *("cut-by-script", "--partition", "0"),
    )
    called("topic", "elect-leaders", "cut-by-command", bootstrap=two)
    for topic in ("cut-by-command", "cut-by-script"):
        assert described(topic, two)["partitions"][0]["leader"] == 2


def test_partition_whose_node_is_down_is_not_called_unknown(
    cli_cluster: tuple[NodeProcess, ...], two: str
) -> None:
    """Last: it stops a node."""
    second = cli_cluster[1]
    called("topic", "create", "alone", bootstrap=two)
    called("topic", "reassign", "alone", "--replicas", 2, bootstrap=two)
    eventually(lambda: described("alone", two)["partitions"][0]["leader"] == 2, "it has moved")
    second.stop()
    try:
        eventually(
            lambda: "alone-0" in called("status", "--json", bootstrap=two).document["leaderless"]
        )
        text = script("TopicCommand", two, "--describe", "--topic", "alone")
        assert re.search(r"Partition: 0\s+Leader: none", text)
        assert called("status", "--check", bootstrap=two, status=1).lines[0].endswith(": degraded")
        outcome = tidelog("consume", "alone", "--from-beginning", bootstrap=two, status=1)
        assert "tidelog: alone-0 has no leader: waiting for one\n" in outcome.errors
        assert (
            "alone-0: it has no leader; `tidelog topic describe` names the nodes" in outcome.errors
        )
        assert "unknown" not in outcome.errors
        outcome = called("group", "reset-offsets", "g", "--topic", "alone", "--to-latest",
                         bootstrap=two, status=1)  # fmt: skip
        assert "no leader" in outcome.errors
    finally:
        second.start()
