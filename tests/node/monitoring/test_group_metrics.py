"""Lag of groups in records and seconds, and transactions, of real clients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.http_pages import Scraped, get, scrape
from tests.support.node_process import NodeProcess

SECONDS_MAX = 60.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("groups")
    config = {"metrics.group.lag.interval.ms": "50"}
    with NodeProcess(folder / "node", arguments=("--http-port", "0"), config=config) as running:
        yield running


def create(node: NodeProcess, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(SECONDS_MAX)


def produce(node: NodeProcess, topic: str, ages_s: list[int]) -> None:
    """Produce a record to partition 0 for each age."""
    producer = Producer({"bootstrap.servers": node.address, "batch.num.messages": 1})
    now_ms = int(time.time() * 1000)
    for age_s in ages_s:
        producer.produce(topic, b"value", partition=0, timestamp=now_ms - age_s * 1000)
    assert producer.flush(SECONDS_MAX) == 0


def commit(node: NodeProcess, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": node.address, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def scrape_until(node: NodeProcess, holds: Callable[[Scraped], bool]) -> Scraped:
    deadline = time.monotonic() + SECONDS_MAX
    while not holds(scraped := scrape(node.http_address)):
        assert time.monotonic() < deadline, get(node.http_address, "/metrics").body.decode()
        time.sleep(0.02)
    return scraped


def lag(scraped: Scraped, group: str, kind: str) -> list[float]:
    return scraped.values(f"tidelog_kafka_consumer_group_{kind}", group=group)


def test_lag_is_in_records_and_in_seconds_by_their_times(node: NodeProcess) -> None:
    create(node, "aged")
    produce(node, "aged", [7_200, 3_600, 60])
    commit(node, "late", "aged", 1)
    found = scrape_until(node, lambda now: lag(now, "late", "lag_seconds") != [])
    assert lag(found, "late", "lag") == lag(found, "late", "lag_max") == [2]
    assert 3_600 <= lag(found, "late", "lag_seconds")[0] < 3_600 + SECONDS_MAX
    commit(node, "late", "aged", 3)
    found = scrape_until(node, lambda now: lag(now, "late", "lag") == [0])
    assert lag(found, "late", "lag_seconds") == [0]


def test_a_group_behind_a_marker_alone_is_not_behind(node: NodeProcess) -> None:
    create(node, "marked")
    settings = {"bootstrap.servers": node.address, "transactional.id": "t"}
    producer = Producer(settings)
    producer.init_transactions(SECONDS_MAX)
    producer.begin_transaction()
    producer.produce("marked", b"value", partition=0, timestamp=1)
    producer.flush(SECONDS_MAX)
    during = scrape(node.http_address)
    assert during.value("tidelog_kafka_open_transactions") == 1
    producer.commit_transaction(SECONDS_MAX)
    commit(node, "reader", "marked", 1)
    found = scrape_until(node, lambda now: lag(now, "reader", "lag_seconds") != [])
    assert (lag(found, "reader", "lag"), lag(found, "reader", "lag_seconds")) == ([1], [0])
    assert found.value("tidelog_kafka_open_transactions") == 0
    # A record behind the marker is late again.
    produce(node, "marked", [1_000])
    found = scrape_until(node, lambda now: lag(now, "reader", "lag") == [2])
    assert lag(found, "reader", "lag_seconds")[0] >= 1_000


def test_groups_members_and_transactions_are_counted(node: NodeProcess) -> None:
    create(node, "joined")
    before = scrape(node.http_address).value("tidelog_kafka_consumer_groups", type="classic")
    consumer = Consumer({"bootstrap.servers": node.address, "group.id": "members"})
    consumer.subscribe(["joined"])
    deadline = time.monotonic() + SECONDS_MAX
    while not consumer.assignment():
        consumer.poll(0.05)
        assert time.monotonic() < deadline
    during = scrape(node.http_address)
    assert during.value("tidelog_kafka_consumer_groups", type="classic") == before + 1
    assert during.value("tidelog_kafka_consumer_group_consumers", type="classic") >= 1
    assert during.value("tidelog_kafka_consumer_groups_left_out") == 0
    assert during.value("tidelog_kafka_partitions_with_late_transactions") == 0
    consumer.close()
