"""The brokers that transactions are tested against."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.node_process import NodeProcess
from tools import kafka_broker
from tools.ports import free_port

# Members of consumer groups soon learn of rebalances, and dead members expire soon.
QUICK_CONSUMER_GROUPS = {
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.session.timeout.ms": "3000",
}

# A producer soon retries lost requests.
QUICK: dict[str, Any] = {
    "retry_backoff_ms": 10,
    "retry_backoff_max_ms": 50,
    "reconnect_backoff_ms": 5,
    "reconnect_backoff_max_ms": 20,
}

KAFKA_CONFIG = {
    **QUICK_CONSUMER_GROUPS,
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "offsets.topic.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "transaction.max.timeout.ms": "120000",
}

TIDELOG_CONFIG = {
    **KAFKA_CONFIG,
    "transaction.state.log.num.partitions": "4",
}

BROKERS = ("tidelog", "kafka", "kafka-before-kip-890")
# Tests of the protocol run against all of them, tests of the client against one. In the default
# suite ``tests/kafka/test_sdk.py`` has the SDK's transactions at Kafka.
on_every_broker = pytest.mark.parametrize(
    "transactional_broker",
    [BROKERS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in BROKERS[1:])],
    indirect=True,
    scope="session",
)


@dataclass(frozen=True)
class ProxiedBroker:
    """A broker that says it is found where a ``FlakyProxy`` is to listen, in front of it."""

    port: int
    proxy_port: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.proxy_port}"


@dataclass(frozen=True)
class TransactionalBroker:
    """A broker, and the same once more behind a proxy."""

    port: int
    proxied: ProxiedBroker

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@contextmanager
def kafka(folder: Path) -> Iterator[TransactionalBroker]:
    """Run Apache Kafka. Raises ``ToolAbsent``."""
    proxied = ProxiedBroker(free_port(), free_port())
    second = (proxied.port, proxied.proxy_port)
    with kafka_broker.serve(folder, KAFKA_CONFIG, second_listener=second) as port:
        yield TransactionalBroker(port, proxied)


@contextmanager
def tidelog(folder: Path) -> Iterator[TransactionalBroker]:
    """Run two nodes that have nothing to do with each other: one of them is behind the proxy."""
    proxy_port = free_port()
    behind = NodeProcess(
        folder / "proxied",
        config=TIDELOG_CONFIG,
        arguments=("--advertised-port", str(proxy_port)),
    )
    with NodeProcess(folder / "node", config=TIDELOG_CONFIG) as node, behind:
        yield TransactionalBroker(node.port, ProxiedBroker(behind.port, proxy_port))


@contextmanager
def without_self_adding(broker: TransactionalBroker) -> Iterator[None]:
    """Have Kafka be as before KIP-890: producers add partitions, epochs stay."""
    set_transaction_version(broker, "downgrade", 1)
    try:
        yield
    finally:
        set_transaction_version(broker, "upgrade", 2)


def set_transaction_version(broker: TransactionalBroker, action: str, level: int) -> None:
    kafka_broker.run_tool(
        "org.apache.kafka.tools.FeatureCommand",
        "--bootstrap-server",
        broker.address,
        action,
        "--feature",
        f"transaction.version={level}",
    )
