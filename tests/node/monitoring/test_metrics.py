"""What a scrape of a real node counts, against what its clients did."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tidelog_node.monitoring.table import METRICS, Kind

from tests.support.http_pages import Scraped, get, scrape
from tests.support.node_process import NodeProcess
from tools import promtool
from tools.ports import free_port

SECONDS_MAX = 30.0
VALUE = b"x" * 100


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("metrics")
    with NodeProcess(
        folder / "node",
        arguments=("--http-port", "0", "--registry-port", str(free_port())),
        config={
            "remote.task.interval.ms": "100",
            "log.retention.check.interval.ms": "100",
            "metrics.group.lag.interval.ms": "50",
            "client.metrics.otlp.endpoint": "http://127.0.0.1:9",
            "cost.ledger.interval.ms": "1000",
            "cost.budget.month.dollars": "1000000",
        },
    ) as running:
        yield running


def create(node: NodeProcess, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic(topic, 2, 1, config=config)])[topic].result(SECONDS_MAX)


def produce(node: NodeProcess, topic: str, count: int) -> None:
    """Produce to partition 0, one batch for each record."""
    producer = Producer({"bootstrap.servers": node.address, "batch.num.messages": 1})
    for _ in range(count):
        producer.produce(topic, VALUE, partition=0)
    assert producer.flush(SECONDS_MAX) == 0


def consume(node: NodeProcess, topic: str, count: int) -> None:
    consumer = Consumer({"bootstrap.servers": node.address, "group.id": f"of-{topic}"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert len(consumer.consume(count, SECONDS_MAX)) == count
    consumer.close()


def scrape_until(node: NodeProcess, holds: Callable[[Scraped], bool]) -> Scraped:
    deadline = time.monotonic() + SECONDS_MAX
    while not holds(scraped := scrape(node.http_address)):
        assert time.monotonic() < deadline, get(node.http_address, "/metrics").body.decode()
        time.sleep(0.05)
    return scraped


def test_records_bytes_and_requests_are_counted(node: NodeProcess) -> None:
    create(node, "counted")
    before = scrape(node.http_address)
    produce(node, "counted", 50)
    consume(node, "counted", 50)
    after = scrape(node.http_address)
    produced = after.value("tidelog_kafka_request_bytes_total", topic="counted", request="produce")
    assert after.value("tidelog_kafka_records_produced_total", topic="counted") == 50
    assert after.value("tidelog_kafka_batches_produced_total", topic="counted") == 50
    assert 50 * len(VALUE) < produced < 50 * (len(VALUE) + 100)
    consumed = after.value("tidelog_kafka_request_bytes_total", topic="counted", request="consume")
    assert consumed == produced
    assert after.value("tidelog_kafka_records_consumed_total", topic="counted") == 50
    assert after.value("tidelog_kafka_max_offset", topic="counted", partition="0") == 50
    assert after.value("tidelog_kafka_log_end_offset", topic="counted", partition="0") == 50
    for name in ("tidelog_rpc_received_bytes_total", "tidelog_rpc_sent_bytes_total"):
        moved = after.value(name, listener="PLAINTEXT") - before.value(name, listener="PLAINTEXT")
        assert moved > produced
    requests = "tidelog_kafka_handler_latency_seconds_count"
    assert after.value(requests, api="produce") - before.value(requests, api="produce") > 0
    assert after.value(requests, api="metadata") > before.value(requests, api="metadata")
    seconds = after.value("tidelog_kafka_handler_latency_seconds_sum", api="produce")
    assert 0 < seconds < SECONDS_MAX


def test_buckets_hold_every_request_once(node: NodeProcess) -> None:
    create(node, "buckets")
    produce(node, "buckets", 5)
    scraped = scrape(node.http_address)
    name = "tidelog_kafka_handler_latency_seconds"
    counts = scraped.values(f"{name}_bucket", api="produce")
    assert counts == sorted(counts)
    assert counts[-1] == scraped.value(f"{name}_count", api="produce") > 0


def test_errors_are_counted_by_api_and_name(node: NodeProcess) -> None:
    create(node, "small", **{"max.message.bytes": "50"})
    producer = Producer({"bootstrap.servers": node.address})
    producer.produce("small", VALUE)
    producer.flush(SECONDS_MAX)
    admin = AdminClient({"bootstrap.servers": node.address})
    with pytest.raises(KafkaException):
        create(node, "small")
    with pytest.raises(KafkaException):
        admin.delete_topics(["missing"])["missing"].result(SECONDS_MAX)
    scraped = scrape(node.http_address)
    errors = "tidelog_kafka_request_errors_total"
    assert scraped.value(errors, api="produce", error="MESSAGE_TOO_LARGE") == 1
    assert scraped.value(errors, api="create_topics", error="TOPIC_ALREADY_EXISTS") == 1
    assert scraped.value(errors, api="delete_topics", error="UNKNOWN_TOPIC_OR_PARTITION") == 1


def test_connections_come_and_go(node: NodeProcess) -> None:
    count = 30  # more than clients of other tests may still have
    opened, accepted = "tidelog_rpc_active_connections", "tidelog_rpc_connections_accepted_total"
    before = scrape(node.http_address)
    with ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(socket.create_connection(("127.0.0.1", node.port)))
        during = scrape_until(node, lambda now: now.value(opened) >= count)
        assert during.value(accepted) >= before.value(accepted) + count
    scrape_until(node, lambda now: now.value(opened) < count)


def test_partitions_and_the_cluster_are_counted(node: NodeProcess) -> None:
    create(node, "partitions")
    scraped = scrape_until(
        node, lambda now: now.value("tidelog_kafka_leaders") == now.value("tidelog_kafka_replicas")
    )
    assert scraped.value("tidelog_cluster_brokers") == 1
    assert scraped.value("tidelog_cluster_live_brokers") == 1
    assert scraped.value("tidelog_cluster_unavailable_partitions") == 0
    assert scraped.value("tidelog_cluster_partitions") == scraped.value("tidelog_kafka_leaders")
    assert scraped.value("tidelog_kafka_under_replicated_partitions") == 0
    assert scraped.value("tidelog_raft_leadership_changes_total") >= 2
    assert scraped.value("tidelog_lease_renewal_seconds_count") > 0
    assert scraped.value("tidelog_metadata_store_requests_total", outcome="ok") > 10
    assert scraped.value("tidelog_storage_disk_free_bytes") > 0
    assert scraped.value("tidelog_storage_disk_free_space_alert") == 0


def test_requests_for_chains_are_counted_with_those_of_the_tier(node: NodeProcess) -> None:
    create(node, "chained", **{"diskless.enable": "true"})
    produce(node, "chained", 5)
    scrape_until(
        node,
        lambda now: (
            now.value("tidelog_cloud_storage_requests_total", method="put", outcome="ok")
            >= now.value("tidelog_diskless_objects_total")
            >= 1
        ),
    )


def test_the_tier_and_its_worker_are_counted(node: NodeProcess) -> None:
    create(
        node,
        "tiered",
        **{"remote.storage.enable": "true", "segment.bytes": "1024", "local.retention.bytes": "1"},
    )
    produce(node, "tiered", 40)
    scraped = scrape_until(
        node,
        lambda now: (
            now.value("tidelog_cloud_storage_copied_segments_total") >= 3
            and now.value("tidelog_cloud_storage_evicted_bytes_total") > 0
        ),
    )
    assert scraped.value("tidelog_cloud_storage_requests_total", method="put", outcome="ok") >= 6
    assert scraped.value("tidelog_cloud_storage_uploaded_bytes_total") > 3 * 1024
    assert scraped.value("tidelog_cloud_storage_worker_up") == 1
    consume(node, "tiered", 40)
    after = scrape(node.http_address)
    assert after.value("tidelog_kafka_tier_bytes_consumed_total", topic="tiered") > 0
    assert after.value("tidelog_cloud_storage_cold_read_seconds_count") > 0
    assert after.value("tidelog_cloud_storage_downloaded_bytes_total") > 0
    assert after.value("tidelog_cloud_storage_cache_misses_total") > 0


def test_a_scrape_has_metrics_of_the_table_alone(node: NodeProcess) -> None:
    """With the types and labels that ``docs/metrics.md`` says."""
    create(node, "whole")
    produce(node, "whole", 1)
    consume(node, "whole", 1)
    lag = "tidelog_kafka_consumer_group_lag_seconds"
    wanted = (lag, "tidelog_cost_topic_dollars_per_hour", "tidelog_cost_budget_dollars")
    scraped = scrape_until(node, lambda now: all(now.values(name) for name in wanted))
    served = {name: family for name, family in scraped.families.items() if "tidelog" in name}
    for name, family in served.items():
        metric = METRICS[f"{name}_total" if family.type == "counter" else name]
        assert family.type == metric.kind
        assert family.documentation == metric.meaning
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)
    gauges = {name for name, metric in METRICS.items() if metric.kind is Kind.GAUGE}
    never = {"tidelog_faults", "tidelog_metadata_store_units_total"}
    assert gauges - served.keys() - never == set()


def test_promtool_finds_nothing_wrong(node: NodeProcess) -> None:
    found = promtool.command()
    if found is None:
        pytest.skip("promtool is not installed: python -m tools.install")
    status, said = promtool.check_metrics(found, get(node.http_address, "/metrics").body)
    assert (status, said) == (0, "")


def test_segments_that_wait_for_the_tier_are_counted(tmp_path: Path) -> None:
    """The bucket is a folder, and a file stands in its place."""
    (tmp_path / "objects").write_text("in the way")
    config = {"remote.task.interval.ms": "100"}
    with NodeProcess(
        tmp_path / "node",
        arguments=("--http-port", "0"),
        config=config,
        object_store=f"file://{tmp_path}/objects",
    ) as node:
        create(node, "waiting", **{"remote.storage.enable": "true", "segment.bytes": "1024"})
        produce(node, "waiting", 40)
        backlog = "tidelog_cloud_storage_backlog"
        scraped = scrape_until(node, lambda now: now.value(f"{backlog}_segments") >= 3)
        assert scraped.value(f"{backlog}_bytes") > 3 * 900
        assert 0 <= scraped.value(f"{backlog}_seconds") < SECONDS_MAX
        assert scraped.value("tidelog_cloud_storage_copied_segments_total") == 0
        scrape_until(node, lambda now: now.value("tidelog_cloud_storage_failing_partitions") == 1)
