"""Clients that write: sessions of our own producer, and of librdkafka's."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka import Producer as ConfluentProducer
from tidelog import Delivery, Producer, TidelogError
from tidelog.errors import DeliveryTimedOut

from tests.chaos.history import Outcome, PartitionKey, Write
from tests.chaos.workload import Numbers, Scene, complete, invoke, pause

ACKS_ALL = -1
SESSION_SECONDS = 4.0, 20.0
BURST_MAX = 10
FLUSH_SECONDS_MAX = 60.0
ABRUPT_PART = 0.3  # of the sessions end with records under way
# Request and delivery timeouts of a session, milliseconds: some give up within a fault.
TIMEOUTS = ((1_000, 2_000), (2_000, 6_000), (5_000, 30_000))


@dataclass(frozen=True, slots=True)
class _Promise:
    acks: int
    is_idempotent: bool


_PROMISES = (
    _Promise(ACKS_ALL, True),
    _Promise(ACKS_ALL, False),
    _Promise(1, False),
    _Promise(0, False),
)
_PROMISE_WEIGHTS = (12, 3, 4, 1)


async def produce(scene: Scene, name: str, *, rate_per_s: float) -> None:
    """Run sessions of our own producer for as long as the scene wants writes."""
    chance = scene.chance(name)
    for count in range(10_000):
        if not scene.is_writing:
            return
        await _session(scene, f"{name}.{count}", chance, rate_per_s)


async def _session(scene: Scene, session: str, chance: random.Random, rate_per_s: float) -> None:
    promise = chance.choices(_PROMISES, _PROMISE_WEIGHTS)[0]
    request_timeout_ms, delivery_timeout_ms = chance.choice(TIMEOUTS)
    linger_ms = chance.choice((0, 5, 20))
    producer = Producer(
        scene.bootstrap,
        client_id=session,
        acks=promise.acks,
        enable_idempotence=promise.is_idempotent,
        compression=chance.choice(("none", "lz4", "zstd")),
        linger_ms=linger_ms,
        max_block_ms=3_000,
        request_timeout_ms=request_timeout_ms,
        delivery_timeout_ms=delivery_timeout_ms + linger_ms,
        reconnect_backoff_max_ms=500,
    )
    end_s = scene.clock_s() + chance.uniform(*SESSION_SECONDS)
    is_abrupt = chance.random() < ABRUPT_PART
    numbers = Numbers(session, chance)
    # Unanswered requests of one connection may arrive after those of the next.
    is_ordered = promise.acks != 0
    try:
        await producer.start()
        while scene.is_writing and scene.clock_s() < end_s:
            target = chance.choice(scene.partitions)
            burst = chance.randint(1, BURST_MAX)
            for _ in range(burst):
                write = invoke(
                    scene,
                    session,
                    target,
                    numbers,
                    acks=promise.acks,
                    once=promise.is_idempotent,
                    is_ordered=is_ordered,
                )
                await _send(scene, producer, write)
            await pause(burst / rate_per_s, lambda: scene.is_writing)
    except TidelogError as error:
        scene.note(session, f"cannot go on: {type(error).__name__}: {error}")
        await pause(0.5, lambda: scene.is_writing)
    finally:
        await producer.close(timeout_s=0 if is_abrupt else delivery_timeout_ms / 1000 + 1)
        await asyncio.sleep(0)  # The last outcomes are called back from the loop.


async def _send(scene: Scene, producer: Producer, write: Write) -> Delivery | None:
    try:
        delivery = await producer.send(write.topic, write.value.encode(), partition=write.partition)
    except TidelogError as error:  # Then the record was not taken.
        complete(scene, write, Outcome.FAIL, problem=_tell(error))
        return None
    delivery.add_done_callback(partial(_on_done, scene, write))
    return delivery


def _on_done(scene: Scene, write: Write, delivery: Delivery) -> None:
    error = delivery.exception()
    if error is None:
        complete(scene, write, Outcome.OK, offset=delivery.result().offset)
    elif isinstance(error, DeliveryTimedOut) and not error.may_be_written:
        complete(scene, write, Outcome.FAIL, problem=_tell(error))
    else:
        complete(scene, write, Outcome.INFO, problem=_tell(error))


def _tell(error: TidelogError) -> str:
    return f"{type(error).__name__}: {error}"


async def probe(scene: Scene, *, timeout_s: float) -> dict[str, float | None]:
    """Write one record to every partition there is now; return how long each took, seconds.

    None: it takes no record in time.
    """
    session = "probe"
    numbers = Numbers(session, scene.chance(session))
    started_s = scene.clock_s()
    partitions = list(scene.partitions)
    took: dict[str, float | None] = {str(name): None for name in partitions}
    producer = Producer(
        scene.bootstrap,
        client_id=session,
        request_timeout_ms=5_000,
        delivery_timeout_ms=int(timeout_s * 1000),
        max_block_ms=int(timeout_s * 1000),
    )

    async def write_one(name: PartitionKey) -> None:
        write = invoke(scene, session, name, numbers, acks=ACKS_ALL, once=True, is_ordered=True)
        delivery = await _send(scene, producer, write)
        if delivery is not None:
            await delivery.wait()
            if delivery.exception() is None:
                took[str(name)] = scene.clock_s() - started_s

    try:
        async with asyncio.timeout(timeout_s + 10):
            await producer.start()
            await asyncio.gather(*(write_one(name) for name in partitions))
    except (TidelogError, TimeoutError) as error:
        scene.note(session, f"{type(error).__name__}: {error}")
    finally:
        await producer.close(timeout_s=1)
    return took


# librdkafka that gives up on one message starts a new epoch in every partition, and sends what
# is unanswered there again under it. It does so, too, when of several requests under way the
# first fails, so that the next is out of sequence.
LIBRDKAFKA_TIMEOUT_MS_MIN = 600_000


def produce_with_librdkafka(scene: Scene, name: str, *, rate_per_s: float) -> None:
    """Run sessions of librdkafka's producer in the calling thread."""
    chance = scene.chance(name)
    for count in range(10_000):
        if not scene.is_writing:
            return
        session = f"{name}.{count}"
        try:
            _confluent_session(scene, session, chance, rate_per_s)
        except (KafkaException, SystemError) as error:
            # Fatal: the leader has not what it acknowledged. The Python face raises it from
            # whatever callback runs just then, which may end as a SystemError.
            scene.note(session, f"cannot go on: {error.__cause__ or error}")


def _confluent_session(
    scene: Scene, session: str, chance: random.Random, rate_per_s: float
) -> None:
    promise = chance.choices(_PROMISES, _PROMISE_WEIGHTS)[0]
    request_timeout_ms, delivery_timeout_ms = chance.choice(TIMEOUTS)
    if promise.is_idempotent:
        delivery_timeout_ms = LIBRDKAFKA_TIMEOUT_MS_MIN
    producer = ConfluentProducer(
        {
            "bootstrap.servers": scene.bootstrap,
            "client.id": session,
            "acks": promise.acks,
            "enable.idempotence": promise.is_idempotent,
            # With one, too: what is ready to be sent does not wait for the retry before it.
            "max.in.flight": 5,
            "linger.ms": chance.choice((0, 5, 20)),
            "request.timeout.ms": request_timeout_ms,
            "message.timeout.ms": delivery_timeout_ms,
            "socket.timeout.ms": request_timeout_ms,
            "reconnect.backoff.max.ms": 500,
            "broker.address.family": "v4",
            "log_level": 0,
            "error_cb": lambda _: None,
        }
    )
    end_s = scene.clock_s() + chance.uniform(*SESSION_SECONDS)
    is_abrupt = chance.random() < ABRUPT_PART
    numbers = Numbers(session, chance)
    while scene.is_writing and scene.clock_s() < end_s:
        target = chance.choice(scene.partitions)
        burst = chance.randint(1, BURST_MAX)
        for _ in range(burst):
            write = invoke(
                scene,
                session,
                target,
                numbers,
                acks=promise.acks,
                once=promise.is_idempotent,
                is_ordered=promise.is_idempotent,
                may_resend=True,  # librdkafka #4953
            )
            try:
                producer.produce(
                    write.topic,
                    write.value.encode(),
                    partition=write.partition,
                    on_delivery=partial(_on_confluent_delivery, scene, write),
                )
            except (BufferError, KafkaException) as error:
                complete(scene, write, Outcome.FAIL, problem=str(error))
        producer.poll(0)
        time.sleep(burst / rate_per_s)
    if is_abrupt:
        producer.purge()
    producer.flush(FLUSH_SECONDS_MAX)


def _on_confluent_delivery(scene: Scene, write: Write, error: Any, message: Any) -> None:
    if error is None:
        offset = message.offset()
        if offset is not None and offset >= 0:
            complete(scene, write, Outcome.OK, offset=offset)
        else:
            # librdkafka takes the answer to a later request as the one it never got. That a
            # leader to which the producer is new begins at any sequence it does not know.
            complete(scene, write, Outcome.INFO, problem="acknowledged by what follows")
    else:
        # librdkafka's Python face does not say whether it may be written.
        complete(scene, write, Outcome.INFO, problem=str(error))
