"""Produce and fetch through librdkafka, each bounded in time."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.process import Node

SECONDS_MAX = 60.0  # for one pass of produce or fetch
_PAYLOAD_COUNT = 64
_CONSUME_COUNT = 10_000


@dataclass(frozen=True, slots=True)
class Load:
    """The records to produce, and the producer's options."""

    record_size_bytes: int = 1024
    total_bytes: int = 300_000_000
    partition_count: int = 1
    codec: str = "none"
    acks: str = "1"

    @property
    def record_count(self) -> int:
        """Return the number of records of the load."""
        return self.total_bytes // self.record_size_bytes

    @property
    def size_bytes(self) -> int:
        """Return the uncompressed bytes of the load."""
        return self.record_count * self.record_size_bytes


def produce(node: Node, topic: str, load: Load) -> None:
    """Produce the load and wait until it is acknowledged.

    Raises ``RuntimeError`` after ``SECONDS_MAX``, or with the first error.
    """
    deadline = time.monotonic() + SECONDS_MAX
    producer = Producer(
        _settings(
            node,
            **{
                "acks": load.acks,
                "compression.type": load.codec,
                "linger.ms": 20,
                "batch.size": 1_000_000,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 200_000,
            },
        )
    )
    failures: list[object] = []

    def on_delivery(error: object, _: object) -> None:
        if error is not None:
            failures.append(error)

    payloads = _payloads(load.record_size_bytes)
    for index in range(load.record_count):
        payload = payloads[index % _PAYLOAD_COUNT]
        partition = index % load.partition_count
        while True:
            try:
                producer.produce(
                    topic,
                    payload,
                    partition=partition,
                    on_delivery=on_delivery,
                )
                break
            except BufferError:
                producer.poll(0.05)
                if time.monotonic() > deadline:
                    raise _too_slow("produce") from None
        producer.poll(0)
    if producer.flush(max(0.0, deadline - time.monotonic())):
        raise _too_slow("produce")
    if failures:
        raise RuntimeError(f"{len(failures)} records were refused: {failures[0]}")


def fetch(
    node: Node,
    topic: str,
    load: Load,
    *,
    consumer_count: int = 1,
    fetch_size_bytes: int = 16_000_000,
) -> None:
    """Have every consumer fetch the whole load. Raises like ``produce``."""
    deadline = time.monotonic() + SECONDS_MAX
    missing = {
        Consumer(
            _settings(
                node,
                **{
                    "group.id": "bench",
                    "enable.auto.commit": False,
                    "fetch.message.max.bytes": fetch_size_bytes,
                    "fetch.max.bytes": 50_000_000,
                    # A consumer whose queue is full sends no fetch for a whole second.
                    "queued.min.messages": 10_000_000,
                    "queued.max.messages.kbytes": 2_000_000,
                    "check.crcs": False,
                },
            )
        ): load.record_count
        for _ in range(consumer_count)
    }
    try:
        for consumer in missing:
            consumer.assign([TopicPartition(topic, p, 0) for p in range(load.partition_count)])
        wait_seconds = 1.0 if consumer_count == 1 else 0.01
        while any(missing.values()):
            if time.monotonic() > deadline:
                raise _too_slow("fetch")
            for consumer, count in missing.items():
                if count:
                    messages = consumer.consume(min(count, _CONSUME_COUNT), wait_seconds)
                    missing[consumer] -= _checked(messages)
    finally:
        for consumer in missing:
            consumer.close()


def _checked(messages: Sequence[object]) -> int:
    for message in messages:
        if error := message.error():  # type: ignore[attr-defined]
            raise RuntimeError(f"a fetch was refused: {error}")
    return len(messages)


def _too_slow(what: str) -> RuntimeError:
    return RuntimeError(f"{what} took more than {SECONDS_MAX:.0f} s")


def _payloads(size_bytes: int) -> list[bytes]:
    """Return values that compress about as well as JSON events do."""
    rng = random.Random(size_bytes)
    return [_payload(rng, size_bytes) for _ in range(_PAYLOAD_COUNT)]


def _payload(rng: random.Random, size_bytes: int) -> bytes:
    text = ""
    while len(text) < size_bytes:
        user, amount = rng.randrange(10**6), rng.randrange(10**5)
        text += f'{{"user":{user},"event":"{rng.choice(_EVENTS)}","amount":{amount / 100}}}'
    return text[:size_bytes].encode()


_EVENTS = ("search", "view", "basket", "purchase", "refund")


def _settings(node: Node, **settings: object) -> dict[str, object]:
    # Errors are raised; librdkafka's log of a stopping server adds nothing.
    return {
        "bootstrap.servers": node.bootstrap,
        "log_level": 0,
        **node.client_settings,
        **settings,
    }
