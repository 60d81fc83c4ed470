"""Clients that write: sessions of our own producer."""

from __future__ import annotations

import asyncio
import random
from functools import partial

from tidelog import Delivery, Producer, TidelogError
from tidelog.errors import DeliveryTimedOut

from tests.chaos.history import Outcome, PartitionKey, Write
from tests.chaos.promises import (
    ABRUPT_PART,
    ACKS_ALL,
    BURST_MAX,
    SESSION_SECONDS,
    TIMEOUTS,
    choose_promise,
)
from tests.chaos.scene import Numbers, Scene, complete, invoke, pause


async def produce(scene: Scene, name: str, *, rate_per_s: float) -> None:
    """Run sessions of our own producer for as long as the scene wants writes."""
    chance = scene.chance(name)
    for count in range(10_000):
        if not scene.is_writing:
            return
        await _session(scene, f"{name}.{count}", chance, rate_per_s)


async def _session(scene: Scene, session: str, chance: random.Random, rate_per_s: float) -> None:
    promise = choose_promise(chance)
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
