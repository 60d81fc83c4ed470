"""The plain faces: the same clients without an event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import suppress

import pytest
from tidelog import Admin, Consumer, Producer, RebalanceListener, SyncDelivery, TopicPartition
from tidelog.errors import (
    ClientClosed,
    ConnectionFailed,
    InvalidRequest,
    MessageTooLarge,
    NotAssigned,
    TidelogError,
    TopicAlreadyExists,
)

from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually


def test_records_go_there_and_come_back(node: NodeProcess, topic: str, name: str) -> None:
    with Producer(node.address).sync() as producer:
        deliveries = [producer.send(topic, b"%d" % n, key=b"k") for n in range(5_000)]
        assert deliveries[-1].result(60).offset == 4_999
        assert producer.send_and_wait(topic, b"5000").offset == 5_000
        assert producer.partitions_for(topic) == 1
    with Consumer(
        node.address, topics=topic, group_id=name, auto_offset_reset="earliest"
    ).sync() as consumer:
        seen = []
        for record in consumer:
            seen.append(int(record.value or b""))
            if len(seen) == 3_000:
                break
        seen += [int(r.value or b"") for r in consumer.poll(max_records=500, timeout_ms=5_000)]
        assert seen == list(range(len(seen)))
        consumer.commit()
        committed = consumer.committed([(topic, 0)])[TopicPartition(topic, 0)]
        assert committed is not None
        assert committed.offset == len(seen)
        consumer.seek((topic, 0), 4_990)
        assert next(iter(consumer)).offset == 4_990
        with pytest.raises(NotAssigned):
            consumer.seek((topic, 5), 0)
        assert consumer.assignment() == {(topic, 0)}


def test_many_threads_may_send(node: NodeProcess, topic: str) -> None:
    with Producer(node.address, buffer_memory_bytes=200_000).sync() as producer:
        lists: list[list[SyncDelivery]] = [[] for _ in range(4)]

        def send(thread: int) -> None:
            for n in range(3_000):
                lists[thread].append(producer.send(topic, b"%d-%d" % (thread, n)))

        threads = [threading.Thread(target=send, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
        assert all(delivery.done() for part in lists for delivery in part)
        offsets = [[delivery.result().offset for delivery in part] for part in lists]
    for part in offsets:
        assert part == sorted(part)
    assert sorted(offset for part in offsets for offset in part) == list(range(12_000))


def test_errors_are_raised_where_they_are_asked_for(node: NodeProcess, topic: str) -> None:
    with Producer(node.address).sync() as producer:
        too_large = producer.send(topic, b"x" * 2_000_000)
        wrong = producer.send(topic, "text")  # type: ignore[arg-type]
        right = producer.send(topic, b"v")
        with pytest.raises(MessageTooLarge):
            too_large.result(60)
        assert isinstance(wrong.exception(10), InvalidRequest)
        assert right.exception(10) is None
    with pytest.raises(ClientClosed):
        producer.send(topic, b"v")
    with Admin(node.address).sync() as admin, pytest.raises(TopicAlreadyExists):
        admin.create_topic(topic)
    with pytest.raises(ConnectionFailed), Admin("127.0.0.1:1", request_timeout_ms=200).sync():
        pass


def test_a_partitioner_that_fails_refuses_its_record_and_no_other(
    node: NodeProcess, topic: str
) -> None:
    def choose(topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        return {b"right": 0}[value or b""]

    with Producer(node.address, partitioner=choose).sync() as producer:
        wrong = producer.send(topic, b"wrong")
        right = producer.send(topic, b"right")
        error = wrong.exception(60)
        assert isinstance(error, InvalidRequest)
        assert isinstance(error.__cause__, KeyError)
        assert right.result(60).offset == 0


def test_an_unacknowledged_delivery_times_out(own_node: NodeProcess) -> None:
    producer = Producer(own_node.address, delivery_timeout_ms=3_000, request_timeout_ms=500).sync()
    with producer:
        while True:
            with suppress(TidelogError):  # A busy node may be late.
                producer.send_and_wait("t", b"v")
                break
        own_node.kill()
        delivery = producer.send("t", b"v")
        with pytest.raises(TimeoutError):
            delivery.result(0.2)
        assert not delivery.done()


def test_a_record_left_by_an_exception_comes_again(
    node: NodeProcess, topic: str, name: str
) -> None:
    with Producer(node.address).sync() as producer:
        for n in range(20):
            producer.send(topic, b"%d" % n)
    options = {"topics": topic, "group_id": name, "auto_offset_reset": "earliest"}

    def fail_at_four() -> None:
        with Consumer(node.address, **options).sync() as consumer:  # type: ignore[arg-type]
            for record in consumer:
                if record.offset == 4:
                    raise LookupError

    with pytest.raises(LookupError):
        fail_at_four()
    with Consumer(node.address, **options).sync() as consumer:  # type: ignore[arg-type]
        assert next(iter(consumer)).offset == 4


def test_listeners_may_block_and_call_the_consumer(
    node: NodeProcess, topic: str, name: str
) -> None:
    with Producer(node.address).sync() as producer:
        for _ in range(10):
            producer.send(topic, b"v")
    consumer = Consumer(node.address, group_id=name, enable_auto_commit=False).sync()
    threads = []

    class Calls(RebalanceListener):
        def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
            threads.append(threading.current_thread())
            for partition in partitions:
                consumer.seek(partition, 6)

        def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
            consumer.commit()

    consumer.subscribe([topic], listener=Calls())
    with consumer:
        assert consumer.poll(max_records=1, timeout_ms=10_000)[0].offset == 6
    assert threads[0] is not threading.main_thread()
    with Admin(node.address).sync() as admin:
        assert admin.list_group_offsets(name)[TopicPartition(topic, 0)].offset == 7


def test_callbacks_in_the_clients_thread_cannot_wait_for_it(node: NodeProcess, topic: str) -> None:
    with Admin(node.address).sync() as admin:
        outcome: list[BaseException] = []

        def ask() -> None:
            try:
                admin.list_topics()
            except InvalidRequest as error:
                outcome.append(error)

        admin.thread.call_soon(ask)
        admin.list_topics()
        assert outcome


async def test_faces_work_inside_a_running_loop(node: NodeProcess, topic: str) -> None:
    """As in a notebook."""
    with Producer(node.address).sync() as producer:
        assert producer.send(topic, b"v").result(60).offset == 0


def test_threads_end_with_their_clients(node: NodeProcess) -> None:
    before = set(threading.enumerate())  # Some may be of other tests, and end meanwhile.
    faces: list[Callable[[], None]] = []
    for client in (Producer(node.address), Consumer(node.address), Admin(node.address)):
        face = client.sync()
        face.start()
        faces.append(face.close)
    new = set(threading.enumerate()) - before
    assert len(new) == 3
    for close in faces:
        close()
        close()
    eventually(lambda: not any(thread.is_alive() for thread in new), "they end")
