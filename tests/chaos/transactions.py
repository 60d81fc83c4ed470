"""Clients of transactions: those that write in them, pipelines, and readers of what is committed.

Each of ours has a twin of librdkafka's (``librdkafka``). A session's transactional id is its client's name,
so each session fences the one before it and aborts what that left open.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from tidelog import Consumer, Producer, RebalanceListener, TidelogError, TopicPartition
from tidelog.errors import TransactionAborted

from tests.chaos.attempts import (
    ABORTED_PART,
    PIPELINE_GROUP,
    PIPELINE_SESSION_TIMEOUT_MS,
    RECORDS_MAX,
    SESSION_SECONDS,
    TRANSACTION_TIMEOUT_MS,
    Attempt,
)
from tests.chaos.history import (
    UNKNOWN_OFFSET,
    CommittedLog,
    CommittedPoll,
    Outcome,
    PartitionKey,
    Step,
)
from tests.chaos.pipeline_steps import StepNotes
from tests.chaos.scene import Progress, Scene, pause

SESSIONS_MAX = 10_000  # of one client
POLL_MS = 300


class _GivenUp(Exception):
    """Raised in a transaction that is to be aborted."""


def _producer(scene: Scene, name: str, session: str) -> Producer:
    return Producer(
        scene.bootstrap,
        client_id=session,
        transactional_id=name,
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        linger_ms=5,
        max_block_ms=3_000,
        request_timeout_ms=2_000,
        delivery_timeout_ms=6_000,
        reconnect_backoff_max_ms=500,
    )


async def write_transactions(scene: Scene, name: str, *, rate_per_s: float) -> None:
    """Run sessions of our producer for as long as the scene wants writes."""
    chance = scene.chance(name)
    await _run_sessions(
        scene,
        name,
        lambda session: _write_session(scene, name, session, chance, rate_per_s),
        is_wanted=lambda: scene.is_writing,
    )


async def _run_sessions(
    scene: Scene,
    name: str,
    run: Callable[[str], Awaitable[None]],
    *,
    is_wanted: Callable[[], bool],
) -> None:
    """Run one session after the other for as long as they are wanted."""
    for count in range(SESSIONS_MAX):
        if not is_wanted():
            return
        session = f"{name}.{count}"
        try:
            await run(session)
        except TidelogError as error:
            scene.note(session, f"starts over: {type(error).__name__}: {error}")
            await pause(0.3, is_wanted)


async def _write_session(
    scene: Scene, name: str, session: str, chance: random.Random, rate_per_s: float
) -> None:
    end_s = scene.clock_s() + chance.uniform(*SESSION_SECONDS)
    async with _producer(scene, name, session) as producer:
        number = 0
        while scene.is_writing and scene.clock_s() < end_s:
            attempt = Attempt.begin(scene, session, number)
            count = chance.randint(1, RECORDS_MAX)
            try:
                async with producer.transaction():
                    for _ in range(count):
                        target = chance.choice(scene.transactional)
                        value = attempt.record(target, "moved")
                        await producer.send(target.topic, value, partition=target.partition)
                    if chance.random() < ABORTED_PART:
                        raise _GivenUp
            except (_GivenUp, TransactionAborted) as error:
                attempt.end(Outcome.FAIL, error)
            except TidelogError as error:
                attempt.end(Outcome.INFO, error)
                raise
            else:
                attempt.end(Outcome.OK)
            number += 1
            await pause(count / rate_per_s, lambda: scene.is_writing)


class _Noted(RebalanceListener):
    """Notes which partitions a session has."""

    def __init__(self, notes: StepNotes) -> None:
        self._notes = notes

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._note(Step.ASSIGNED, partitions)

    def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._note(Step.REVOKED, partitions)

    def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
        self._note(Step.LOST, partitions)

    def _note(self, step: Step, partitions: Collection[TopicPartition]) -> None:
        self._notes.note(step, [(*partition, UNKNOWN_OFFSET) for partition in partitions])


class Processor:
    """Makes of every record of one topic one of the other, with our clients."""

    def __init__(self, scene: Scene, name: str, source: str, progress: Progress) -> None:
        self._scene = scene
        self._name = name
        self._source = source
        self._progress = progress  # what is committed, of all members
        self._chance = scene.chance(name)

    async def run(self) -> None:
        """Run sessions until the scene wants no more reads."""
        await _run_sessions(
            self._scene, self._name, self._session, is_wanted=lambda: self._scene.is_reading
        )

    async def _session(self, session: str) -> None:
        scene = self._scene
        end_s = scene.clock_s() + self._chance.uniform(*SESSION_SECONDS)
        producer = _producer(scene, self._name, session)
        consumer = Consumer(
            scene.bootstrap,
            client_id=session,
            group_id=PIPELINE_GROUP,
            isolation_level="read_committed",
            enable_auto_commit=False,
            assignors=("range",),
            auto_offset_reset="earliest",
            session_timeout_ms=PIPELINE_SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=500,
            fetch_max_wait_ms=200,
            request_timeout_ms=3_000,
            reconnect_backoff_max_ms=500,
            metadata_max_age_ms=2_000,
        )
        # The producer first: what the session before has left open is ended before the
        # consumer asks what is committed.
        notes = StepNotes(scene, session)
        async with producer, consumer:
            consumer.subscribe(self._source, listener=_Noted(notes))
            number = 0
            while scene.is_reading and (scene.goal or scene.clock_s() < end_s):
                records = await consumer.poll(timeout_ms=POLL_MS, max_records=100)
                if not records:
                    self._note(await consumer.committed(consumer.assignment()))
                    continue
                attempt = Attempt.begin(scene, session, number)
                notes.transaction(number, ((r.topic, r.partition, r.offset) for r in records))
                number += 1
                try:
                    async with producer.transaction() as transaction:
                        for record in records:
                            target = scene.piped[record.partition % len(scene.piped)]
                            value = attempt.record(target, (record.value or b"").decode())
                            await producer.send(target.topic, value, partition=target.partition)
                        positions = consumer.positions()
                        await transaction.send_offsets(positions, consumer.group_metadata())
                        if self._chance.random() < ABORTED_PART:
                            raise _GivenUp
                except (_GivenUp, TransactionAborted) as error:
                    attempt.end(Outcome.FAIL, error)
                    consumer.seek_to_committed()
                except TidelogError as error:
                    attempt.end(Outcome.INFO, error)
                    raise
                else:
                    attempt.end(Outcome.OK)
                    self._note(positions)

    def _note(self, committed: Any) -> None:
        for partition, committed_offset in committed.items():
            if committed_offset is not None:
                self._progress.reach(PartitionKey(*partition), committed_offset.offset)


class CommittedReader:
    """Reads what is committed of the transactions' topics from the start, again and again."""

    def __init__(self, scene: Scene, name: str) -> None:
        self._scene = scene
        self._name = name
        self._chance = scene.chance(name)

    async def run(self) -> None:
        """Run sessions until the scene wants no more reads."""
        await _run_sessions(
            self._scene, self._name, self._session, is_wanted=lambda: self._scene.is_reading
        )

    async def _session(self, session: str) -> None:
        scene = self._scene
        end_s = scene.clock_s() + self._chance.uniform(*SESSION_SECONDS)
        async with _committed_consumer(scene, session) as consumer:
            consumer.assign([*scene.transactional, *scene.piped])
            while scene.is_reading and scene.clock_s() < end_s:
                records = await consumer.poll(timeout_ms=POLL_MS)
                handed = tuple(
                    (r.topic, r.partition, r.offset, (r.value or b"").decode()) for r in records
                )
                if handed:
                    scene.history.add(CommittedPoll(session, scene.clock_s(), handed))


def _committed_consumer(
    scene: Scene, session: str, isolation_level: Any = "read_committed"
) -> Consumer:
    return Consumer(
        scene.bootstrap,
        client_id=session,
        isolation_level=isolation_level,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=200,
        request_timeout_ms=3_000,
        reconnect_backoff_max_ms=500,
    )


async def read_committed_logs(scene: Scene, *, timeout_s: float) -> None:
    """Read what is committed of the transactions' topics into the history.

    Waits for transactions that are still open to end, by their time-out at the latest;
    those that do not within ``timeout_s`` are left open, for the checker to tell.
    """
    partitions = [*scene.transactional, *scene.piped]
    got: dict[PartitionKey, list[tuple[int, str]]] = {name: [] for name in partitions}
    stable: dict[PartitionKey, int] = {}
    ends: dict[PartitionKey, int] = {}
    deadline_s = scene.clock_s() + timeout_s
    try:
        async with (
            asyncio.timeout(timeout_s + 30),
            _committed_consumer(scene, "committed-logs") as consumer,
            _committed_consumer(scene, "high-watermarks", "read_uncommitted") as uncommitted,
        ):
            while not ends or (stable != ends and scene.clock_s() < deadline_s):
                ends = _named(await uncommitted.end_offsets(partitions))
                stable = _named(await consumer.end_offsets(partitions))
                await asyncio.sleep(0.2)
            consumer.assign(partitions)
            left = set(partitions)
            while left:
                for record in await consumer.poll(timeout_ms=POLL_MS):
                    name = PartitionKey(record.topic, record.partition)
                    got[name].append((record.offset, (record.value or b"").decode()))
                positions = consumer.positions()
                left = {
                    name
                    for name in left
                    if (at := positions.get(TopicPartition(*name))) is None
                    or at.offset < stable[name]
                }
    except (TidelogError, TimeoutError) as error:
        scene.note("committed-logs", f"{type(error).__name__}: {error}")
        return
    for name in partitions:
        scene.history.add(CommittedLog(*name, stable[name], ends[name], tuple(got[name])))


def _named(offsets: dict[TopicPartition, int]) -> dict[PartitionKey, int]:
    return {PartitionKey(*partition): offset for partition, offset in offsets.items()}
