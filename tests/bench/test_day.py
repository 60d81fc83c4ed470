"""The simulated day: its arithmetic, and what docs/capacity.md says of it."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from tidelog_core.replication.leases.election_coordinators import STEP_IN_DELAY_MS
from tidelog_core.replication.leases.lease_times import LeaseTimes

from bench.day import bill, contention, diskless, limits, report, rivals, table_load
from bench.day.cluster import build
from bench.day.flows import Placement, lead
from bench.day.prices import MACHINES
from bench.day.scenario import DAY_S, Scenario
from bench.day.simulation import PER_TRANSACTION, SEGMENT_GB, diurnal, simulate
from tools.places import ROOT

SMALL = Scenario(
    machines_per_zone=2,
    processes_per_machine=2,
    topics=4,
    partitions_per_topic=6,
    produced_gb_per_s=0.05,
    cold_read_gb_per_s=0.01,
)
LATENCIES = {"latency_s": 0.02, "read_latency_s": 0.005, "seed": 3}


def test_the_document_has_the_operations_that_are_measured() -> None:
    assert report.operations_table() in (ROOT / "docs" / "capacity.md").read_text()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_document_has_the_tables_that_the_simulation_gives() -> None:
    text = (ROOT / "docs" / "capacity.md").read_text()
    day = simulate(Scenario())
    tables = [
        report.across_table(day),
        report.table_table(day),
        report.keys_table(day),
        report.requests_table(day),
        report.bill_table(day),
        report.diskless_table(day),
        report.rivals_table(day),
        report.processes_table(day.scenario),
        report.machines_table(day.scenario),
        report.contention_table(day.scenario),
        *map(report.limits_table, report.both_limits(day.scenario)),
    ]
    missing = [table for table in tables if table not in text]
    assert not missing, "run python -m bench.day"


# -- bytes --


@pytest.mark.parametrize("lost", [None, 0, 1, 2])
def test_every_byte_is_received_three_times_and_read_by_every_group(lost: int | None) -> None:
    cluster = build(SMALL)
    alive = cluster.zone_of != (-1 if lost is None else lost)
    leader = lead(cluster, alive, np.ones_like(cluster.replicas, bool))
    flows = Placement(SMALL, cluster, leader, alive).flows(cluster.share)
    copies = 3 if lost is None else 2
    assert math.isclose(flows.received.sum(), copies)
    assert math.isclose(flows.sent.sum(), copies - 1 + SMALL.readers)
    assert not flows.received[~alive].any()
    assert not flows.sent[~alive].any()


def test_followers_and_two_thirds_of_producers_are_in_another_zone_and_consumers_are_not() -> None:
    cluster = build(SMALL)
    alive = np.ones(cluster.broker_count, bool)
    flows = Placement(SMALL, cluster, cluster.replicas[:, 0], alive).flows(cluster.share)
    assert math.isclose(flows.across["followers"], 2)
    assert math.isclose(flows.across["producers"], 2 / 3)
    assert flows.across["consumers"] == 0


def test_consumers_that_do_not_say_where_they_are_read_across_zones() -> None:
    blind = dataclasses.replace(SMALL, consumers_fetch_closest=False)
    cluster = build(blind)
    alive = np.ones(cluster.broker_count, bool)
    flows = Placement(blind, cluster, cluster.replicas[:, 0], alive).flows(cluster.share)
    assert 1 < flows.across["consumers"] < blind.readers


def test_the_load_of_a_day_has_the_mean_and_the_peak_that_are_wanted() -> None:
    loads = [diurnal(SMALL, second) for second in range(0, DAY_S, 60)]
    assert math.isclose(sum(loads) / len(loads), 1)
    assert math.isclose(max(loads), SMALL.peak_factor)


def test_a_day_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    first, again = (simulate(SMALL, step_s=600.0) for _ in range(2))
    other = simulate(dataclasses.replace(SMALL, seed=8), step_s=600.0)
    assert first.hours == again.hours
    assert first.hours != other.hours


def test_what_is_produced_in_a_day_is_tiered_and_stored_until_it_expires() -> None:
    day = simulate(SMALL, step_s=200.0)
    produced = sum(hour.produced_gb for hour in day.hours)
    copied = sum(hour.copied for hour in day.hours) * SEGMENT_GB
    deleted = sum(hour.deleted for hour in day.hours) * SEGMENT_GB
    assert math.isclose(produced, SMALL.produced_gb_per_s * DAY_S, rel_tol=0.05)
    # What is in active segments at one end and not at the other.
    assert abs(produced - copied) < SMALL.partitions * SEGMENT_GB
    stored = day.hours[-1].stored_gb
    assert math.isclose(stored, SMALL.stored_gb + copied - deleted, rel_tol=1e-9)


def test_a_lost_zone_comes_back_and_everything_is_in_sync_again() -> None:
    day = simulate(SMALL, step_s=120.0)
    told = [event.what for event in day.events]
    assert sum(what == "every replica is in sync" for what in told) == 2
    assert any(what.startswith("a zone is gone") and " 0 have none" in what for what in told)


# -- limits --


def test_a_breaking_point_is_where_the_pressure_comes_to_one() -> None:
    found = limits.breaking_point(lambda factor: factor / 3)
    assert found is not None
    assert math.isclose(found, 3, rel_tol=1e-4)
    assert limits.breaking_point(lambda _: 0.5) is None


def test_limits_come_in_the_order_in_which_they_break_and_pressures_never_fall() -> None:
    peak = limits.Peak(SMALL)
    points = limits.breaking_points(peak.pressures)
    factors = [math.inf if factor is None else factor for _, factor in points]
    assert factors == sorted(factors)
    low, high = peak.pressures(1.0), peak.pressures(2.0)
    assert all(high[name] >= low[name] for name in low)
    for name, factor in points:
        if factor is not None and factor > limits.FACTOR_MIN:
            assert peak.pressures(factor * 1.01)[name] >= 1 > peak.pressures(factor / 1.01)[name]


def test_readings_of_leases_grow_with_the_square_of_the_nodes_up_to_a_hundred() -> None:
    """60 nodes read 3 units twice a second each; the measured reading is that of 120 leases."""
    assert table_load.lease_list_units(120) == 5
    assert Scenario(processes_per_machine=1).brokers == 60
    load = table_load.idle_load(Scenario(processes_per_machine=1), 60)
    assert load.key_reads["broker-lease"] == 60 * 2 * 3


def test_a_normal_hour_of_a_thousand_nodes_leaves_every_key_room() -> None:
    day = Scenario()
    thousand = limits.grown_pressures(day, 1000 / day.brokers)
    keys = {name: share for name, share in thousand.items() if "key" in name}
    assert {"key broker-lease, reads", "key #cluster, reads of the version"} <= keys.keys()
    assert {name: share for name, share in keys.items() if share > 0.9} == {}


@pytest.mark.parametrize("brokers", [120, 1000])
def test_a_lost_zone_is_led_again_within_15_seconds(brokers: int) -> None:
    """From the last renewal to when all that the zone led has leaders who know of it."""
    led = 33 * brokers // 3
    commits = math.ceil(led / PER_TRANSACTION)
    found = contention.lost_zone(commits, others_per_s=brokers / 200, **LATENCIES)
    assert found.given_up == 0
    assert found.transactions < 3 * found.written  # 27 times as many where each successor wrote
    noticed_s = LeaseTimes().lease_ms / 1000 + contention.NOTICED_WITHIN_S
    assert noticed_s + found.slowest_s + 1 / table_load.polls_per_s(brokers) < 15


@pytest.mark.parametrize("brokers", [120, 1000])
@pytest.mark.parametrize(("idle", "writing"), [(1, 1), (2, 1), (0, 2), (0, 3)])
def test_coordinators_that_step_in_make_no_crowd(brokers: int, idle: int, writing: int) -> None:
    """Nor would they if none saw the others get on, which one poll is enough for."""
    commits = math.ceil(33 * brokers // 3 / PER_TRANSACTION)
    alone, found = (
        contention.lost_zone(commits, idle=i, writing=w, others_per_s=brokers / 200, **LATENCIES)
        for i, w in ((0, 1), (idle, writing))
    )
    assert found.given_up == 0
    assert found.transactions < 7 * found.written
    assert found.slowest_s < 2 * writing * alone.slowest_s
    assert 1 / table_load.polls_per_s(brokers) + LATENCIES["latency_s"] < STEP_IN_DELAY_MS / 1000


# -- commits that meet --


def test_commits_that_meet_nobody_are_written_at_once() -> None:
    found = contention.simulate([[1.0], [2.0], [3.0]], **LATENCIES)
    assert (found.written, found.given_up, found.transactions) == (3, 0, 3)
    assert math.isclose(found.slowest_s, LATENCIES["latency_s"])


def test_of_commits_that_meet_each_is_written_once_and_the_others_send_again() -> None:
    found = contention.burst([2] * 20, **LATENCIES)
    assert (found.written, found.given_up) == (40, 0)
    assert found.transactions > 40
    assert found.last_at_s >= 40 * LATENCIES["latency_s"] * contention.HELD


def test_of_hundreds_that_meet_none_is_given_up() -> None:
    found = contention.burst([1] * 400, **LATENCIES)
    assert (found.written, found.given_up) == (400, 0)


def test_more_writers_than_turns_within_their_attempts_are_given_up() -> None:
    slow = {**LATENCIES, "latency_s": 0.2}
    found = contention.burst([1] * 400, **slow)
    assert found.given_up > 0
    assert found.written + found.given_up == 400


# -- dollars --


def test_the_bill_of_a_day_by_hand() -> None:
    day = simulate(SMALL, step_s=600.0)
    lines = {line.what: line.dollars for line in bill.of_day(day)}
    across = sum(sum(hour.across_gb.values()) for hour in day.hours)
    assert math.isclose(lines["transfer between zones"], across * 0.02)
    stored = sum(hour.stored_gb for hour in day.hours) / 730
    assert math.isclose(lines["S3 storage"], stored * 0.023)
    commits = SMALL.commits_per_s * DAY_S
    assert math.isclose(lines["DynamoDB, offset commits"], commits * 8 * 0.625e-6, rel_tol=1e-6)


def test_diskless_topics_pay_nothing_for_followers_and_for_every_object() -> None:
    day = simulate(SMALL, step_s=600.0)
    replicated, now, slower, replicas, gateways = diskless.bills(day).values()
    assert [line.what for line in now] == [line.what for line in replicated]
    dollars = [
        {line.what: line.dollars for line in lines} for lines in (now, slower, replicas, gateways)
    ]
    produced = sum(hour.produced_gb for hour in day.hours)
    cold = sum(hour.across_gb["cold reads"] for hour in day.hours)
    transfer = [one["transfer between zones"] for one in dollars]
    of_readers, of_producers = SMALL.readers * 2 / 3, 2 / 3
    assert math.isclose(transfer[0], (produced * (of_readers + of_producers) + cold) * 0.02)
    assert transfer[1] == transfer[0]
    assert transfer[0] > transfer[2] > transfer[3]
    # Twelve nodes, each ten objects a second at most, of which 5 % are sent twice.
    assert math.isclose(diskless.puts_per_s(SMALL, diskless.FORMS[0]), 12 * 10 * 1.05)
    assert math.isclose(diskless.puts_per_s(SMALL, diskless.FORMS[1]), 12 * 4 * 1.05)
    # Every second instead of every three.
    assert math.isclose(diskless.more_renewals(SMALL), 12 * 2 / 3 * DAY_S)
    puts = diskless.puts_per_s(SMALL, diskless.FORMS[0]) * DAY_S * 5e-6
    assert dollars[0]["S3 requests"] > puts
    assert dollars[0]["S3 requests"] > 2 * dollars[1]["S3 requests"]
    gets = 12 * 10 * 4 * DAY_S * 0.4e-6
    assert math.isclose(dollars[2]["S3 requests"] - dollars[0]["S3 requests"], gets)


def test_partitions_of_few_records_are_sealed_every_hour() -> None:
    """Of 24 partitions the hottest fill a segment sooner by themselves."""
    slow = dataclasses.replace(SMALL, produced_gb_per_s=0.01)
    full = build(slow).share * slow.produced_gb_per_s * DAY_S / SEGMENT_GB
    assert full.max() > 24 > full.min()
    early = diskless.early_segments(slow)
    assert math.isclose(early, sum(24 - count for count in full if count < 24))


def test_kafka_without_a_tier_pays_for_three_copies_and_direct_to_s3_for_no_crossing() -> None:
    load = Scenario()
    kafka = {line.what: line.dollars for line in rivals.kafka(load)}
    direct = {line.what: line.dollars for line in rivals.direct_to_s3(load)}
    assert math.isclose(kafka["transfer between zones"], 86_400 * (2 + 2 / 3) * 0.02)
    assert kafka["storage"] > 3 * 604_800 * 0.08 / 30.5
    assert direct["transfer between zones"] == 0


def test_machines_cost_and_carry_what_their_size_says() -> None:
    for smaller, larger in itertools.pairwise(MACHINES):
        assert math.isclose(larger.hour, 2 * smaller.hour)
        assert larger.network_gb_per_s > 1.9 * smaller.network_gb_per_s
