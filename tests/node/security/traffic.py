"""A producer and a member of a group that run in threads, and how long they were ever held up."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, Message, Producer

from tests.support.waiting import eventually

Settings = Mapping[str, Any]

SEND_INTERVAL_SECONDS = 0.01
STOP_SECONDS_MAX = 60.0


class Traffic:
    """What was acknowledged and what was read, by all producers and members together."""

    def __init__(self, topic: str, *, partitions: int, group: str = "readers") -> None:
        self.topic = topic
        self.partitions = partitions
        self.group = group
        self.acked: dict[tuple[int, int], bytes] = {}  # by partition and offset
        self.read: dict[tuple[int, int], bytes] = {}
        self.problems: list[str] = []
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._last: dict[tuple[str, int], float] = {}
        self._longest: dict[str, float] = {"produce": 0.0, "consume": 0.0}

    def longest_pauses(self) -> dict[str, float]:
        """Return the longest time without a record of some partition, and begin again."""
        with self._lock:
            longest, self._longest = self._longest, dict.fromkeys(self._longest, 0.0)
            return longest

    def note(self, what: str, partition: int) -> None:
        """Note that a record of the partition was acknowledged or read."""
        now = time.monotonic()
        with self._lock:
            before = self._last.get((what, partition), now)
            self._longest[what] = max(self._longest[what], now - before)
            self._last[what, partition] = now

    # -- clients --

    @contextmanager
    def producer(self, settings: Settings) -> Iterator[None]:
        """Produce to every partition until the block ends, and until everything is acknowledged."""
        is_stopping = threading.Event()
        count = len(self.acked)
        thread = threading.Thread(target=self._produce, args=(settings, is_stopping))
        thread.start()
        try:
            eventually(lambda: len(self.acked) > count, "records are acknowledged")
            yield
        finally:
            is_stopping.set()
            thread.join(STOP_SECONDS_MAX)
            assert not thread.is_alive()

    @contextmanager
    def member(self, settings: Settings) -> Iterator[None]:
        """Read as a member of the group until the block ends."""
        is_stopping, has_partitions = threading.Event(), threading.Event()
        thread = threading.Thread(
            target=self._consume, args=(settings, is_stopping, has_partitions)
        )
        thread.start()
        try:
            assert has_partitions.wait(STOP_SECONDS_MAX), self.problems
            yield
        finally:
            is_stopping.set()
            thread.join(STOP_SECONDS_MAX)
            assert not thread.is_alive()

    def _produce(self, settings: Settings, is_stopping: threading.Event) -> None:
        producer = Producer(
            {
                **settings,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 1,
                "retry.backoff.max.ms": 200,
                "reconnect.backoff.max.ms": 300,
            }
        )
        while not is_stopping.wait(SEND_INTERVAL_SECONDS):
            number = next(self._numbers)
            producer.produce(
                self.topic,
                b"%d" % number,
                partition=number % self.partitions,
                on_delivery=self._on_delivery,
            )
            producer.poll(0)
        if producer.flush(STOP_SECONDS_MAX):
            self.problems.append("records were not delivered")

    def _on_delivery(self, error: object, message: Message) -> None:
        if error is not None:
            self.problems.append(f"produce: {error}")
            return
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert isinstance(value, bytes)
        self.acked[partition, offset] = value
        self.note("produce", partition)

    def _consume(
        self, settings: Settings, is_stopping: threading.Event, has_partitions: threading.Event
    ) -> None:
        consumer = Consumer(
            {
                **settings,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": "cooperative-sticky",
                "heartbeat.interval.ms": 300,
                "session.timeout.ms": 10_000,
                "reconnect.backoff.max.ms": 300,
            }
        )
        consumer.subscribe([self.topic], on_assign=lambda *_: has_partitions.set())
        while not is_stopping.is_set():
            message = consumer.poll(0.1)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                if not error.retriable() and error.code() != confluent_kafka.KafkaError._TRANSPORT:
                    self.problems.append(f"consume: {error}")
                continue
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert isinstance(value, bytes)
            self.read[partition, offset] = value
            self.note("consume", partition)
        consumer.close()
