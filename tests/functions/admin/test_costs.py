"""``GET /costs``: the ledger over HTTP."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tidelog_core.config import NodeConfig
from tidelog_core.cost.counts import HOUR_MS
from tidelog_core.cost.entries import Addition, Limits, Tally
from tidelog_core.cost.ledger import add
from tidelog_core.cost.prices import list_prices

from tests.support.admin_calls import Api, new_cluster

LIMITS = Limits(list_prices(), 20)


def spend(api: Api, name: str, count: int, *, topic: str | None = None) -> None:
    """Count something in the current hour, as a node does."""
    hour = time.time_ns() // 1_000_000 // HOUR_MS
    tally = Tally()
    tally.add(name, count, topic=topic)
    addition = Addition(f"{name}-{topic}", hour, "node-1", tally)
    assert api.runner.run(add(api.cluster.store, addition, LIMITS, now_hour=hour))


def test_costs_are_shown_by_item_and_by_topic(api: Api) -> None:
    spend(api, "object-put", 2_000, topic="orders")
    spend(api, "object-get", 1_000_000, topic="clicks")
    spend(api, "machine:i4i.large", 1_800_000)
    spend(api, "machine:x99.metal", 1)
    found = api.done("GET", "/costs")
    items = {item["item"]: item for item in found["items"]}
    assert items["object-put"] == {
        "item": "object-put",
        "line": "object requests",
        "meaning": "writes to the object store",
        "unit": "request",
        "units": 2_000,
        "dollars": 0.01,
        "is_priced": True,
    }
    assert items["machine:i4i.large"]["dollars"] == pytest.approx(0.086)
    assert not items["machine:x99.metal"]["is_priced"]
    assert [topic["topic"] for topic in found["topics"]] == ["clicks", "orders"]
    assert found["topics"][0]["dollars"] == pytest.approx(0.4)
    assert found["dollars"] == pytest.approx(sum(item["dollars"] for item in found["items"]))
    assert found["unassigned_dollars"] == pytest.approx(found["dollars"] - 0.41)
    assert (found["last"], found["writer_count"], found["is_on_aws"]) == ("hour", 1, False)
    assert "not on AWS" in found["note"]
    assert found["month"]["budget_dollars"] is None
    for last in ("day", "month"):
        other = api.done("GET", "/costs", last=last)
        assert other["last"] == last
        assert {item["item"] for item in other["items"]} == items.keys()


def test_topics_beyond_the_limit_are_one(api: Api) -> None:
    for number in range(4):
        spend(api, "object-put", 1_000 + number, topic=f"t{number}")
    found = api.done("GET", "/costs", topics=2)
    assert [topic["topic"] for topic in found["topics"]] == ["(others)", "t3", "t2"]


def test_a_wrong_time_or_number_is_refused(api: Api) -> None:
    assert api("GET", "/costs", last="year").problem == (400, "INVALID_REQUEST")
    assert api("GET", "/costs", topics=0).problem == (400, "INVALID_REQUEST")


def test_a_budget_is_shown_as_soon_as_it_is_set(api: Api) -> None:
    spend(api, "object-put", 10_000_000)
    assert not api.done("GET", "/costs")["month"]["is_passed"]
    api.done(
        "PATCH",
        "/brokers/configs",
        {"alterations": [{"name": "cost.budget.month.dollars", "operation": "set", "value": "9"}]},
    )
    month = api.done("GET", "/costs")["month"]
    assert (month["budget_dollars"], month["is_passed"]) == (9.0, True)
    assert month["spent_dollars"] > 50


def test_a_price_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    config = NodeConfig(cost_price_file=str(tmp_path / "none.toml"))
    with new_cluster(tmp_path, node_config=config) as api:
        answer = api("GET", "/costs")
        assert answer.status == 500
        assert "none.toml cannot be read" in answer.body["detail"]
