"""Commands for nodes, partitions and settings, over two nodes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from tidelog import Admin
from tidelog.errors import ElectionNotNeeded, NoReassignmentInProgress
from tidelog_cli.administration.cluster_status import mixed_versions
from tidelog_core.config import (
    ClientMetricsConfig,
    GroupConfig,
    ListenerConfig,
    NodeConfig,
    TopicConfig,
    settings_of,
)
from tidelog_core.software_version import tidelog_version

from tests.support.command import called
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually


@pytest.fixture
def two(cli_cluster: Any) -> str:
    """The address of a cluster of two nodes."""
    address: str = cli_cluster[0].address
    return address


def create(topic: str, bootstrap: str, *, partitions: int = 4) -> None:
    counts = ("--partitions", partitions, "--replication-factor", 2)
    called("topic", "create", topic, *counts, bootstrap=bootstrap)
    eventually(
        lambda: all(len(p["isr"]) == 2 for p in described(topic, bootstrap)), "all are in sync"
    )


def described(topic: str, bootstrap: str) -> list[dict[str, Any]]:
    (found,) = called("topic", "describe", topic, "--json", bootstrap=bootstrap).document
    partitions: list[dict[str, Any]] = found["partitions"]
    return partitions


def lines_in(path: Path, count: int) -> Path:
    path.write_text("".join(f"{n}\n" for n in range(count)))
    return path


def test_a_drained_node_leads_nothing_and_leads_again(two: str) -> None:
    create("drained", two)
    assert {p["leader"] for p in described("drained", two)} == {1, 2}
    # Other tests' topics may have no other replica, and stay: then the exit status is 1.
    moved = called("node", "drain", 1, "--json", bootstrap=two, status=None).document
    assert [name for name in moved["moved"] if name.startswith("drained-")] != []
    assert [name for name in moved["kept"] if name.startswith("drained-")] == []
    assert {p["leader"] for p in described("drained", two)} == {2}
    assert {p["replicas"][-1] for p in described("drained", two)} == {1}
    nodes = {row["node"]: row for row in called("node", "list", "--json", bootstrap=two).document}
    assert nodes[1]["leaders"] == len([n for n in moved["kept"] if not n.startswith("__")])
    assert nodes[1]["replicas"] >= 4
    assert nodes[1]["free_bytes"] <= nodes[1]["total_bytes"]
    called("topic", "reassign", "drained:0,1", "--replicas", "1,2", bootstrap=two)
    elected = called("topic", "elect-leaders", "drained", "--json", bootstrap=two).document
    assert {row["partition"]: row["result"] for row in elected} == {0: "elected", 1: "elected"}
    assert [p["leader"] for p in described("drained", two)] == [1, 1, 2, 2]
    again = called("topic", "elect-leaders", "drained", bootstrap=two)
    assert "no election is needed" in again.errors


def test_node_that_is_not_there_is_named(two: str) -> None:
    for command in (("node", "drain", 9), ("config", "describe", "node", 9)):
        outcome = called(*command, bootstrap=two, status=1)
        assert outcome.errors == "tidelog: there is no live node 9; live nodes: 1, 2\n"


def test_partition_without_another_replica_stays(two: str) -> None:
    called("topic", "create", "alone", "--replication-factor", 1, bootstrap=two)
    (partition,) = described("alone", two)
    leader = partition["leader"]
    outcome = called("node", "drain", leader, bootstrap=two, status=1)
    assert "tidelog: alone-0 stays: no other replica is in sync\n" in outcome.errors
    called("topic", "delete", "alone", bootstrap=two)


def test_partition_moves_to_other_nodes(two: str) -> None:
    create("moved", two, partitions=2)
    called("topic", "reassign", "moved:1", "--replicas", 2, bootstrap=two)
    eventually(lambda: described("moved", two)[1]["replicas"] == [2], "it has moved")
    assert len(described("moved", two)[0]["replicas"]) == 2
    assert called("topic", "reassign", "--status", "--json", bootstrap=two).document == []
    outcome = called("topic", "reassign", "moved:1", "--cancel", bootstrap=two, status=1)
    assert "No partition reassignment is in progress" in outcome.out.decode()
    outcome = called("topic", "reassign", "moved:1", "--replicas", "1,7", bootstrap=two, status=1)
    assert "7" in outcome.out.decode()
    outcome = called("topic", "reassign", "moved:8", "--replicas", 1, bootstrap=two, status=1)
    assert "partitions 0 to 1, not 8" in outcome.errors


def test_admin_tells_the_error_of_each_partition(two: str) -> None:
    create("told", two, partitions=1)

    async def ask() -> None:
        async with Admin(two) as admin:
            cancelled = await admin.alter_reassignments({("told", 0): None})
            assert isinstance(cancelled["told", 0], NoReassignmentInProgress)  # type: ignore[index]
            elected = await admin.elect_leaders([("told", 0)])
            assert isinstance(elected["told", 0], ElectionNotNeeded)  # type: ignore[index]
            assert await admin.list_reassignments() == {}

    asyncio.run(ask())


def test_oldest_records_are_deleted(two: str, tmp_path: Path) -> None:
    create("shortened", two, partitions=1)
    called("produce", "shortened", lines_in(tmp_path / "lines", 10), bootstrap=two)
    asked = ("topic", "delete-records", "shortened:0", "--json")
    (row,) = called(*asked, "--before", 4, "--dry-run", bootstrap=two).document
    assert (row["start_before"], row["start_offset"], row["deleted_offsets"]) == (0, 4, 4)
    assert described("shortened", two)[0]["start_offset"] == 0
    called(*asked, "--before", 4, bootstrap=two)
    assert described("shortened", two)[0]["start_offset"] == 4
    outcome = called(*asked, "--before", 11, bootstrap=two, status=1)
    assert "shortened-0 has offsets 4 to 10, not 11" in outcome.errors
    called(*asked, "--before-time", 0, bootstrap=two)
    assert described("shortened", two)[0]["start_offset"] == 4
    (row,) = called(*asked, "--all", bootstrap=two).document
    assert (row["start_offset"], row["end_offset"]) == (10, 10)
    assert "give one of" in called(*asked, bootstrap=two, status=2).errors


def test_size_counts_each_replica(two: str, tmp_path: Path) -> None:
    create("sized", two, partitions=1)
    called("produce", "sized", lines_in(tmp_path / "lines", 1000), bootstrap=two)

    def size() -> dict[str, Any]:
        (row,) = called("topic", "size", "sized", "--json", bootstrap=two).document
        found: dict[str, Any] = row
        return found

    assert size()["offsets"] == 1000
    eventually(lambda: size()["bytes"] == 2 * size()["leader_bytes"] > 1000, "both have it")
    outcome = called("topic", "size", "sied", bootstrap=two, status=1)
    assert "did you mean 'sized'?" in outcome.errors


def test_status_is_on_one_screen(two: str) -> None:
    create("seen", two)
    found = called("status", "--check", "--json", bootstrap=two).document
    assert found["is_well"]
    assert found["leaderless"] == found["under_replicated"] == []
    assert [node["node"] for node in found["nodes"]] == [1, 2]
    assert found["partitions"] >= 4
    assert found["tier_backlog_offsets"] >= 0
    assert [node["version"] for node in found["nodes"]] == [tidelog_version()] * 2
    assert found["mixed_versions"] == {}
    text = called("status", bootstrap=two).out.decode()
    assert text.startswith(f"cluster {found['cluster_id']}: all is well\n2 nodes, ")
    assert len(text.splitlines()) < 24


def a_node_of_version(version: str, folder: Path, broker_id: int) -> NodeProcess:
    """Return a node of a cluster in the folder that takes itself for that version."""
    metadata = folder / version / f"tidelog-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: tidelog\nVersion: {version}\n")
    path = os.pathsep.join([str(folder / version), os.environ.get("PYTHONPATH", "")])
    return NodeProcess(
        folder / f"node-{broker_id}",
        broker_id=broker_id,
        metadata_store=f"sqlite://{folder}/metadata.db",
        object_store=f"file://{folder}/objects",
        environment={"PYTHONPATH": path},
    )


@pytest.mark.slow
def test_nodes_of_several_versions_are_told_apart(tmp_path: Path) -> None:
    old, new = a_node_of_version("7.0.1", tmp_path, 1), a_node_of_version("7.1.0", tmp_path, 2)
    with old, new:

        def listed() -> list[dict[str, Any]]:
            rows: list[dict[str, Any]] = called(
                "node", "list", "--json", bootstrap=old.address
            ).document
            return rows

        eventually(lambda: len(listed()) == 2, "both are there")
        assert [node["version"] for node in listed()] == ["7.0.1", "7.1.0"]
        outcome = called("status", "--check", bootstrap=new.address)
        assert outcome.errors == (
            "tidelog: the nodes have several versions of Tidelog: 7.0.1 on 1; 7.1.0 on 2;"
            " finish the upgrade\n"
        )
        found = called("status", "--json", bootstrap=new.address).document
        assert found["mixed_versions"] == {"7.0.1": [1], "7.1.0": [2]}


def test_versions_are_mixed_if_one_is_unknown() -> None:
    nodes = [{"node": 1, "version": "1.0"}, {"node": 2, "version": None}]
    assert mixed_versions(nodes) == {"1.0": [1], "unknown": [2]}
    assert mixed_versions([{"node": 1, "version": None}]) == {}


def test_every_setting_is_listed_with_its_meaning() -> None:
    listed = called("config", "list", "--json").document
    declared = {
        (of, name)
        for of, cls in (
            ("topic", TopicConfig),
            ("group", GroupConfig),
            ("client-metrics", ClientMetricsConfig),
            ("node", NodeConfig),
            ("listener", ListenerConfig),
        )
        for name in settings_of(cls)
    }
    assert {(row["of"], row["name"]) for row in listed} == declared
    assert all(row["doc"] for row in listed)
    rows = called("config", "list", "retention.ms", "--of", "topic").lines
    assert [row.split()[1] for row in rows[1:]] == [
        "delete.retention.ms",
        "local.retention.ms",
        "retention.ms",
    ]
    assert (
        "did you mean 'retention.ms'?" in called("config", "list", "retnetion.ms", status=2).errors
    )


def test_client_metrics_are_subscribed_to(two: str) -> None:
    owner = ("client-metrics", "java")
    match = "match=client_software_name=apache-kafka-java"
    called("config", "set", *owner, "metrics=*", "interval.ms=5000", match, bootstrap=two)
    rows = called("config", "describe", *owner, "--json", bootstrap=two).document
    assert {row["name"]: row["value"] for row in rows} == {
        "interval.ms": "5000",
        "match": "client_software_name=apache-kafka-java",
        "metrics": "*",
    }
    wrong = called("config", "set", *owner, "intervall=1", bootstrap=two, status=2)
    assert "subscriptions to client metrics have no setting 'intervall'" in wrong.errors
    refused = called("config", "set", *owner, "match=nobody=x", bootstrap=two, status=2)
    assert "Illegal client matching pattern" in refused.errors
    names = ("metrics", "interval.ms", "match")
    deleted = [word for name in names for word in ("--delete", name)]
    called("config", "set", *owner, *deleted, bootstrap=two)
    assert called("config", "describe", *owner, "--json", bootstrap=two).document == []


def test_settings_are_set_and_shown_as_nodes_have_them(two: str) -> None:
    create("set", two, partitions=1)
    called("config", "set", "topic", "set", "retention.ms=1000000", bootstrap=two)
    rows = called("config", "describe", "topic", "set", "--json", bootstrap=two).document
    row = next(row for row in rows if row["name"] == "retention.ms")
    assert (row["value"], row["source"]) == ("1000000", "dynamic_topic")
    assert row["default"] == "604800000"
    text = called("config", "describe", "topic", "set", "segment.ms", bootstrap=two).out.decode()
    assert "\nsegment.ms: " in text  # its meaning
    called("config", "set", "nodes", "log.retention.ms=604800001", bootstrap=two)
    shown = called("config", "describe", "node", 2, "log.retention.ms", "--json", bootstrap=two)
    (row,) = shown.document
    assert (row["value"], row["source"]) == ("604800001", "dynamic_default_broker")
    called("config", "set", "nodes", "--delete", "log.retention.ms", bootstrap=two)
    assert called("config", "describe", "nodes", "--json", bootstrap=two).document == []


@pytest.mark.parametrize(
    ("arguments", "said", "status"),
    [
        (("set", "topic", "set", "retnetion.ms=1"), "did you mean 'retention.ms'?", 2),
        (("set", "topic", "set", "retention.ms=soon"), "'retention.ms'", 2),
        (("set", "topic", "set"), "nothing to change", 2),
        (("set", "disk", "a=b"), "topic, node, nodes, group", 2),
        (("set", "node", "one", "a=b"), "'one' is not a node's id", 2),
        (("describe", "topic"), "which topic?", 2),
        (("describe", "topic", "nowhere"), "there is no topic 'nowhere'", 1),
        (("set", "node", "1", "log.dirs=/tmp"), "no setting 'log.dirs'", 2),
        (("set", "nodes", "log.cleaner.threads=2"), "only when it starts", 2),
    ],
)
def test_wrong_settings_are_named(
    two: str, arguments: tuple[str, ...], said: str, status: int
) -> None:
    outcome = called("config", *arguments, bootstrap=two, status=status)
    assert outcome.errors.count("\n") == 1
    assert said in outcome.errors
