"""A member of the pipeline under librdkafka keeps its place whatever the group does to it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupState,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.chaos.history import History, PipelineStep, Step
from tests.chaos.librdkafka import membership
from tests.chaos.librdkafka.link import Link, Order
from tests.chaos.librdkafka.membership import PipelineMember
from tests.chaos.scene import Scene
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually
from tools import kafka_broker
from tools.places import ToolAbsent

COMMITTED, PENDING = 5, 10
CONFIG = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
SECONDS_MAX = 60.0
_numbers = itertools.count()


@dataclass(frozen=True)
class Source:
    """A topic of two partitions with ``PENDING`` records each, and a group of its own."""

    address: str
    topic: str
    group: str

    def partition(self, number: int, offset: int) -> TopicPartition:
        return TopicPartition(self.topic, number, offset)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path_factory.mktemp("members") / "node", config=CONFIG) as node:
        yield node


@pytest.fixture
def source(node: NodeProcess) -> Source:
    return a_source(node.address)


def a_source(address: str) -> Source:
    topic = f"t{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_topics([NewTopic(topic, 2, 1)]).values():
        made.result()
    source = Source(address, topic, f"{topic}-group")
    write(source, PENDING)
    return source


def write(source: Source, count: int) -> None:
    producer = Producer({"bootstrap.servers": source.address, "linger.ms": 0})
    for number in range(count):
        for partition in (0, 1):
            producer.produce(source.topic, str(number), partition=partition)
    assert producer.flush(SECONDS_MAX) == 0


def a_consumer(source: Source, **settings: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": source.address,
            "group.id": source.group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "partition.assignment.strategy": "range",
            "heartbeat.interval.ms": 50,
            "session.timeout.ms": 6_000,
            "fetch.wait.max.ms": 50,
            **settings,
        }
    )


class Reading:
    """A member that reads in a thread of its own, which alone uses its consumer.

    ``take`` chooses from what ``consume`` returns, ``group`` says as whom that may be committed.
    """

    def __init__(
        self,
        consumer: Consumer,
        take: Callable[[list[Message]], list[Message]],
        group: Callable[[], Any],
    ) -> None:
        self.got: list[tuple[int, int]] = []  # partition, offset
        self.group: Any = None
        self._group_now = group
        self.problem: BaseException | None = None
        self._consumer = consumer
        self._take = take
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Reading:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._consumer.close()

    def _read(self) -> None:
        try:
            while not self._is_over.is_set():
                records = self._take(self._consumer.consume(100, 0.05))
                if records:
                    self.group = self._group_now()
                    self.got += [(one.partition() or 0, one.offset() or 0) for one in records]
        except Exception as error:
            self.problem = error


@contextmanager
def pending_offsets(source: Source, group: Any) -> Iterator[None]:
    """Have ``COMMITTED`` committed for both partitions and ``PENDING`` until the end."""
    producer = Producer(
        {
            "bootstrap.servers": source.address,
            "transactional.id": source.topic,
            "log_level": 0,
        }
    )
    producer.init_transactions(SECONDS_MAX)
    for offset in (COMMITTED, PENDING):
        producer.begin_transaction()
        producer.send_offsets_to_transaction(
            [source.partition(number, offset) for number in (0, 1)],
            group,
            SECONDS_MAX,
        )
        if offset == COMMITTED:
            producer.commit_transaction(SECONDS_MAX)
    yield
    producer.commit_transaction(SECONDS_MAX)


def someone_comes_and_goes(source: Source) -> None:
    """Have two rebalances, so that the others have the same partitions again."""
    other = a_consumer(source, **{"auto.offset.reset": "error"})
    other.subscribe([source.topic])
    eventually(lambda: not other.consume(1, 0.02) and bool(other.assignment()))
    time.sleep(0.3)  # Whoever has the other partition asks for its committed offset.
    other.close()


def is_settled(source: Source) -> bool:
    """Whether one member has both partitions, and no rebalance is under way."""
    admin = AdminClient({"bootstrap.servers": source.address})
    group = admin.describe_consumer_groups([source.group])[source.group].result()
    owned = [len(member.assignment.topic_partitions) for member in group.members]
    return group.state is ConsumerGroupState.STABLE and owned == [2]


@contextmanager
def a_member(source: Source) -> Iterator[tuple[Reading, Collection[PipelineStep]]]:
    """Give a member as the pipeline has them, and what it notes."""

    class Quiet(Link):
        def at(self, place: str) -> None:
            pass

    history = History()
    scene = Scene(source.address, 1, history, time.monotonic())
    order = Order("process", "k", "k.0", source.address, 1, scene.started_s, {})
    consumer = a_consumer(source, **{"auto.offset.reset": "error"})
    member = PipelineMember(scene, Quiet(), order, consumer)
    member.subscribe([source.topic])
    with Reading(consumer, member.records, lambda: member.group) as reading:
        yield reading, history.steps


def test_a_member_goes_on_behind_what_was_pending_while_the_group_changed(source: Source) -> None:
    with a_member(source) as (reading, steps):
        eventually(lambda: len(reading.got) == 2 * PENDING)
        with pending_offsets(source, reading.group):
            someone_comes_and_goes(source)
        # A rebalance behind the write would have the new records read once more.
        eventually(lambda: is_settled(source))
        write(source, 1)
        eventually(lambda: len(reading.got) >= 2 * PENDING + 2)
        assert sorted(reading.got[2 * PENDING :]) == [(0, PENDING), (1, PENDING)]
        assert reading.problem is None
        assigned = [step.places for step in steps if step.step is Step.ASSIGNED]
        assert {offset for *_, offset in assigned[0]} == {OFFSET_INVALID}
        assert assigned[-1] == ((source.topic, 0, PENDING), (source.topic, 1, PENDING))


def test_a_position_that_the_log_does_not_have_is_reported_and_ends_the_session(
    source: Source,
) -> None:
    beyond = a_consumer(source)
    beyond.commit(offsets=[source.partition(0, PENDING + 7)], asynchronous=False)
    beyond.close()
    with a_member(source) as (reading, steps):
        eventually(lambda: reading.problem is not None)
    (reset,) = [step for step in steps if step.step is Step.RESET]
    assert reset.places == ((source.topic, 0, PENDING + 7),)


def test_a_session_ends_in_order_where_its_committed_offsets_cannot_be_had(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What librdkafka raises in a callback comes out of ``consume`` as something else."""
    monkeypatch.setattr(membership, "CALL_SECONDS_MAX", 0.3)
    nobody = a_consumer(source)
    with pending_offsets(source, nobody.consumer_group_metadata()):
        with a_member(source) as (reading, steps):
            eventually(lambda: reading.problem is not None)
        assert isinstance(reading.problem, membership.CannotGoOn)
        assert Step.ASSIGNED not in {step.step for step in steps}
    nobody.close()


def without_errors(messages: list[Message]) -> list[Message]:
    return [message for message in messages if message.error() is None]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tidelog", "kafka"])
def test_librdkafka_itself_begins_again_there_with_any_broker(
    tmp_path: Path, kind: str, node: NodeProcess
) -> None:
    """Why members ask for committed offsets themselves: fails once librdkafka is mended."""
    with ExitStack() as stack:
        address = node.address
        if kind == "kafka":
            try:
                port = stack.enter_context(kafka_broker.serve(tmp_path / "kafka", CONFIG))
            except ToolAbsent as absent:
                pytest.skip(str(absent))
            address = f"127.0.0.1:{port}"
        source = a_source(address)
        consumer = a_consumer(source, **{"auto.offset.reset": "earliest"})
        consumer.subscribe([source.topic])
        group = consumer.consumer_group_metadata
        with Reading(consumer, without_errors, group) as reading:
            eventually(lambda: len(reading.got) == 2 * PENDING)
            with pending_offsets(source, reading.group):
                someone_comes_and_goes(source)
                eventually(lambda: len(reading.got) > 2 * PENDING)
                assert reading.got[2 * PENDING][1] == 0
