"""The alert rules, by promtool: each fires for its fault, is silent without, and names real metrics."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from tidelog_node.monitoring.table import METRICS, Kind

from tools import promtool
from tools.alert_reference import RULES

ALERTS: Mapping[str, Mapping[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load(RULES.read_text())["groups"]
    for rule in group["rules"]
}
INSTANCE = '{job="tidelog", instance="a:9644"}'


class Case(NamedTuple):
    """Series, a sample a minute, with which an alert fires at a minute, and some with which not."""

    fires: Mapping[str, str]
    minute: int
    silent: Mapping[str, str]


def _one(metric: str, fires: str, minute: int, silent: str) -> Case:
    return Case({metric: fires}, minute, {metric: silent})


def _requests(metric: str, failed: str) -> Case:
    """A case for the share of requests that fail: half of them, and one of a hundred."""
    fine, bad = f'{metric}{{outcome="ok"}}', f'{metric}{{outcome="{failed}"}}'
    return Case({fine: "0+60x30", bad: "0+60x30"}, 20, {fine: "0+600x30", bad: "0+6x30"})


_T = "tidelog"
_LAG = 'tidelog_kafka_consumer_group_lag_seconds{group="g", topic="t"}'
_REFUSED = 'tidelog_kafka_request_errors_total{api="produce", error="%s"}'
_BUFFERED, _OBJECTS = (
    f"tidelog_diskless_{name}{INSTANCE}" for name in ("buffered_bytes", "objects_total")
)
_GB = 1_000_000_000
CASES = {
    "TidelogNodeDown": _one(f"up{INSTANCE}", "1 1 0x10", 6, "1 1 0 1x10"),
    "TidelogNodeNotReady": _one(f"{_T}_ready", "1 0x10", 6, "1 0 1x10"),
    "TidelogPartitionsUnavailable": _one(f"{_T}_cluster_unavailable_partitions", "0 3x9", 5, "0x9"),
    "TidelogUnderMinIsr": _one(f"{_T}_kafka_under_min_isr_partitions", "0 1x9", 5, "0x9"),
    "TidelogUnderReplicated": _one(
        f"{_T}_kafka_under_replicated_partitions", "0 4x20", 9, "0 4x3 0x20"
    ),
    "TidelogOfflineReplicas": _one(f"{_T}_kafka_offline_replicas", "1x20", 9, "0x20"),
    "TidelogUncleanElection": _one(
        f"{_T}_kafka_unclean_elections_total", "_x20 1x20", 30, "0 5x60"
    ),
    "TidelogLeaseRenewalsFail": _one(f"{_T}_lease_renewal_failures_total", "0+1x20", 9, "0x5 1x20"),
    "TidelogDiskFull": _one(f"{_T}_storage_disk_free_space_alert", "0 1x9", 5, "0 2x9"),
    "TidelogDiskFailed": _one(f"{_T}_storage_disk_free_space_alert", "0 2x9", 5, "0 1x9"),
    "TidelogDiskFillsUp": Case(
        {
            f"{_T}_storage_disk_free_bytes": f"{20 * _GB}-{_GB // 10}x120",
            f"{_T}_storage_disk_total_bytes": f"{100 * _GB}x120",
            f"{_T}_storage_disk_reserve_bytes": f"{_GB}x120",
        },
        80,
        {
            f"{_T}_storage_disk_free_bytes": f"{20 * _GB}-1000x120",
            f"{_T}_storage_disk_total_bytes": f"{100 * _GB}x120",
            f"{_T}_storage_disk_reserve_bytes": f"{_GB}x120",
        },
    ),
    "TidelogDamagedSegments": _one(f"{_T}_storage_damaged_segments_total", "0 0 1x90", 40, "0x90"),
    "TidelogSchemaJournalDamaged": _one(
        f"{_T}_schema_registry_journal_damaged_objects_total", "0 0 1x90", 40, "0x90"
    ),
    "TidelogCompactionFails": _one(
        f"{_T}_storage_compaction_failures_total", "0 0 1x40", 30, "1x40"
    ),
    "TidelogTierBacklog": _one(
        f"{_T}_cloud_storage_backlog_seconds", "0+60x60", 40, "0+60x10 0x60"
    ),
    "TidelogTierFails": _one(f"{_T}_cloud_storage_failing_partitions", "2x20", 9, "0x20"),
    "TidelogObjectStoreFails": _requests(f"{_T}_cloud_storage_requests_total", "unavailable"),
    "TidelogWrongObjectStore": _one(
        f'{_T}_faults{{fault="wrong-object-store"}}', "0 1x9", 3, "0x9"
    ),
    "TidelogMetadataStoreFails": _requests(f"{_T}_metadata_store_requests_total", "throttled"),
    "TidelogTierWorkerEnds": _one(
        f"{_T}_cloud_storage_worker_restarts_total", "0+1x20", 9, "0 1x20"
    ),
    "TidelogConsumerGroupBehind": _one(_LAG, "900x20", 9, "300x20"),
    "TidelogHangingTransactions": _one(
        f"{_T}_kafka_partitions_with_late_transactions", "1x20", 9, "0 1 0x20"
    ),
    "TidelogLogsNotFilled": _one(f"{_T}_diskless_unfilled_seconds", "0+60x20", 14, "0+60x9 0x20"),
    "TidelogGatewayObjectsUnread": _one(f"{_T}_diskless_gateway_late_reads", "1x20", 6, "0 1 0x20"),
    "TidelogProduceRefused": Case(
        {_REFUSED % "KAFKA_STORAGE_ERROR": "0+5x20"},
        9,
        {_REFUSED % "NOT_LEADER_OR_FOLLOWER": "0+5x20"},
    ),
    "TidelogRequestMemoryFull": _one(
        f"{_T}_kafka_request_memory_waiting", "3x9", 6, "3 0 3 0 3 0x9"
    ),
    "TidelogDisklessWaits": Case(
        {_BUFFERED: "0 0 5000x20", _OBJECTS: "0 9x20"},
        6,
        {_BUFFERED: "5000x20", _OBJECTS: "0+9x20"},
    ),
    "TidelogChainsEnd": _one(f"{_T}_diskless_deposed_chains_total", "0+1x20", 14, "0 1x20"),
    "TidelogBudgetPassed": _one(
        'tidelog_cost_budget_passed{period="month"}', "0x5 1x20", 20, "0x5 1x2 0x20"
    ),
}


@pytest.fixture(scope="module")
def program() -> Path:
    found = promtool.command()
    if found is None:
        pytest.skip("promtool is not installed: python -m tools.install")
    return found


def _promtool(program: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


def test_prometheus_takes_the_rules(program: Path) -> None:
    checked = _promtool(program, "check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(ALERTS)} rules found" in checked.stdout


def test_every_alert_has_a_case() -> None:
    assert CASES.keys() == ALERTS.keys()


def test_each_alert_fires_for_its_fault_and_is_silent_without(
    program: Path, tmp_path: Path
) -> None:
    cases = [
        _unit_test(alert, series, case.minute, count=count)
        for alert, case in CASES.items()
        for series, count in ((case.fires, 1), (case.silent, None))
    ]
    path = tmp_path / "tests.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": cases}))
    tested = _promtool(program, "test", "rules", path)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_a_case_that_should_fire_and_does_not_is_found(program: Path, tmp_path: Path) -> None:
    case = CASES["TidelogNodeDown"]
    broken = _unit_test("TidelogNodeDown", case.silent, case.minute, count=1)
    path = tmp_path / "tests.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "tests": [broken]}))
    assert _promtool(program, "test", "rules", path).returncode == 1


def _unit_test(
    alert: str, series: Mapping[str, str], minute: int, *, count: int | None
) -> Mapping[str, Any]:
    """Return promtool's test that the alert fires once at this minute, or not at all."""
    expected = [] if count is None else [{"labels": "{}", "value": count}]
    question = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})'
    return {
        "name": alert,
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": question, "eval_time": f"{minute}m", "exp_samples": expected}
        ],
    }


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_is_about_metrics_of_the_node(alert: str) -> None:
    names = set(re.findall(r"\btidelog_\w+", ALERTS[alert]["expr"]))
    known = {name for name, one in METRICS.items() if one.kind is not Kind.HISTOGRAM}
    assert names <= known, names - known
    assert names or alert == "TidelogNodeDown"


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_what_is_wrong_and_what_to_do(alert: str) -> None:
    annotations = ALERTS[alert]["annotations"]
    assert annotations.keys() == {"summary", "description"}
    assert "{{" not in annotations["description"]
    assert annotations["description"].endswith(".")
    assert ALERTS[alert]["labels"]["severity"] in {"critical", "warning"}
