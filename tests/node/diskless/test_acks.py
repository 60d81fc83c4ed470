"""Acks of diskless topics by a real node: nothing is acknowledged that the store has not."""

from __future__ import annotations

import itertools
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode
from tidelog_node.diskless.chain.chain_partition import NOTE_APPENDS_MAX
from tidelog_node.diskless.chain.pending_appends import PENDING_APPEND_BYTES

from tests.support.batches import batch_of
from tests.support.hand_chain import DISKLESS
from tests.support.held_folder import held
from tests.support.node_process import NodeProcess
from tests.support.wire_client import WireClient, frame, produce_body

BUFFER_BYTES = 1_048_576
CONFIG = {
    "diskless.append.puts.per.second.max": "0",
    "diskless.buffer.max.bytes": str(BUFFER_BYTES),
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
WAIT_SECONDS = 30.0
QUIET_SECONDS = 0.3  # several flushes' time
_names = itertools.count()


class Scene:
    """A node and its folder of objects."""

    def __init__(self, node: NodeProcess, objects: Path) -> None:
        self.node, self.objects = node, objects

    def create(self, **configs: str) -> str:
        """Create a topic of one partition and return its name."""
        name = f"t{next(_names)}"
        admin = AdminClient({"bootstrap.servers": self.node.address})
        admin.create_topics([NewTopic(name, 1, 1, config=configs)])[name].result(WAIT_SECONDS)
        with WireClient(self.node.port) as client:
            until(lambda: client.fetch(name, 0).error_code is ErrorCode.none)
        return name

    def client(self) -> WireClient:
        return WireClient(self.node.port)

    def values(self, topic: str, count: int, isolation: str = "read_committed") -> list[bytes]:
        """Return the values of the first ``count`` records that a consumer gets."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.node.address,
                "group.id": "none",
                "enable.auto.commit": False,
                "isolation.level": isolation,
            }
        )
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[bytes] = []
        deadline = time.monotonic() + WAIT_SECONDS
        while len(found) < count and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                value = message.value()
                assert value is not None
                found.append(value)
        consumer.close()
        return found


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "it does not come to that"
        time.sleep(0.02)


class Sending:
    """A Produce request that is under way."""

    def __init__(self, client: WireClient, topic: str, batch: bytes, **fields: int) -> None:
        self.answer: Any = None
        self._work = threading.Thread(target=self._run, args=(client, topic, batch, fields))
        self._work.start()

    def _run(self, client: WireClient, topic: str, batch: bytes, fields: dict[str, int]) -> None:
        self.answer = client.produce(topic, batch, **fields)

    @property
    def is_answered(self) -> bool:
        return not self._work.is_alive()

    def result(self) -> Any:
        self._work.join(WAIT_SECONDS)
        assert self.answer is not None
        return self.answer


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One node for all tests here."""
    folder = tmp_path_factory.mktemp("acks")
    objects = folder / "objects"
    with NodeProcess(folder / "node", object_store=f"file://{objects}", config=CONFIG) as process:
        yield Scene(process, objects)


@pytest.mark.parametrize("acks", [-1, 1])
def test_nothing_is_answered_or_read_before_the_store_has_it(scene: Scene, acks: int) -> None:
    topic = scene.create(**DISKLESS)
    with scene.client() as producer, scene.client() as consumer:
        with held(scene.objects):
            sending = Sending(producer, topic, batch_of(b"a"), acks=acks, timeout_ms=30_000)
            time.sleep(QUIET_SECONDS)
            assert not sending.is_answered
            answer = consumer.fetch(topic, 0)
            assert (answer.high_watermark, answer.records) == (0, b"")
        assert sending.result().error_code is ErrorCode.none
        assert consumer.fetch(topic, 0).high_watermark == 1
    assert scene.values(topic, 1) == [b"a"]


def test_acks_0_has_no_answer_and_is_read_once_the_store_has_it(scene: Scene) -> None:
    topic = scene.create(**DISKLESS)
    with scene.client() as client:
        with held(scene.objects):
            client.send(frame(0, 8, 1, produce_body(topic, batch_of(b"a"), acks=0), tags=b""))
            assert client.fetch(topic, 0).high_watermark == 0
        assert scene.values(topic, 1) == [b"a"]


def test_a_batch_sent_again_after_a_timeout_is_a_duplicate_with_its_offset(scene: Scene) -> None:
    topic = scene.create(**DISKLESS)
    batch = batch_of(b"a", producer=(4711, 0, 0))
    with scene.client() as client:
        assert client.produce(topic, batch_of(b"first"), acks=-1).base_offset == 0
        with held(scene.objects):
            late = client.produce(topic, batch, acks=-1, timeout_ms=200)
            assert late.error_code is ErrorCode.request_timed_out
            again = client.produce(topic, batch, acks=-1, timeout_ms=200)
            assert again.error_code is ErrorCode.request_timed_out
        answer = client.produce(topic, batch, acks=-1)
        assert (answer.error_code, answer.base_offset) == (ErrorCode.none, 1)
        assert client.produce(topic, batch_of(b"last"), acks=-1).base_offset == 2
    assert scene.values(topic, 3) == [b"first", b"a", b"last"]


def test_transactions_end_when_the_store_has_their_markers(scene: Scene) -> None:
    topic = scene.create(**DISKLESS)
    producer = Producer({"bootstrap.servers": scene.node.address, "transactional.id": topic})
    producer.init_transactions(WAIT_SECONDS)
    for value, is_commit in (("kept", True), ("dropped", False)):
        producer.begin_transaction()
        producer.produce(topic, value)
        assert producer.flush(WAIT_SECONDS) == 0
        if is_commit:
            with scene.client() as client:
                assert client.fetch(topic, 0, isolation_level=1).records == b""
            producer.commit_transaction(WAIT_SECONDS)
        else:
            producer.abort_transaction(WAIT_SECONDS)
    with scene.client() as client:
        assert client.produce(topic, batch_of(b"after"), acks=-1).base_offset == 4
    assert scene.values(topic, 2) == [b"kept", b"after"]
    assert scene.values(topic, 3, "read_uncommitted") == [b"kept", b"dropped", b"after"]


def test_a_commit_is_answered_once_the_store_has_its_marker(scene: Scene) -> None:
    topic = scene.create(**DISKLESS)
    producer = Producer({"bootstrap.servers": scene.node.address, "transactional.id": topic})
    producer.init_transactions(WAIT_SECONDS)
    producer.begin_transaction()
    producer.produce(topic, "a")
    assert producer.flush(WAIT_SECONDS) == 0
    with held(scene.objects):
        with pytest.raises(KafkaException) as late:
            producer.commit_transaction(QUIET_SECONDS)
        assert late.value.args[0].code() == KafkaError._TIMED_OUT
        with scene.client() as client:
            assert client.fetch(topic, 0, isolation_level=1).records == b""
    producer.commit_transaction(WAIT_SECONDS)
    assert scene.values(topic, 1) == [b"a"]


def test_producers_are_not_read_while_the_store_takes_nothing(scene: Scene) -> None:
    """Many clients push all they can; the log gets what may wait, and the sockets keep the rest."""
    topic, other = scene.create(**DISKLESS), scene.create()
    batch = batch_of(b"v" * 60_000)
    body = frame(0, 8, 1, produce_body(topic, batch, acks=-1, timeout_ms=60_000), tags=b"")

    def log_bytes() -> int:
        found = scene.node.data_dir.rglob(f"{topic}-0/*.log")
        return sum(path.stat().st_size for path in found)

    before_bytes = scene.node.rss_bytes()
    with ExitStack() as stack:
        clients = [stack.enter_context(scene.client()) for _ in range(20)]
        with held(scene.objects):
            for client in clients:
                client.socket.settimeout(QUIET_SECONDS)
                with suppress(TimeoutError):
                    for _ in range(20):
                        client.socket.sendall(body)
            until(lambda: log_bytes() >= BUFFER_BYTES / 2)
            time.sleep(QUIET_SECONDS)
            assert log_bytes() <= 4 * BUFFER_BYTES
            assert scene.node.rss_bytes() - before_bytes < 100 * BUFFER_BYTES
            with scene.client() as client:  # Others are served.
                assert client.produce(other, batch_of(b"a"), acks=-1).base_offset == 0
                assert client.fetch(topic, 0).high_watermark == 0
        for client in clients:
            client.socket.settimeout(WAIT_SECONDS)
            client.socket.shutdown(socket.SHUT_WR)
            while client.socket.recv(65_536):
                pass
    with scene.client() as client:
        until(lambda: client.fetch(topic, 0).high_watermark >= BUFFER_BYTES // 2 // 60_000)


def test_tiny_batches_are_bounded_by_what_their_acks_take(scene: Scene) -> None:
    """An ack that has timed out stays until its offset is committed, thousands of them too."""
    topic = scene.create(**DISKLESS)
    batch, request_count = batch_of(b"v" * 30), 800
    request = frame(0, 8, 1, produce_body(topic, batch, acks=-1, timeout_ms=2), tags=b"")
    with ExitStack() as stack:
        clients = [stack.enter_context(scene.client()) for _ in range(3)]
        with held(scene.objects):
            for client in clients:
                client.socket.settimeout(WAIT_SECONDS)
                sending = threading.Thread(
                    target=client.socket.sendall, args=(request * request_count,)
                )
                sending.start()
                for _ in range(request_count):
                    (size,) = struct.unpack(">i", received(client.socket, 4))
                    received(client.socket, size)
                sending.join()
            found = scene.node.data_dir.rglob(f"{topic}-0/*.log")
            count = sum(path.stat().st_size for path in found) // len(batch)
            # At most one turn of the loop goes beyond the limit.
            assert count * PENDING_APPEND_BYTES > BUFFER_BYTES // 2
            assert count <= BUFFER_BYTES // PENDING_APPEND_BYTES + NOTE_APPENDS_MAX
    with scene.client() as client:
        until(lambda: client.fetch(topic, 0).high_watermark == count)


def received(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = source.recv(size - len(data))
        assert part
        data += part
    return data
