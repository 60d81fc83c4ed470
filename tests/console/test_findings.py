from __future__ import annotations

from tidelog.administering.results import LogDir, NodeDescription
from tidelog_console.facts import ClusterFacts, NodeFacts
from tidelog_console.findings import BAD, Finding, of_cluster, of_nodes, of_store
from tidelog_console.node_pages import NodePage, sums

NODE = NodeDescription(1, "127.0.0.1", 9092, None)


def facts(
    *,
    leaderless: tuple[str, ...] = (),
    under_replicated: tuple[str, ...] = (),
    disk_error: str | None = None,
) -> ClusterFacts:
    disk = LogDir(1, "data", disk_error, 100, 40, ())
    return ClusterFacts(
        cluster_id="c",
        nodes=(NodeFacts(NODE, 1, 1, disk, "0.1.0"),),
        topic_count=1,
        partition_count=1,
        leaderless=leaderless,
        under_replicated=under_replicated,
        not_preferred_count=0,
        reassigning=(),
    )


def whats(found: list[Finding]) -> list[str]:
    return [one.what for one in found]


def test_a_cluster_that_is_well_has_no_finding() -> None:
    assert list(of_cluster(facts())) == []
    assert facts().is_well
    assert facts().nodes[0].used_share == 0.6


def test_what_is_wrong_with_partitions_and_disks_is_named() -> None:
    many = tuple(f"t-{number}" for number in range(30))
    broken = facts(leaderless=many, under_replicated=("t-1",), disk_error="disk is full")
    assert not broken.is_well
    found = list(of_cluster(broken))
    assert whats(found) == [
        "30 partitions have no leader",
        "1 partitions lack a replica in sync",
        "the disk of node 1 has a problem",
    ]
    assert found[0].detail.endswith("and 10 more")
    assert found[2].detail == "disk is full"
    assert all(one.next_step for one in found)


def test_a_node_that_does_not_answer_is_a_finding() -> None:
    (found,) = of_nodes([NodePage("127.0.0.1:9644", problem="connection refused")])
    assert (found.severity, found.what) == (BAD, "127.0.0.1:9644 does not answer")


def test_checks_faults_and_metrics_of_a_node_are_findings() -> None:
    page = NodePage(
        "127.0.0.1:9644",
        broker_id=2,
        checks={"lease": {"ok": False, "detail": "lapsed"}, "disk": {"ok": True, "detail": ""}},
        faults=[{"name": "slow disk", "detail": "2 s", "since_ms": 1}],
        metrics={"tidelog_cloud_storage_failing_partitions": 3.0, "tidelog_ready": 0.0},
    )
    found = list(of_nodes([page]))
    assert whats(found) == [
        "node 2 is not ready: lease",
        "node 2: slow disk",
        "node 2: 3 partitions wait after a failure of the object store",
    ]
    assert found[0].detail == "lapsed"


def test_damaged_items_are_findings_not_too_many() -> None:
    assert len(list(of_store([f"item {number}" for number in range(100)]))) == 20


def test_metrics_are_summed_over_their_labels() -> None:
    page = (
        '# HELP tidelog_a b\ntidelog_a{x="1 2"} 3\ntidelog_a{x="3"} 4.5\ntidelog_b NaN\nother 1\n'
    )
    found = sums(page)
    assert found["tidelog_a"] == 7.5
    assert found.keys() == {"tidelog_a", "tidelog_b"}
