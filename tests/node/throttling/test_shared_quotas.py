"""Quotas of a cluster (``quota.scope``): two nodes, one client id. ``tests/simulation`` has more."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest
from tidelog_core.quotas.quota_keys import QuotaKey
from tidelog_node.throttling.quota_shares import REPORTED_MAX, Report
from tidelog_node.throttling.share_exchange import (
    QUOTA_SHARES_KEY,
    encode_reports,
    parse_reports,
)
from tidelog_node.wire.primitives import MalformedRequest

from tests.support.batches import batch_of
from tests.support.client_quotas import alter_quotas, op
from tests.support.node_process import NodeProcess
from tests.support.peer import CLOSED, Peer

QUOTA = 100_000
BATCH = batch_of(b"x" * 5_000)
CONFIG = {"quota.scope": "cluster", "quota.window.num": "2", "default.replication.factor": "1"}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NodeProcess]]:
    """Two nodes, and a topic with a partition on each."""
    root = tmp_path_factory.mktemp("shared")
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(
                NodeProcess(
                    root / f"node-{broker_id}",
                    broker_id=broker_id,
                    metadata_store=f"sqlite:{root / 'metadata.db'}",
                    object_store=f"file:{root / 'objects'}",
                    config=CONFIG,
                )
            )
            for broker_id in (1, 2)
        ]
        with closing(Peer("admin", nodes[0].port)) as admin:
            admin.call(
                "create_topics",
                7,
                topics=[
                    {
                        "name": "topic",
                        "num_partitions": -1,
                        "replication_factor": -1,
                        "assignments": [
                            {"partition_index": 0, "broker_ids": [1]},
                            {"partition_index": 1, "broker_ids": [2]},
                        ],
                    }
                ],
                timeout=10_000,
            )
            limit = op("producer_byte_rate", QUOTA)
            alter_quotas(admin, ({"client-id": "shared"}, [limit]))
        yield nodes


def produced_bytes(node: NodeProcess, partition: int, *, seconds: float, last: float) -> float:
    """Produce as fast as the node lets; return the bytes a second of the last seconds."""
    sent: list[float] = []
    began = time.monotonic()
    with closing(Peer("client", node.port, client_id=b"shared")) as peer:
        peer.timeout = 30
        while time.monotonic() - began < seconds:
            answer = peer.produce("topic", BATCH, partition=partition)
            if answer["error_code"] == "none":
                sent.append(time.monotonic())
    return sum(len(BATCH) for at in sent if at - began >= seconds - last) / last


@pytest.mark.slow  # It wants a machine that is not busy; tests/simulation checks the parts.
def test_a_client_of_one_node_gets_what_others_do_not_use(nodes: list[NodeProcess]) -> None:
    """The equal part would be half of it. For a short time it may be more, as with any quota."""
    rate = produced_bytes(nodes[0], 0, seconds=5, last=3)
    print(f"{rate / QUOTA:.2f} of the quota")
    assert 0.7 * QUOTA < rate < 1.7 * QUOTA


@pytest.mark.slow  # tests/simulation checks the parts
def test_clients_of_two_nodes_together_get_no_more_than_the_quota(
    nodes: list[NodeProcess],
) -> None:
    with ThreadPoolExecutor(2) as pool:
        rates = list(
            pool.map(lambda one: produced_bytes(nodes[one], one, seconds=9, last=5), (0, 1))
        )
    print([f"{rate / QUOTA:.2f} of the quota" for rate in rates])
    assert sum(rates) < 1.3 * QUOTA
    assert min(rates) > 0.25 * QUOTA


def test_a_client_that_sends_reports_is_closed(nodes: list[NodeProcess]) -> None:
    report = Report((QuotaKey.PRODUCER_BYTE_RATE, ("ann", "")), 1.0, 1.0)
    with closing(Peer("client", nodes[0].port)) as peer:
        assert peer.exchange(encode_reports([report])) == CLOSED
        answer = peer.call("api_versions", 0)
        assert QUOTA_SHARES_KEY not in {one["api_key"] for one in answer["api_keys"]}


def parsed(body: bytes) -> object:
    return parse_reports(memoryview(body), 0, 0).reports


def test_reports_are_read_as_they_were_written() -> None:
    reports = [
        Report((QuotaKey.PRODUCER_BYTE_RATE, ("ann «ü»", "")), 1.5, 7.0),
        Report((QuotaKey.CONSUMER_BYTE_RATE, ("", "a")), 0.0, 1e12),
    ]
    encoded = encode_reports(reports)
    assert struct.unpack_from(">i", encoded) == (len(encoded) - 4,)
    assert parsed(encoded[14:]) == reports


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"5",
        b"[5]",
        b"[" * 100_000,
        b'[["no_quota", "a", "", 1, 1]]',
        b'[["producer_byte_rate", "a", "", 1, 0]]',
        b'[["producer_byte_rate", "a", "", -1, 1]]',
        b'[["producer_byte_rate", "a", "", NaN, 1]]',
        b'[["producer_byte_rate", "a", "", 1, Infinity]]',
        b'[["producer_byte_rate", "a", "", "1", 1]]',
        b'[["producer_byte_rate", "a", "", 1, 1' + b"0" * 400 + b"]]",
        json.dumps([["producer_byte_rate", "a", "", 1, 1]] * (REPORTED_MAX + 1)).encode(),
    ],
)
def test_other_reports_are_refused(body: bytes) -> None:
    with pytest.raises(MalformedRequest, match="reports of usage"):
        parsed(body)
