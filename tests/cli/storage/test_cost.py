"""``tidelog cost`` on a real node: what it did is what the ledger has, however it is asked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tidelog import Admin, Producer
from tidelog_core.cost.prices import LIST_PRICES_FILE
from tidelog_core.metadata.records import Cluster, put
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore

from tests.support.command import called
from tests.support.http_pages import Scraped, scrape
from tests.support.local_admin import local_admin
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually

CONFIG = {
    "remote.task.interval.ms": "50",
    "log.segment.bytes": "4096",
    "cost.ledger.interval.ms": "100",
    "cost.machine.type": "i4i.xlarge",
    "cost.machine.nodes": "1",
}
REQUESTS = "tidelog_cloud_storage_requests_total"


class Spent(NamedTuple):
    """A stopped node, the PUTs that it had sent, and what its metrics said of costs."""

    data_dir: Path
    put_count: float
    put_dollars: float
    dollars_per_hour: float


@pytest.fixture(scope="module")
def spent(tmp_path_factory: pytest.TempPathFactory) -> Spent:
    data_dir = tmp_path_factory.mktemp("cost") / "data"
    with NodeProcess(data_dir, config=CONFIG, arguments=("--http-port", "0")) as node:
        asyncio.run(produce(node.address))
        address = node.http_address
        eventually(
            lambda: scrape(address).value(REQUESTS, method="put", outcome="ok") >= 8, "tiered"
        )
        last = scrape(address)

        def is_recorded() -> bool:
            nonlocal last
            last = scrape(address)
            return has_all_puts(last)

        eventually(is_recorded, "what was sent is recorded")
        put_count = last.value(REQUESTS, method="put", outcome="ok")
        per_hour = last.value("tidelog_cost_dollars_per_hour", item="machine:i4i.xlarge")
        dollars = last.value("tidelog_cost_dollars_total", item="object-put")
    return Spent(data_dir, put_count, dollars, per_hour)


async def produce(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        for topic in ("orders", "clicks"):
            await admin.create_topic(topic)
            for number in range(24):
                await producer.send(topic, b"%03d" % number + b"x" * 900)
                if number % 4 == 3:
                    await producer.flush()


def has_all_puts(found: Scraped) -> bool:
    """Whether a sample has all PUTs: three of a segment are written by then, or more come."""
    sent = found.value(REQUESTS, method="put", outcome="ok")
    dollars = found.value("tidelog_cost_dollars_total", item="object-put")
    return sent > 0 and dollars == pytest.approx(sent * 0.005 / 1000)


def cost_of(spent: Spent, *arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = called(
        "cost", "--data-dir", spent.data_dir, "--json", *arguments
    ).document
    return found


def units(document: dict[str, Any]) -> dict[str, float]:
    return {item["item"]: item["units"] for item in document["items"]}


def test_the_ledger_has_what_the_node_did(spent: Spent) -> None:
    found = cost_of(spent)
    counted = units(found)
    assert counted["object-put"] >= spent.put_count >= 8
    assert spent.put_dollars == pytest.approx(spent.put_count * 0.005 / 1000)
    assert counted["metadata-read"] > 0  # What DynamoDB would have charged.
    assert counted["metadata-write"] > 0
    assert 0 < counted["machine:i4i.xlarge"] < 1  # hours
    topics = {topic["topic"]: topic for topic in found["topics"]}
    for topic in ("orders", "clicks"):
        here = {item["item"]: item["units"] for item in topics[topic]["items"]}
        assert here["object-put"] >= 4
        assert here["object-sent"] > 0
    assert not found["is_on_aws"]


def test_the_metrics_rate_is_the_price_of_the_machine(spent: Spent) -> None:
    assert spent.dollars_per_hour == pytest.approx(0.344, rel=0.1)


def test_text_says_that_nobody_sends_a_bill(spent: Spent) -> None:
    shown = called("cost", "--data-dir", spent.data_dir).out.decode()
    assert "This cluster is not on AWS." in shown
    assert "nobody sends a bill" in shown
    assert "machine:i4i.xlarge" in shown
    assert "orders" in shown
    assert "(no topic)" in shown
    assert "This month: $" in shown
    only_topics = called("cost", "--data-dir", spent.data_dir, "--by", "topic").out.decode()
    assert "orders" in only_topics
    assert "metadata-read" not in only_topics
    only_items = called("cost", "--data-dir", spent.data_dir, "--by", "item").out.decode()
    assert "(no topic)" not in only_items


def test_day_and_month_have_the_hour(spent: Spent) -> None:
    hour = units(cost_of(spent))
    for last in ("day", "month"):
        other = units(cost_of(spent, "--last", last))
        assert other["object-put"] == hour["object-put"]
        assert other["machine:i4i.xlarge"] == hour["machine:i4i.xlarge"]


def test_other_prices_give_other_dollars(spent: Spent, tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(LIST_PRICES_FILE.read_text().replace("dollars = 0.344", "dollars = 34.4"))
    before = {item["item"]: item["dollars"] for item in cost_of(spent)["items"]}
    after = {
        item["item"]: item["dollars"] for item in cost_of(spent, "--price-file", path)["items"]
    }
    assert after["machine:i4i.xlarge"] == pytest.approx(100 * before["machine:i4i.xlarge"])
    assert after["object-put"] == before["object-put"]
    none = tmp_path / "none.toml"
    wrong = called("cost", "--data-dir", spent.data_dir, "--price-file", none, status=2)
    assert "none.toml cannot be read" in wrong.errors


def test_the_admin_api_says_the_same(spent: Spent) -> None:
    url = f"sqlite://{spent.data_dir}/metadata.db"
    with local_admin(url, f"file://{spent.data_dir}/objects") as api:
        there = called("cost", "--json", "--admin-url", api.url).document
    here = cost_of(spent)
    assert units(there).keys() == units(here).keys()
    assert units(there)["object-put"] == units(here)["object-put"]
    assert {topic["topic"]: topic["dollars"] for topic in there["topics"]} == {
        topic["topic"]: topic["dollars"] for topic in here["topics"]
    }


def test_an_empty_ledger_says_so(tmp_path: Path) -> None:
    async def found_cluster() -> None:
        store = SqliteMetadataStore(tmp_path / "metadata.db")
        await store.commit([put(Cluster(cluster_id="c"))])
        await store.close()

    asyncio.run(found_cluster())
    shown = called("cost", "--data-dir", tmp_path).out.decode()
    assert "Nothing is in the ledger for the last hour" in shown
