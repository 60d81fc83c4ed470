"""Quotas so small that no number of milliseconds says how long a client must wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.support.batches import batch_of
from tests.support.client_quotas import alter_quotas, op
from tests.support.kafka_messages import API_KEYS
from tests.support.node_process import NodeProcess
from tests.support.peer import CLOSED, Peer

WAIT_MS = 7
LEAST = 5e-324  # the smallest number above 0
USUAL = 1e9
OF_CLIENTS = (
    *("producer_byte_rate", "consumer_byte_rate"),
    *("request_percentage", "controller_mutation_rate"),
)
ADDRESS = "127.0.0.8"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that has parts of quotas, and makes nobody wait for long."""
    config = {"quota.throttle.max.ms": str(WAIT_MS), "quota.scope": "cluster"}
    with NodeProcess(tmp_path_factory.mktemp("node"), config=config) as node:
        yield node


@pytest.fixture(scope="module")
def admin(node: NodeProcess) -> Iterator[Peer]:
    with closing(Peer("admin", node.port)) as admin:
        admin.create_topic("topic")
        assert admin.produce("topic", batch_of(b"x" * 100))["error_code"] == "none"
        yield admin


def set_quotas(admin: Peer, entity: dict[str, str | None], quotas: dict[str, float]) -> None:
    changes = [op(key, value) for key, value in quotas.items()]
    answer = alter_quotas(admin, (entity, changes))
    assert [entry["error_code"] for entry in answer["entries"]] == ["none"]


@pytest.mark.parametrize("value", [LEAST, 1e-320, 1e-300])
def test_a_client_with_a_tiny_quota_is_answered_and_waits(
    node: NodeProcess, admin: Peer, value: float
) -> None:
    """And has another quota as soon as it is given one."""
    name = f"client-{value}"
    with closing(Peer(name, node.port, client_id=name.encode())) as client:
        for quota in (value, USUAL, value):
            set_quotas(admin, {"client-id": name}, dict.fromkeys(OF_CLIENTS, quota))
            wait_ms = 0 if quota == USUAL else WAIT_MS
            client.until(lambda: waited_ms(client), wait_ms.__eq__)
            assert client.produce("topic", batch_of(b"x" * 100))["error_code"] == "none"
            for _ in range(3):
                assert client.fetch("topic", 0)["throttle_time"] == wait_ms
                assert waited_ms(client) == wait_ms


def test_a_client_with_a_tiny_quota_of_partitions_makes_no_second_topic(
    node: NodeProcess, admin: Peer
) -> None:
    set_quotas(admin, {"client-id": "maker"}, {"controller_mutation_rate": LEAST})
    with closing(Peer("maker", node.port, client_id=b"maker")) as client:
        codes = [created(client, f"made-{number}") for number in range(3)]
    assert codes == ["none", "throttling_quota_exceeded", "throttling_quota_exceeded"]


def test_an_address_with_a_tiny_quota_has_its_connections_closed(
    node: NodeProcess, admin: Peer
) -> None:
    """And the listener goes on for others."""
    set_quotas(admin, {"ip": ADDRESS}, {"connection_creation_rate": LEAST})
    with closing(Peer("slow", node.port, address=ADDRESS)) as client:
        frame = client.frame(API_KEYS["api_versions"], 0, b"", is_flexible=False)
        assert client.exchange(frame) == CLOSED
    with closing(Peer("other", node.port)) as other:
        assert waited_ms(other) == 0


def waited_ms(client: Peer) -> Any:
    """Return the time to wait that an answer has."""
    return client.call("metadata", 9, topics=[])["throttle_time"]


def created(client: Peer, name: str) -> str:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
    answer = client.call("create_topics", 7, topics=[topic], timeout=10_000)
    return str(answer["topics"][0]["error_code"])
