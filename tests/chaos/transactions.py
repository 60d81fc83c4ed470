"""Clients of transactions: those that write in them, pipelines, and readers of what is committed.

Each of ours has a twin of librdkafka's. A session's transactional id is its client's name,
so each session fences the one before it and aborts what that left open.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import KafkaException
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition as ConfluentTopicPartition
from tidelog import Consumer, Producer, TidelogError, TopicPartition
from tidelog.errors import TransactionAborted

from tests.chaos.consumers import close_librdkafka
from tests.chaos.history import (
    PIPED,
    CommittedLog,
    CommittedPoll,
    Outcome,
    PartitionKey,
    Transaction,
)
from tests.chaos.workload import Progress, Scene, pause

SESSION_SECONDS = 4.0, 20.0
SESSIONS_MAX = 10_000  # of one client
POLL_MS = 300
PIPELINE_GROUP = "pipeline"
PIPELINE_SESSION_TIMEOUT_MS = 6_000
TRANSACTION_TIMEOUT_MS = 8_000
RECORDS_MAX = 8  # of one transaction
ABORTED_PART = 0.2  # of the transactions are given up on purpose
ABRUPT_PART = 0.3  # of the sessions end with a transaction open
CALL_SECONDS_MAX = 15.0  # of librdkafka's blocking calls
HANGS_SECONDS = 30.0
COMMIT_ATTEMPTS_MAX = 4


class _GivenUp(Exception):
    """Raised in a transaction that is to be aborted."""


class _Hangs(Exception):
    """A call of librdkafka's has not returned long after its time-out."""


@dataclass(slots=True)
class _Attempt:
    """A transaction under way."""

    scene: Scene
    session: str
    number: int
    invoked_s: float
    values: list[tuple[str, int, str]]

    @classmethod
    def begin(cls, scene: Scene, session: str, number: int) -> _Attempt:
        return cls(scene, session, number, scene.clock_s(), [])

    def record(self, name: PartitionKey, text: str) -> bytes:
        """Return the value of the next record, which is about to be sent to the partition."""
        value = f"{text}{PIPED}{self.session}.{self.number}.{len(self.values)}"
        self.values.append((name.topic, name.partition, value))
        return value.encode()

    def end(self, outcome: Outcome, problem: object = "") -> None:
        if self.values:
            self.scene.history.add(
                Transaction(
                    self.session,
                    self.number,
                    tuple(self.values),
                    self.invoked_s,
                    self.scene.clock_s(),
                    outcome,
                    str(problem),
                )
            )


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
            attempt = _Attempt.begin(scene, session, number)
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
        async with producer, consumer:
            consumer.subscribe(self._source)
            number = 0
            while scene.is_reading and (scene.goal or scene.clock_s() < end_s):
                records = await consumer.poll(timeout_ms=POLL_MS, max_records=100)
                if not records:
                    self._note(await consumer.committed(consumer.assignment()))
                    continue
                attempt = _Attempt.begin(scene, session, number)
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


def _confluent_producer(scene: Scene, name: str, session: str) -> ConfluentProducer:
    producer = ConfluentProducer(
        {
            "bootstrap.servers": scene.bootstrap,
            "client.id": session,
            "transactional.id": name,
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "linger.ms": 5,
            "socket.timeout.ms": 3_000,
            "message.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "reconnect.backoff.max.ms": 500,
            "broker.address.family": "v4",
            "log_level": 0,
            "error_cb": lambda _: None,
        }
    )
    _call(producer.init_transactions, CALL_SECONDS_MAX)
    return producer


def _call(call: Callable[..., object], *arguments: object) -> None:
    """Call librdkafka, or leave the call behind. Raises ``_Hangs`` and ``KafkaException``.

    ``send_offsets_to_transaction`` asks for the group's coordinator a few times; when there
    is none yet, it waits for a change of a broker's state, for ever if none comes, whatever
    its time-out is (``rd_kafka_coord_req_handle_FindCoordinator``, seen in 2.16). The next
    session fences the producer.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call(*arguments)
        except BaseException as error:  # It is raised below, in the caller's thread.
            raised.append(error)

    thread = threading.Thread(target=run, name="call of librdkafka", daemon=True)
    thread.start()
    thread.join(HANGS_SECONDS)
    if thread.is_alive():
        raise _Hangs(f"{getattr(call, '__name__', call)} has not returned in {HANGS_SECONDS:g} s")
    if raised:
        raise raised[0]


def _commit(producer: ConfluentProducer) -> Outcome:
    """Commit; FAIL if it is aborted instead. Raises ``KafkaException`` where nobody knows."""
    for attempt in range(COMMIT_ATTEMPTS_MAX):
        try:
            _call(producer.commit_transaction, CALL_SECONDS_MAX)
        except KafkaException as error:
            reason = error.args[0]
            if reason.txn_requires_abort():
                _call(producer.abort_transaction, CALL_SECONDS_MAX)
                return Outcome.FAIL
            if not reason.retriable() or attempt == COMMIT_ATTEMPTS_MAX - 1:
                raise
        else:
            return Outcome.OK
    raise AssertionError("the last attempt returns or raises")


def _end_confluent(producer: ConfluentProducer, attempt: _Attempt, *, is_given_up: bool) -> Outcome:
    """Commit or abort, and note what became of it. Raises ``KafkaException``."""
    try:
        if is_given_up:
            _call(producer.abort_transaction, CALL_SECONDS_MAX)
            outcome = Outcome.FAIL
        else:
            outcome = _commit(producer)
    except (KafkaException, _Hangs) as error:
        attempt.end(Outcome.FAIL if is_given_up else Outcome.INFO, error)
        raise
    attempt.end(outcome)
    return outcome


def write_transactions_with_librdkafka(scene: Scene, name: str, *, rate_per_s: float) -> None:
    """Run sessions of librdkafka's producer in the calling thread."""
    chance = scene.chance(name)
    _run_confluent_sessions(
        scene,
        name,
        lambda session: _confluent_write_session(scene, name, session, chance, rate_per_s),
        is_wanted=lambda: scene.is_writing,
    )


def _run_confluent_sessions(
    scene: Scene, name: str, run: Callable[[str], None], *, is_wanted: Callable[[], bool]
) -> None:
    """Run one session after the other in the calling thread for as long as they are wanted."""
    for count in range(SESSIONS_MAX):
        if not is_wanted():
            return
        session = f"{name}.{count}"
        try:
            run(session)
        except (KafkaException, _Hangs) as error:
            scene.note(session, f"starts over: {error}")
            time.sleep(0.3)


def _confluent_write_session(
    scene: Scene, name: str, session: str, chance: random.Random, rate_per_s: float
) -> None:
    end_s = scene.clock_s() + chance.uniform(*SESSION_SECONDS)
    is_abrupt = chance.random() < ABRUPT_PART
    producer = _confluent_producer(scene, name, session)
    number = 0
    while scene.is_writing:
        attempt = _Attempt.begin(scene, session, number)
        number += 1
        count = chance.randint(1, RECORDS_MAX)
        producer.begin_transaction()
        try:
            for _ in range(count):
                target = chance.choice(scene.transactional)
                value = attempt.record(target, "moved")
                producer.produce(target.topic, value, partition=target.partition)
        except (BufferError, KafkaException) as error:
            attempt.end(Outcome.FAIL, error)
            raise
        if scene.clock_s() > end_s:
            if is_abrupt:  # The next session aborts it, or its time-out does.
                producer.poll(0.1)
                producer.purge()
                attempt.end(Outcome.FAIL, "left open")
            else:
                _end_confluent(producer, attempt, is_given_up=True)
            return
        _end_confluent(producer, attempt, is_given_up=chance.random() < ABORTED_PART)
        time.sleep(count / rate_per_s)


def process_with_librdkafka(scene: Scene, name: str, source: str, progress: Progress) -> None:
    """Be a member of the pipeline with librdkafka's clients, in the calling thread."""
    chance = scene.chance(name)
    _run_confluent_sessions(
        scene,
        name,
        lambda session: _confluent_process_session(scene, name, session, source, progress, chance),
        is_wanted=lambda: scene.is_reading,
    )


def _confluent_process_session(
    scene: Scene,
    name: str,
    session: str,
    source: str,
    progress: Progress,
    chance: random.Random,
) -> None:
    end_s = scene.clock_s() + chance.uniform(*SESSION_SECONDS)
    producer = _confluent_producer(scene, name, session)
    consumer = ConfluentConsumer(
        {
            "bootstrap.servers": scene.bootstrap,
            "client.id": session,
            "group.id": PIPELINE_GROUP,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "partition.assignment.strategy": "range",
            "auto.offset.reset": "earliest",
            "session.timeout.ms": PIPELINE_SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": 500,
            "fetch.wait.max.ms": 200,
            "socket.timeout.ms": 3_000,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 2_000,
            "broker.address.family": "v4",
            "log_level": 0,
            "error_cb": lambda _: None,
        }
    )
    try:
        consumer.subscribe([source])
        number = 0
        while scene.is_reading and scene.clock_s() < end_s:
            messages = [m for m in consumer.consume(100, POLL_MS / 1000) if m.error() is None]
            if not messages:
                _note_committed(consumer, progress)
                continue
            attempt = _Attempt.begin(scene, session, number)
            number += 1
            producer.begin_transaction()
            try:
                for message in messages:
                    target = scene.piped[(message.partition() or 0) % len(scene.piped)]
                    value = attempt.record(target, (message.value() or b"").decode())
                    producer.produce(target.topic, value, partition=target.partition)
                positions = consumer.position(consumer.assignment())
                _call(
                    producer.send_offsets_to_transaction,
                    [position for position in positions if position.offset >= 0],
                    consumer.consumer_group_metadata(),
                    CALL_SECONDS_MAX,
                )
            except (BufferError, KafkaException, _Hangs) as error:
                attempt.end(Outcome.FAIL, error)
                raise
            if _end_confluent(producer, attempt, is_given_up=False) is not Outcome.OK:
                return  # The next session reads again from what is committed.
            _reach(progress, positions)
    finally:
        close_librdkafka(scene, session, consumer)


def _note_committed(consumer: ConfluentConsumer, progress: Progress) -> None:
    assigned = consumer.assignment()
    if assigned:
        _reach(progress, consumer.committed(assigned, timeout=CALL_SECONDS_MAX))


def _reach(progress: Progress, positions: Iterable[ConfluentTopicPartition]) -> None:
    for position in positions:
        if position.offset >= 0:
            progress.reach(PartitionKey(position.topic, position.partition), position.offset)
