"""A session of librdkafka's consumer as a member of a group."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, KafkaException, Message

from tests.chaos.history import Poll, Positioned
from tests.chaos.librdkafka.common import POLL_MS, common_of_consumers
from tests.chaos.librdkafka.link import Link, Order
from tests.chaos.scene import Scene

SESSION_SECONDS = 6.0, 25.0


def consume(scene: Scene, link: Link, order: Order) -> None:
    """Read all topics with the group that the settings name."""
    chance = scene.chance(order.session)
    end_s = scene.clock_s() + chance.uniform(*SESSION_SECONDS)
    group = order.settings["group"]
    settings = {"group.id": group, "auto.commit.interval.ms": 500}
    consumer = Consumer({**common_of_consumers(order), **settings})
    try:
        _consume(scene, link, order, consumer, end_s)
    except KafkaException as error:
        scene.note(order.session, f"starts over: {error}")
    finally:
        # While partitions change leaders librdkafka's threads can wait for each other here
        # for ever (seen in 2.16).
        link.at("close")
        consumer.close()


def _consume(scene: Scene, link: Link, order: Order, consumer: Consumer, end_s: float) -> None:
    topics: list[str] = []
    assigned: list[tuple[str, int]] = []

    def on_assign(_: Any, partitions: Any) -> None:
        assigned.extend((p.topic, p.partition) for p in partitions)

    def note_assigned(named: tuple[tuple[str, int], ...]) -> None:
        if named:
            scene.history.add(Positioned(order.session, scene.clock_s(), named))

    # Sessions end at the end of a run, too: between two metadata requests librdkafka can
    # miss that a topic has grown, and then goes on without the partition.
    while scene.is_reading and scene.clock_s() < end_s:
        if topics != scene.topics():
            topics = scene.topics()
            consumer.subscribe(topics, on_assign=on_assign)
        link.at("consume")
        messages = consumer.consume(500, POLL_MS / 1000)
        records = [message for message in messages if message.error() is None]
        # One call may hand out records of before and after a rebalance.
        named = tuple(assigned)
        assigned.clear()
        note_assigned(named)
        if records:
            handed = tuple(_tell(message) for message in records)
            scene.history.add(Poll(order.session, order.settings["group"], scene.clock_s(), handed))
        note_assigned(named)


def _tell(message: Message) -> tuple[str, int, int, str]:
    topic, number, offset, value = (
        message.topic(),
        message.partition(),
        message.offset(),
        message.value(),
    )
    assert topic is not None
    assert number is not None
    assert offset is not None
    return topic, number, offset, (value or b"").decode()
