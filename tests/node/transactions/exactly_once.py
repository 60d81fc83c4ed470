"""A program that reads, transforms and writes in transactions, as clients write it.

    python -m tests.node.transactions.exactly_once <addresses> <input> <output> <transactional id>

It copies every record of the input topic to the output topic, prints a line for each
transaction that it has committed, and goes on until its input is closed.
"""

from __future__ import annotations

import select
import sys
import time

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

GROUP = "copiers"
BATCH_COUNT = 20


def main(addresses: str, source: str, target: str, transactional_id: str) -> None:
    """Copy until standard input ends."""
    consumer = Consumer(
        {
            "bootstrap.servers": addresses,
            "group.id": GROUP,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",  # Nothing that was read is ever gone.
            "isolation.level": "read_committed",
            "session.timeout.ms": 6000,
            "reconnect.backoff.max.ms": 300,
        }
    )
    consumer.subscribe(
        [source],
        on_assign=lambda _, partitions: consumer.assign(_committed(consumer, partitions)),
    )
    producer = _producer(addresses, transactional_id)
    while not select.select([sys.stdin], [], [], 0)[0]:
        messages = [m for m in consumer.consume(BATCH_COUNT, timeout=0.2) if m.error() is None]
        if not messages:
            continue
        try:
            producer.begin_transaction()
            for message in messages:
                producer.produce(target, message.value(), partition=message.partition() or 0)
                producer.poll(0)
            nexts = {m.partition() or 0: (m.offset() or 0) + 1 for m in messages}
            producer.send_offsets_to_transaction(
                [TopicPartition(source, *place) for place in nexts.items()],
                consumer.consumer_group_metadata(),
                30,
            )
            _commit(producer)
            print("committed", len(messages), flush=True)
        except KafkaException as error:
            print("failed", error, file=sys.stderr, flush=True)
            if error.args[0].txn_requires_abort():
                producer.abort_transaction(30)
            else:
                producer = _producer(addresses, transactional_id)
            # What was read and not committed is read again.
            for place in _committed(consumer, consumer.assignment()):
                consumer.seek(place)
    consumer.close()


def _committed(consumer: Consumer, partitions: list[TopicPartition]) -> list[TopicPartition]:
    """Return where to begin. librdkafka's own way loses it, see ``chaos.librdkafka.membership``."""
    while partitions:
        try:
            places = consumer.committed(partitions, 30)
        except KafkaException as error:
            print("asks again", error, file=sys.stderr, flush=True)
            time.sleep(0.1)
            continue
        for place in places:
            place.offset = max(place.offset, 0)
        return places
    return []


def _commit(producer: Producer) -> None:
    while True:
        try:
            producer.commit_transaction(30)
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


def _producer(addresses: str, transactional_id: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": addresses,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 20_000,
            "retry.backoff.max.ms": 200,
            "reconnect.backoff.max.ms": 300,
        }
    )
    while True:
        try:
            producer.init_transactions(30)
            return producer
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


if __name__ == "__main__":
    main(*sys.argv[1:])
