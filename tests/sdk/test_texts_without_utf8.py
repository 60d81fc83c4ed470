"""Texts that cannot be sent, with half of a surrogate pair: refused where a program gives them."""

from __future__ import annotations

from typing import Any

import pytest
from tidelog import Admin, Consumer, Producer
from tidelog.errors import InvalidConfig, InvalidRequest, InvalidTopic
from tidelog.options import ClientOptions
from tidelog.wire.connection import Address
from tidelog.wire.requests import FIND_COORDINATOR, encode_request
from tidelog.wire.sasl import Sasl
from tidelog_core.model import TopicPartition

from tests.support.node_process import NodeProcess

HALF = "a\ud800"  # json.loads makes such texts of "\\ud800"


async def test_a_record_with_such_a_header_name_is_refused_and_its_batch_is_written(
    node: NodeProcess, topic: str
) -> None:
    async with Producer(
        node.address, linger_ms=1_000_000, delivery_timeout_ms=2_000_000
    ) as producer:
        before = await producer.send(topic, b"before", headers=[("ä", b"1")])
        for name in (HALF, "\udfff", "\udc00"):
            with pytest.raises(InvalidRequest, match=r"header name .* UTF-8"):
                await producer.send(topic, b"refused", headers=[("fine", b""), (name, b"")])
        after = await producer.send(topic, b"after", headers=[("\udcff", b"2")])
        await producer.flush()
        assert [(await one).offset for one in (before, after)] == [0, 1]
    async with Consumer(node.address, auto_offset_reset="earliest") as consumer:
        consumer.assign([(topic, 0)])
        found = await consumer.poll(timeout_ms=10_000)
    assert [one.headers for one in found] == [(("ä", b"1"),), (("\udcff", b"2"),)]


async def test_a_topic_of_such_a_name_is_refused_and_others_go_on(
    node: NodeProcess, topic: str
) -> None:
    """A request for it cannot be built, and would keep all topics from being looked up."""
    async with Producer(node.address) as producer:
        with pytest.raises(InvalidTopic, match="UTF-8"):
            await producer.send(HALF, b"v")
        with pytest.raises(InvalidTopic, match="UTF-8"):
            await producer.partitions_for(HALF)
        assert (await producer.send_and_wait(topic, b"v")).offset == 0
    async with Consumer(node.address, auto_offset_reset="earliest", group_id=topic) as consumer:
        with pytest.raises(InvalidTopic):
            consumer.subscribe([topic, HALF])
        with pytest.raises(InvalidTopic):
            consumer.assign([(topic, 0), (HALF, 0)])
        assert not consumer.assignment()
        consumer.assign([(topic, 0)])
        with pytest.raises(InvalidTopic):
            await consumer.end_offsets([TopicPartition(HALF, 0)])
        assert [one.value for one in await consumer.poll(timeout_ms=10_000)] == [b"v"]


def test_a_producer_without_a_loop_has_the_error_in_the_delivery(
    node: NodeProcess, topic: str
) -> None:
    with Producer(node.address).sync() as producer:
        refused = [
            producer.send(HALF, b"v"),
            producer.send(topic, b"v", headers=[(HALF, b"")]),
        ]
        written = producer.send(topic, b"v")
        assert isinstance(refused[0].exception(10), InvalidTopic)
        assert isinstance(refused[1].exception(10), InvalidRequest)
        assert written.result(10).offset == 0


@pytest.mark.parametrize(
    ("client", "option"),
    [
        (Producer, "client_id"),
        (Producer, "transactional_id"),
        (Consumer, "client_id"),
        (Consumer, "group_id"),
        (Consumer, "rack"),
        (Admin, "client_id"),
    ],
)
def test_options_with_such_texts_are_refused(client: Any, option: str) -> None:
    with pytest.raises(InvalidConfig, match=f"{option} cannot be encoded as UTF-8"):
        client("127.0.0.1:9", **{option: HALF})


def test_a_login_with_such_a_name_is_refused() -> None:
    for user, password in ((HALF, "p"), ("u", HALF)):
        assert any("UTF-8" in one for one in Sasl("PLAIN", user, password).problems())
    assert not ClientOptions((Address("h", 1),), client_id="ä").problems()


def test_a_request_with_such_a_text_is_refused_before_it_is_sent() -> None:
    from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest
    from tidelog_core.wire_messages import build

    message = build(FindCoordinatorRequest, key_type=0, coordinator_keys=(HALF,))
    with pytest.raises(InvalidRequest, match="find_coordinator"):
        encode_request(FIND_COORDINATOR, 6, correlation_id=1, client_id=b"c", message=message)
