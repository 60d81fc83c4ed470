"""A member of the pipeline's group, by librdkafka, that knows at which offset it is and why.

librdkafka's own way of starting its partitions loses the place when two rebalances follow each
other while offsets are pending: an OffsetFetch that is answered UNSTABLE_OFFSET_COMMIT is asked
again, an answer to the one from before the second rebalance is taken for the new assignment's,
and its partitions start at no offset, which is ``auto.offset.reset``
(``rd_kafka_assignment_apply_offsets``, seen in 2.16 against Apache Kafka 4.1 as well). With
``earliest`` everything is processed once more. So a member here asks for the committed offsets
itself, begins at them, and takes every reset for an error.

Kafka's rule for what is processed exactly once: the offsets of a transaction are those behind the
records in hand, and they are committed as the member that the records were handed to.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from tests.chaos.history import Step
from tests.chaos.librdkafka.link import Link, Order
from tests.chaos.pipeline_steps import StepNotes
from tests.chaos.scene import Scene

CALL_SECONDS_MAX = 15.0  # of librdkafka's blocking calls
FIRST_OFFSET = 0  # Nothing is ever deleted of what the pipeline reads.
_GENERATION = struct.Struct("=i")
_GENERATION_POSITION = len("CGMDv2:")  # in the metadata of a group as librdkafka encodes it


class CannotGoOn(Exception):
    """Raised where a session does not know what it has or where it is: the next one asks again."""


class PipelineMember:
    """What one session has of the group. Its methods are called by the session's one thread."""

    def __init__(self, scene: Scene, link: Link, order: Order, consumer: Consumer) -> None:
        self._notes = StepNotes(scene, order.session)
        self._link = link
        self._consumer = consumer
        self._assigned: frozenset[tuple[str, int]] = frozenset()
        self._group: Any = None  # as whom the records in hand are processed

    def subscribe(self, topics: list[str]) -> None:
        """Join the group."""
        self._consumer.subscribe(
            topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    @property
    def group(self) -> Any:
        """The membership that the records in hand came with."""
        return self._group

    def records(self, messages: Iterable[Message]) -> list[Message]:
        """Return the records among what ``consume`` returned.

        Raises ``KafkaException`` where librdkafka has lost its place, ``CannotGoOn``.
        """
        records = []
        for message in messages:
            error = message.error()
            if error is None:
                records.append(message)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                self._notes.note(Step.RESET, [_place(message)], str(error))
                raise KafkaException(error)
        if strange := {_place(record)[:2] for record in records} - self._assigned:
            raise CannotGoOn(f"got records of {sorted(strange)}")
        return records

    def begin(self, number: int, records: Iterable[Message]) -> list[TopicPartition]:
        """Note what a transaction is made from; return the offsets that belong to it."""
        places = self._notes.transaction(number, map(_place, records))
        return [TopicPartition(*place) for place in places]

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            self._begin_at_committed(consumer, partitions)
        except KafkaException as error:
            # Out of a callback it would come as its argument, which is not caught as an exception.
            raise CannotGoOn(str(error)) from error

    def _begin_at_committed(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # Who somebody else is by the time of the answer cannot commit as this member any more.
        self._group = consumer.consumer_group_metadata()
        (generation,) = _GENERATION.unpack_from(self._group, _GENERATION_POSITION)
        self._link.at("committed")
        committed = consumer.committed(partitions, timeout=CALL_SECONDS_MAX) if partitions else []
        for one in committed:
            if one.error is not None:
                raise KafkaException(one.error)
        self._notes.note(
            Step.ASSIGNED,
            [(one.topic, one.partition, one.offset) for one in committed],
            f"generation {generation}",
        )
        self._assigned = frozenset((one.topic, one.partition) for one in committed)
        consumer.assign(
            [
                TopicPartition(one.topic, one.partition, max(one.offset, FIRST_OFFSET))
                for one in committed
            ]
        )

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._let_go(Step.REVOKED, partitions)

    def _on_lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._let_go(Step.LOST, partitions)

    def _let_go(self, step: Step, partitions: list[TopicPartition]) -> None:
        self._assigned = frozenset()
        self._notes.note(step, [(one.topic, one.partition, OFFSET_INVALID) for one in partitions])


def _place(record: Message) -> tuple[str, int, int]:
    topic, partition, offset = record.topic(), record.partition(), record.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return topic, partition, offset
