"""Admin calls for quotas, and clients that are over theirs, against a real node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from kio.schema.describe_cluster.v1.request import DescribeClusterRequest
from tidelog import Admin, NewTopic, QuotaEntity
from tidelog.errors import InvalidRequest, SeveralFailed, TopicAlreadyExists
from tidelog.wire.connection import Address
from tidelog.wire.opening import open_connection
from tidelog.wire.requests import DESCRIBE_CLUSTER
from tidelog_core.wire_messages import build

from tests.support.node_process import NodeProcess

TIMEOUT_S = 0.7  # of a request
ANN, PAIR, OTHERS = QuotaEntity("ann"), QuotaEntity("ann", "app"), QuotaEntity("")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    config = {"quota.window.num": "2", "controller.quota.window.num": "2"}
    with NodeProcess(tmp_path_factory.mktemp("quotas") / "node", config=config) as node:
        yield node.address


async def test_quotas_are_set_described_and_removed(address: str) -> None:
    async with Admin(address) as admin:
        assert await admin.describe_quotas() == {}
        quotas = {
            ANN: {"producer_byte_rate": 1e12, "request_percentage": 1000.5},
            PAIR: {"consumer_byte_rate": 1e12},
            OTHERS: {"producer_byte_rate": 2e12},
            QuotaEntity(ip=""): {"connection_creation_rate": 1e6},
        }
        await admin.alter_quotas(quotas, validate_only=True)
        assert await admin.describe_quotas() == {}
        await admin.alter_quotas(quotas)
        assert await admin.describe_quotas() == quotas
        found = await admin.describe_quotas(ANN)
        assert found == {entity: quotas[entity] for entity in (ANN, PAIR)}
        assert list(await admin.describe_quotas(QuotaEntity(ip=""))) == [QuotaEntity(ip="")]
        await admin.alter_quotas(
            {entity: dict.fromkeys(values) for entity, values in quotas.items()}
        )
        assert await admin.describe_quotas() == {}


async def test_quotas_that_cannot_be_are_refused_by_their_entity(address: str) -> None:
    async with Admin(address) as admin:
        with pytest.raises(InvalidRequest, match="producer_byte_rate must be greater than 0"):
            await admin.alter_quotas({ANN: {"producer_byte_rate": 0}})
        with pytest.raises(SeveralFailed, match="user ann, client-id app"):
            await admin.alter_quotas({PAIR: {"x": 1}, ANN: {"y": 1}})


async def test_requests_behind_a_throttled_one_have_their_time_after_the_wait(
    address: str,
) -> None:
    """The node reads them later than the time that they have: a second later, here."""
    async with Admin(address) as admin:
        await admin.alter_quotas({QuotaEntity(None, "busy"): {"request_percentage": 0.0001}})
    host, port = address.split(":")
    connection = await open_connection(
        Address(host, int(port)), client_id="busy", timeout_s=TIMEOUT_S
    )
    request = build(DescribeClusterRequest)
    began = time.monotonic()
    first = connection.request(DESCRIBE_CLUSTER, request, timeout_s=TIMEOUT_S)
    second = connection.request(DESCRIBE_CLUSTER, request, timeout_s=TIMEOUT_S)
    for answer in await asyncio.gather(first, second):
        assert answer.throttle_time.total_seconds() == 1
    assert time.monotonic() - began > 2 * TIMEOUT_S
    await connection.close()


async def test_topics_over_a_quota_are_created_later_and_the_others_once(address: str) -> None:
    quota = QuotaEntity(None, "maker")
    async with Admin(address) as admin, Admin(address, client_id="maker") as maker:
        await admin.alter_quotas({quota: {"controller_mutation_rate": 4}})
        names = ["a", "b", "c"]
        created = await maker.create_topics([NewTopic(name, 5, 1) for name in names])
        assert sorted(created) == names
        assert {one.partition_count for one in created.values()} == {5}
        with pytest.raises(TopicAlreadyExists):
            await maker.create_topics([NewTopic("a", 1, 1), NewTopic("d", 1, 1)])
        await admin.alter_quotas({quota: {"controller_mutation_rate": 1000}})
        await maker.create_partitions(dict.fromkeys(names, 7))
        await maker.delete_topics([*names, "d"])
        assert {topic.name for topic in await maker.list_topics()}.isdisjoint([*names, "d"])
