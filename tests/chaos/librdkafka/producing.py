"""A session of librdkafka's producer, without transactions."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from confluent_kafka import KafkaException, Producer

from tests.chaos.history import Outcome, Write
from tests.chaos.librdkafka.common import common
from tests.chaos.librdkafka.link import Link, Order
from tests.chaos.promises import ABRUPT_PART, BURST_MAX, SESSION_SECONDS, TIMEOUTS, choose_promise
from tests.chaos.scene import Numbers, Scene, complete, invoke

FLUSH_SECONDS_MAX = 60.0
# librdkafka that gives up on one message starts a new epoch in every partition, and sends what
# is unanswered there again under it. It does so, too, when of several requests under way the
# first fails, so that the next is out of sequence.
IDEMPOTENT_TIMEOUT_MS = 600_000


def produce(scene: Scene, link: Link, order: Order) -> None:
    """Write, and note each record's outcome."""
    try:
        _produce(scene, link, order)
    except (KafkaException, SystemError) as error:
        # Fatal: the leader has not what it acknowledged. The Python face raises it from
        # whatever callback runs just then, which may end as a SystemError.
        scene.note(order.session, f"cannot go on: {error.__cause__ or error}")


def _produce(scene: Scene, link: Link, order: Order) -> None:
    chance = scene.chance(order.session)
    promise = choose_promise(chance)
    request_timeout_ms, delivery_timeout_ms = chance.choice(TIMEOUTS)
    if promise.is_idempotent:
        delivery_timeout_ms = IDEMPOTENT_TIMEOUT_MS
    producer = Producer(
        {
            **common(order),
            "acks": promise.acks,
            "enable.idempotence": promise.is_idempotent,
            # With one, too: what is ready to be sent does not wait for the retry before it.
            "max.in.flight": 5,
            "linger.ms": chance.choice((0, 5, 20)),
            "request.timeout.ms": request_timeout_ms,
            "message.timeout.ms": delivery_timeout_ms,
            "socket.timeout.ms": request_timeout_ms,
        }
    )
    end_s = scene.clock_s() + chance.uniform(*SESSION_SECONDS)
    is_abrupt = chance.random() < ABRUPT_PART
    numbers = Numbers(order.session, chance)
    while scene.is_writing and scene.clock_s() < end_s:
        target = chance.choice(scene.partitions)
        burst = chance.randint(1, BURST_MAX)
        for _ in range(burst):
            write = invoke(
                scene,
                order.session,
                target,
                numbers,
                acks=promise.acks,
                once=promise.is_idempotent,
                is_ordered=promise.is_idempotent,
                may_resend=True,  # librdkafka #4953
            )
            link.under_way(write)
            try:
                producer.produce(
                    write.topic,
                    write.value.encode(),
                    partition=write.partition,
                    on_delivery=partial(_on_delivery, scene, write),
                )
            except (BufferError, KafkaException) as error:
                complete(scene, write, Outcome.FAIL, problem=str(error))
        link.at("poll")
        producer.poll(0)
        time.sleep(burst / order.settings["rate_per_s"])
    if is_abrupt:
        producer.purge()
    until_s = time.monotonic() + FLUSH_SECONDS_MAX
    link.at("flush")
    while producer.flush(1.0) and time.monotonic() < until_s:
        link.at("flush")


def _on_delivery(scene: Scene, write: Write, error: Any, message: Any) -> None:
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
