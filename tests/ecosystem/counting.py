"""What is in a topic, as a consumer of committed records sees it."""

from __future__ import annotations

from contextlib import closing

from confluent_kafka import Consumer, Message, TopicPartition

SECONDS_MAX = 300.0


def committed(address: str, topic: str) -> list[Message]:
    """Return every committed record of the topic, those of each partition in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "counting",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    found: list[Message] = []
    with closing(consumer):
        partitions = consumer.list_topics(topic, timeout=SECONDS_MAX).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        ended: set[int] = set()
        while len(ended) < len(partitions):
            message = consumer.poll(SECONDS_MAX)
            assert message is not None, f"nothing of {topic} came; at the end of {ended}"
            if message.error() is None:
                found.append(message)
            else:
                number = message.partition()
                assert number is not None
                ended.add(number)
    return found
