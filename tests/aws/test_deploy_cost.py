"""The formula of docs/deploy.md, and the example that it gives there."""

from __future__ import annotations

import dataclasses
import math

from tests.aws.stacks import NODES, nested_stacks
from tools.aws_cost import (
    ENDPOINTS,
    MACHINE,
    PRICES,
    SECONDS,
    WORKLOADS,
    Workload,
    idle_reads_per_second,
    machine_count,
    monthly_cost,
    monthly_counts,
    table,
)
from tools.places import ROOT


def bill(load: Workload) -> dict[str, float]:
    return {line.what: line.dollars for line in monthly_cost(load)}


def test_the_documents_example_is_what_the_formula_gives() -> None:
    assert table() in (ROOT / "docs" / "deploy.md").read_text()


def test_every_price_of_the_formula_is_stated_in_the_document() -> None:
    text = (ROOT / "docs" / "deploy.md").read_text()
    items = {name for counts in monthly_counts(WORKLOADS[0]).values() for name in counts}
    prices = [PRICES.prices[name] for name in items]
    # As the document has them: for a thousand requests, a million units, one of anything else.
    stated = {f"{price.dollars:g}" for price in prices}
    stated |= {f"{value:g}" for value in (MACHINE.cpus, MACHINE.network_mb_per_s, MACHINE.disk_gb)}
    missing = [value for value in stated if f" {value} " not in text]
    assert not missing


def test_a_bill_by_hand() -> None:
    """1 MB/s for a month is 2,628 GB; 7 days of it are 604.8 GB."""
    lines = bill(Workload(produced_mb_per_s=1.0))
    assert math.isclose(lines["S3 storage"], 604.8 * 0.023)
    assert math.isclose(lines["transfer between zones"], 2628 * (2 + 2 / 3) * 0.02)
    assert math.isclose(lines["machines"], 3 * (730 * 0.172 + 1.28))
    assert math.isclose(lines["S3 requests"], 2628_000 / 512 * 3 * 0.005 / 1000)
    assert math.isclose(lines["DynamoDB, offset commits"], 10 * SECONDS * 8 * 0.625e-6)


def test_the_endpoints_of_a_new_vpc_are_paid_for() -> None:
    endpoints = [
        one["Properties"]
        for one in nested_stacks(NODES)["Network"].resources.values()
        if one["Type"] == "AWS::EC2::VPCEndpoint"
    ]
    in_zones = [one["SubnetIds"] for one in endpoints if one["VpcEndpointType"] == "Interface"]
    assert sum(map(len, in_zones)) == ENDPOINTS


def test_what_nodes_and_segments_take_of_dynamodb_by_hand() -> None:
    """6 nodes: a renewal every 3 s, 5 polls and 2 readings of leases a second. A segment: 18
    write units, 3 read units and 9 of a function, and 1.5 of every node for its log start."""
    lines = bill(Workload(produced_mb_per_s=1.0))
    segments = 2628_000 / 512
    writes = 6 / 3 * SECONDS + segments * 18
    reads = 6 * 7 * SECONDS + segments * (3 + 9 + 6 * 1.5)
    assert math.isclose(
        lines["DynamoDB, nodes and segments"], (writes * 0.625 + reads * 0.125) / 1e6
    )


def test_a_reading_of_leases_takes_more_units_the_more_nodes_there_are() -> None:
    assert [idle_reads_per_second(nodes) for nodes in (6, 24, 120)] == [7, 7, 5 + 2 * 5]


def test_machines_come_in_threes_and_grow_with_the_load() -> None:
    counts = [
        machine_count(Workload(produced_mb_per_s=rate))
        for rate in (0.001, 1.0, 10.0, 50.0, 100.0, 500.0)
    ]
    assert counts == sorted(counts)
    assert counts[0] == 3
    assert all(count % 3 == 0 for count in counts)


def test_what_a_load_does_not_need_costs_nothing() -> None:
    idle = dataclasses.replace(WORKLOADS[0], offset_commits_per_s=0.0, produced_mb_per_s=0.0)
    lines = bill(idle)
    assert lines["DynamoDB, offset commits"] == 0
    assert lines["S3 storage"] == 0
    assert lines["transfer between zones"] == 0
    assert lines["machines"] > 0


def test_produced_seconds_are_those_of_a_month_of_730_hours() -> None:
    assert SECONDS == 2_628_000
