"""The bill of a diskless-only cluster: what the documents say, and some of it by hand."""

from __future__ import annotations

import math
import re

import pytest

from tests.aws.stacks import DISKLESS, FARGATE, nested_stacks
from tools import hosting_cost
from tools.aws_cost import SECONDS, Workload
from tools.hosting_cost import (
    DAYS,
    DISK_GB_MIN,
    FORMS,
    M6I_LARGE,
    TASK,
    WORKLOADS,
    Form,
    host_count,
    monthly,
    puts_per_s,
    table,
    total,
)
from tools.places import ROOT

SMALL = Workload(produced_mb_per_s=1.0)


def bill(load: Workload, form: Form) -> dict[str, float]:
    return {line.what: line.dollars for line in monthly(load, form)}


def test_the_documents_have_what_the_formula_gives() -> None:
    deploy = (ROOT / "docs" / "deploy.md").read_text()
    assert table() in deploy
    assert hosting_cost.lines_table() in deploy
    assert table(DAYS, WORKLOADS[-1:]) in (ROOT / "docs" / "capacity.md").read_text()


def test_the_prices_of_nodes_are_in_the_document() -> None:
    deploy = (ROOT / "docs" / "deploy.md").read_text()
    for price in (
        M6I_LARGE.hour,
        hosting_cost.GP3_GB_MONTH,
        hosting_cost.VCPU_HOUR,
        hosting_cost.MEMORY_GB_HOUR,
        hosting_cost.EPHEMERAL_GB_HOUR,
    ):
        assert f"| {price:g} |" in deploy or f"| {price:f} |" in deploy, price


def test_the_smallest_form_by_hand() -> None:
    """2 tasks of 1 vCPU, 2 GB and 50 GB; 8 objects a second, and a twentieth of them twice."""
    lines = bill(SMALL, Form(host=TASK, interval_ms=250))
    task = 730 * (0.04048 + 2 * 0.004445) + 30 * 730 * 0.000111
    assert math.isclose(lines["nodes"], 2 * task)
    objects, segments = 8 * 1.05 * SECONDS, 60 * 6 * 730
    assert math.isclose(lines["S3 requests"], (objects + 3 * segments) * 0.005 / 1000)
    assert math.isclose(lines["transfer between zones"], 2628 * (2 / 3 + 2 * 2 / 3) * 0.02)


def test_the_leases_of_nodes_are_renewed_every_second(monkeypatch: pytest.MonkeyPatch) -> None:
    form, line = Form(host=TASK), "DynamoDB, nodes and segments"
    all_of_it = bill(SMALL, form)[line]
    monkeypatch.setattr(hosting_cost, "LEASE_WRITES_PER_SECOND", 0.0)
    of_leases = all_of_it - bill(SMALL, form)[line]
    assert math.isclose(of_leases, 2 * SECONDS * 0.625 / 1e6)


def test_nodes_follow_the_load_down_to_the_smallest_number() -> None:
    for host in (M6I_LARGE, TASK):
        counts = [host_count(load, host) for load in WORKLOADS]
        assert counts == sorted(counts)
        assert counts[0] == host.count_min
    assert host_count(Workload(produced_mb_per_s=0.0), TASK) == 2


def test_a_longer_interval_costs_fewer_objects_until_they_are_full() -> None:
    fast, slow = Form(host=M6I_LARGE), Form(host=M6I_LARGE, interval_ms=250)
    assert puts_per_s(SMALL, fast) == 30
    assert puts_per_s(SMALL, slow) == 12
    assert total(monthly(SMALL, slow)) < total(monthly(SMALL, fast))


def test_what_crosses_zones_is_what_the_forms_differ_in() -> None:
    load = WORKLOADS[2]
    crossing = [bill(load, form)["transfer between zones"] for form in FORMS]
    assert crossing == sorted(crossing, reverse=True)
    assert crossing[-1] < crossing[0] / 100


@pytest.mark.parametrize(
    ("parameters", "host"), [(DISKLESS, M6I_LARGE), (FARGATE, TASK)], ids=["EC2", "Fargate"]
)
def test_the_endpoints_and_the_disk_are_the_templates(
    parameters: dict[str, str], host: hosting_cost.Host
) -> None:
    stacks = nested_stacks(parameters)
    endpoints = [
        one["Properties"]
        for one in stacks["Network"].resources.values()
        if one["Type"] == "AWS::EC2::VPCEndpoint"
    ]
    in_zones = [one["SubnetIds"] for one in endpoints if one["VpcEndpointType"] == "Interface"]
    assert sum(map(len, in_zones)) == host.endpoints
    told = str(stacks)
    for name in ("DISKLESS_WAL_MAX_AGE_MS", "LOG_LOCAL_RETENTION_MS"):
        assert re.search(rf"{name}(=|', 'Value': ')600000\b", told), name
    disks = (f"'SizeInGiB': {DISK_GB_MIN}", f"'VolumeSize': {DISK_GB_MIN}")
    assert any(disk in told for disk in disks)
