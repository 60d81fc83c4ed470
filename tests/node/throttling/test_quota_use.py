"""DescribeQuotaUse: who uses which share of a quota of this node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.batches import batch_of
from tests.support.client_quotas import alter_quotas, op
from tests.support.node_process import NodeProcess
from tests.support.peer import Peer

PRODUCE = "producer_byte_rate"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("node")) as node:
        with closing(Peer("admin", node.port)) as admin:
            admin.create_topic("topic")
            for client, rate in (("small", 1e6), ("large", 1e6), ("over", 1_000), ("idle", 1)):
                alter_quotas(admin, ({"client-id": client}, [op(PRODUCE, rate)]))
        for client, size_bytes in (("small", 10_000), ("large", 400_000), ("over", 100_000)):
            with closing(Peer(client, node.port, client_id=client.encode())) as peer:
                assert peer.produce("topic", batch_of(b"x" * size_bytes))["error_code"] == "none"
        yield node


def test_those_who_use_most_of_their_quota_are_first(node: NodeProcess) -> None:
    with closing(Peer("admin", node.port)) as admin:
        answer = admin.call("describe_quota_use", 0, count=10)
    assert answer["error_code"] == "none"
    uses = answer["uses"]
    assert [one["client_id"] for one in uses] == ["over", "large", "small"]
    assert {one["key"] for one in uses} == {PRODUCE}
    assert {one["user"] for one in uses} == {""}
    over, large, _ = uses
    assert over["quota"] == over["part"] == 1_000
    assert 9_000 < over["rate"] < 11_000  # 100 KB in windows that count as ten seconds
    assert 80_000 < over["throttle_time_ms"] < 110_000
    assert large["throttle_time_ms"] == 0


@pytest.mark.parametrize(("count", "found"), [(1, 1), (2, 2), (0, 0), (-5, 0), (2**31 - 1, 3)])
def test_no_more_are_given_than_asked_for(node: NodeProcess, count: int, found: int) -> None:
    with closing(Peer("admin", node.port)) as admin:
        assert len(admin.call("describe_quota_use", 0, count=count)["uses"]) == found
