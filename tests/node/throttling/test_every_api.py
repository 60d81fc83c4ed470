"""A client over the time that its requests may take: the answers of all APIs say so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from random import Random
from typing import Any

import pytest
from tidelog_core.message_schemas import load_request_schema, load_response_schema

from tests.support.batches import batch_of
from tests.support.client_quotas import alter_quotas, op
from tests.support.kafka_messages import SERVED_KEYS
from tests.support.message_bytes import joined, random_message
from tests.support.node_process import NodeProcess
from tests.support.peer import Peer

HOT = {"produce", "fetch"}  # with any numbers they have no answer
WAIT_MS = 7
# A thousandth of a millisecond in a second: every request takes longer.
QUOTA = {"request_percentage": 0.0001}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    config = {
        "quota.throttle.max.ms": str(WAIT_MS),
        "client.metrics.otlp.endpoint": "http://127.0.0.1:9",
    }
    with NodeProcess(tmp_path_factory.mktemp("node"), config=config) as node:
        with closing(Peer("admin", node.port)) as admin:
            admin.create_topic("topic")
            changes = [op(key, value) for key, value in QUOTA.items()]
            alter_quotas(admin, ({"client-id": "busy"}, changes))
        yield node


@pytest.fixture
def busy(node: NodeProcess) -> Iterator[Peer]:
    with closing(Peer("busy", node.port, client_id=b"busy")) as peer:
        peer.call("api_versions", 0)
        yield peer


@pytest.fixture(scope="module")
def supported(node: NodeProcess) -> dict[int, tuple[int, int]]:
    """The versions that the node serves, by API."""
    with closing(Peer("admin", node.port)) as admin:
        answer = admin.call("api_versions", 0)
    return {one["api_key"]: (one["min_version"], one["max_version"]) for one in answer["api_keys"]}


@pytest.mark.parametrize("api", sorted(SERVED_KEYS.keys() - HOT))
def test_every_answer_has_the_time_to_wait(
    api: str, busy: Peer, supported: dict[int, tuple[int, int]]
) -> None:
    lowest, highest = supported[SERVED_KEYS[api]]
    for version in range(lowest, highest + 1):
        answer: Any = busy.call_raw(api, version, message(api, version))
        assert isinstance(answer, dict), f"version {version}: {answer}"
        schema = load_response_schema(SERVED_KEYS[api], version)
        if "throttle_time" in schema.__dataclass_fields__:
            assert answer["throttle_time"] == WAIT_MS, f"version {version}: {answer}"


def message(api: str, version: int) -> bytes:
    schema = load_request_schema(SERVED_KEYS[api], version)
    return joined(random_message(schema, Random(1), texts=("x",), numbers=(1,), nulls=0))


def test_answers_of_produce_and_fetch_have_it_and_a_fetch_has_no_records(busy: Peer) -> None:
    assert busy.produce("topic", batch_of(b"x"))["error_code"] == "none"
    answer = busy.fetch("topic", 0)
    assert (answer["throttle_time"], answer["responses"]) == (WAIT_MS, [])
    partition = {"index": 0, "records": batch_of(b"x")}
    answer = busy.call(
        "produce",
        9,
        acks=-1,
        timeout=1000,
        topic_data=[{"name": "topic", "partition_data": [partition]}],
    )
    assert answer["throttle_time"] == WAIT_MS


def test_a_fetch_that_waits_spends_no_time(node: NodeProcess) -> None:
    """Half a second of waiting would be far over one percent."""
    with closing(Peer("admin", node.port)) as admin:
        alter_quotas(admin, ({"client-id": "waits"}, [op("request_percentage", 1)]))
        end = admin.end_offset("topic")
    assert end is not None
    with closing(Peer("waits", node.port, client_id=b"waits")) as peer:
        answer = peer.fetch("topic", end, max_wait=500, min_bytes=1)
        assert answer["throttle_time"] == 0


def test_other_clients_do_not_wait(node: NodeProcess, busy: Peer) -> None:
    assert busy.call("metadata", 12, topics=[])["throttle_time"] == WAIT_MS
    with closing(Peer("free", node.port, client_id=b"free")) as free:
        assert free.call("metadata", 12, topics=[])["throttle_time"] == 0
