"""The ledger's figures are those of ``tools.aws_cost``, for the same counts."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from pathlib import Path

import pytest
from tidelog_core.config import NodeConfig
from tidelog_core.cost.counts import HOUR_MS, LOGS, MONTH_HOURS, STANDING
from tidelog_core.cost.document import cost_document
from tidelog_core.cost.entries import Addition, Limits, Tally
from tidelog_core.cost.ledger import add, roll_up
from tidelog_core.cost.overview import read_overview
from tidelog_core.cost.prices import list_prices
from tidelog_core.cost.report import Period
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore

from tools.aws_cost import PRICES, WORKLOADS, Workload, monthly_cost, monthly_counts

LIMITS = Limits(list_prices(), 20)
MONTH_MS = 1_793_491_200_000  # the 1st of November 2026, UTC
LOADS = {
    "1 MB a second": WORKLOADS[0],
    "100 MB a second": WORKLOADS[2],
    "readers in other zones": Workload(produced_mb_per_s=20, read_elsewhere=0.5, readers=3),
    "small segments": Workload(produced_mb_per_s=5, segment_mb=1, retention_days=30),
    "offset commits": Workload(produced_mb_per_s=0.5, offset_commits_per_s=1_000),
    "nothing": Workload(produced_mb_per_s=0, offset_commits_per_s=0),
}


def counted_in_whole(load: Workload) -> Counter[str]:
    """What nodes and functions would have counted in the month; the last digit is rounded."""
    total = Counter[str]()
    for counts in monthly_counts(load).values():
        for name, count in counts.items():
            if name not in STANDING:
                total[name] += round(count)
    return total


def split(total: Counter[str], rng: random.Random, parts: int) -> list[Counter[str]]:
    """Return counts that add up to the total."""
    found = [Counter[str]() for _ in range(parts)]
    for name, count in total.items():
        cuts = sorted(rng.randint(0, count) for _ in range(parts - 1))
        for part, start, end in zip(found, [0, *cuts], [*cuts, count], strict=True):
            part[name] = end - start
    return found


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS.keys())
async def test_the_ledgers_month_costs_what_the_formula_says(
    load: Workload, tmp_path: Path
) -> None:
    """Counts of three nodes over 730 hours, each in the ledger's own items, minute or hour."""
    rng = random.Random(repr(dataclasses.astuple(load)))
    store = SqliteMetadataStore(tmp_path / "metadata.db")
    first_hour = MONTH_MS // HOUR_MS
    for number, part in enumerate(split(counted_in_whole(load), rng, 40)):
        # One part is of the first hour, so that the month begins then.
        hour = first_hour + (rng.randrange(MONTH_HOURS - 10) if number else 0)
        addition = Addition(f"t-{number}", hour, f"node-{number % 3}", Tally(part))
        assert await add(store, addition, LIMITS, now_hour=hour)
    now_ms = MONTH_MS + 719 * HOUR_MS  # In November's last hour: it has 720, a mean month 730.
    await roll_up(store, LIMITS, now_hour=now_ms // HOUR_MS)
    overview = await read_overview(store, PRICES, NodeConfig(), now_ms=now_ms)
    await store.close()
    document = cost_document(overview, PRICES, Period.MONTH, topics_max=20, is_on_aws=True)
    lines = {line.what: line.dollars for line in monthly_cost(load)}
    ledger = Counter[str]()
    for item in document["items"]:
        ledger[item["line"]] += item["dollars"]
    of_time = 719 / MONTH_HOURS  # what stands there is charged for the time that there was
    expected = {
        "machines": lines["machines"],
        "transfer between zones": lines["transfer between zones"],
        "object storage": lines["S3 storage"],
        "object requests": lines["S3 requests"],
        "metadata store": lines["DynamoDB, nodes and segments"] + lines["DynamoDB, offset commits"],
        "functions": lines["functions and events"],
        "endpoints and load balancer": lines["endpoints and load balancer"] * of_time,
        "logs": lines["logs, alarms, dashboard"] * of_time,
    }
    # A formula may count half a request, which nobody can send.
    assert ledger == pytest.approx(expected, rel=1e-6, abs=1e-5)
    assert document["dollars"] == pytest.approx(sum(expected.values()), rel=1e-6)
    # To the last digit, where the counts are equal: the same function of the same numbers.
    whole = counted_in_whole(load)
    for item in document["items"]:
        if item["item"] not in STANDING:
            assert item["dollars"] == PRICES.dollars_of(item["item"], whole[item["item"]])


def test_a_month_of_what_stands_there_is_what_the_formula_says() -> None:
    standing = PRICES.standing(MONTH_HOURS * HOUR_MS)
    lines = {line.what: line.dollars for line in monthly_cost(WORKLOADS[0])}
    assert PRICES.dollars_of(LOGS, standing[LOGS]) == lines["logs, alarms, dashboard"]
    del standing[LOGS]
    assert PRICES.dollars(standing) == lines["endpoints and load balancer"]
