"""Sessions of librdkafka's transactional producer: writing, and as a member of the pipeline."""

from __future__ import annotations

import time
from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.chaos.attempts import (
    ABORTED_PART,
    PIPELINE_GROUP,
    RECORDS_MAX,
    SESSION_SECONDS,
    TRANSACTION_TIMEOUT_MS,
    Attempt,
)
from tests.chaos.history import Outcome, PartitionKey
from tests.chaos.librdkafka.common import POLL_MS, common, common_of_consumers
from tests.chaos.librdkafka.link import Link, Order, Reached
from tests.chaos.librdkafka.membership import CALL_SECONDS_MAX, CannotGoOn, PipelineMember
from tests.chaos.promises import ABRUPT_PART
from tests.chaos.scene import Scene

COMMIT_ATTEMPTS_MAX = 4


def write_transactions(scene: Scene, link: Link, order: Order) -> None:
    """Write in transactions, and note what becomes of each."""
    try:
        _write(scene, link, order)
    except (BufferError, KafkaException) as error:
        scene.note(order.session, f"starts over: {error}")


def _write(scene: Scene, link: Link, order: Order) -> None:
    chance = scene.chance(order.session)
    end_s = scene.clock_s() + chance.uniform(*SESSION_SECONDS)
    is_abrupt = chance.random() < ABRUPT_PART
    producer = _producer(link, order)
    number = 0
    while scene.is_writing:
        count = chance.randint(1, RECORDS_MAX)
        attempt = Attempt.begin(scene, order.session, number)
        targets = [chance.choice(scene.transactional) for _ in range(count)]
        _produce(link, producer, attempt, [(target, "moved") for target in targets])
        number += 1
        if scene.clock_s() > end_s:
            if is_abrupt:  # The next session aborts it, or its time-out does.
                producer.poll(0.1)
                producer.purge()
                attempt.end(Outcome.FAIL, "left open")
            else:
                _end(link, producer, attempt, is_given_up=True)
            return
        _end(link, producer, attempt, is_given_up=chance.random() < ABORTED_PART)
        time.sleep(count / order.settings["rate_per_s"])


def process(scene: Scene, link: Link, order: Order) -> None:
    """Make of every record of one topic one of the other."""
    try:
        _process(scene, link, order)
    except (BufferError, KafkaException, CannotGoOn) as error:
        scene.note(order.session, f"starts over: {error}")


def _process(scene: Scene, link: Link, order: Order) -> None:
    end_s = scene.clock_s() + scene.chance(order.session).uniform(*SESSION_SECONDS)
    producer = _producer(link, order)
    settings = {
        "group.id": PIPELINE_GROUP,
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "partition.assignment.strategy": "range",
        "auto.offset.reset": "error",
    }
    consumer = Consumer({**common_of_consumers(order), **settings})
    member = PipelineMember(scene, link, order, consumer)
    reached = Reached(link)
    try:
        member.subscribe([order.settings["source"]])
        number = 0
        while scene.is_reading and scene.clock_s() < end_s:
            link.at("consume")
            messages = member.records(consumer.consume(100, POLL_MS / 1000))
            if not messages:
                _note_committed(link, consumer, reached)
                continue
            attempt = Attempt.begin(scene, order.session, number)
            offsets = member.begin(number, messages)
            number += 1
            made = [
                (
                    scene.piped[(message.partition() or 0) % len(scene.piped)],
                    (message.value() or b"").decode(),
                )
                for message in messages
            ]
            _produce(link, producer, attempt, made)
            try:
                # It asks for the group's coordinator a few times; when there is none yet, it
                # waits for a change of a broker's state, for ever if none comes, whatever its
                # time-out is (rd_kafka_coord_req_handle_FindCoordinator, seen in 2.16).
                link.at("send_offsets_to_transaction")
                producer.send_offsets_to_transaction(offsets, member.group, CALL_SECONDS_MAX)
            except KafkaException as error:
                attempt.end(Outcome.FAIL, error)
                raise
            if _end(link, producer, attempt, is_given_up=False) is not Outcome.OK:
                return  # The next session reads again from what is committed.
            _reach(reached, offsets)
    finally:
        link.at("close")
        consumer.close()


def _producer(link: Link, order: Order) -> Producer:
    producer = Producer(
        {
            **common(order),
            "transactional.id": order.client,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "linger.ms": 5,
            "socket.timeout.ms": 3_000,
            "message.timeout.ms": TRANSACTION_TIMEOUT_MS,
        }
    )
    link.at("init_transactions")
    producer.init_transactions(CALL_SECONDS_MAX)
    return producer


def _produce(
    link: Link, producer: Producer, attempt: Attempt, made: list[tuple[PartitionKey, str]]
) -> None:
    """Begin a transaction with these records. Raises ``KafkaException`` if it has failed."""
    values = [attempt.record(target, text) for target, text in made]
    link.under_way(attempt.told(Outcome.INFO, "its session ended first"))
    producer.begin_transaction()
    try:
        for (target, _), value in zip(made, values, strict=True):
            producer.produce(target.topic, value, partition=target.partition)
    except (BufferError, KafkaException) as error:
        attempt.end(Outcome.FAIL, error)
        raise


def _end(link: Link, producer: Producer, attempt: Attempt, *, is_given_up: bool) -> Outcome:
    """Commit or abort, and note what became of it. Raises ``KafkaException``."""
    try:
        if is_given_up:
            link.at("abort_transaction")
            producer.abort_transaction(CALL_SECONDS_MAX)
            outcome = Outcome.FAIL
        else:
            outcome = _commit(link, producer)
    except KafkaException as error:
        attempt.end(Outcome.FAIL if is_given_up else Outcome.INFO, error)
        raise
    attempt.end(outcome)
    return outcome


def _commit(link: Link, producer: Producer) -> Outcome:
    """Commit; FAIL if it is aborted instead. Raises ``KafkaException`` where nobody knows."""
    for attempt in range(COMMIT_ATTEMPTS_MAX):
        try:
            link.at("commit_transaction")
            producer.commit_transaction(CALL_SECONDS_MAX)
        except KafkaException as error:
            reason = error.args[0]
            if reason.txn_requires_abort():
                link.at("abort_transaction")
                producer.abort_transaction(CALL_SECONDS_MAX)
                return Outcome.FAIL
            if not reason.retriable() or attempt == COMMIT_ATTEMPTS_MAX - 1:
                raise
        else:
            return Outcome.OK
    raise AssertionError("the last attempt returns or raises")


def _note_committed(link: Link, consumer: Consumer, reached: Reached) -> None:
    assigned = consumer.assignment()
    if assigned:
        link.at("committed")
        _reach(reached, consumer.committed(assigned, timeout=CALL_SECONDS_MAX))


def _reach(reached: Reached, positions: Iterable[TopicPartition]) -> None:
    for position in positions:
        if position.offset >= 0:
            reached.reach(PartitionKey(position.topic, position.partition), position.offset)
