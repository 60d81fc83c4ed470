"""Programs that close twice, fork, interrupt a call, or send from threads while others close."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tidelog import Consumer, Producer, TopicPartition
from tidelog.client import Client
from tidelog.consuming.reader import RecordReader
from tidelog.consuming.sync_consumer import Polling, SyncConsumer
from tidelog.errors import ClientClosed, ConnectionFailed, InvalidRequest, TidelogError
from tidelog.producing import sync_producer
from tidelog.sync import LoopThread, SyncClient

from tests.support.node_process import NodeProcess

WAITED_S = 30  # for what a fault would keep from happening at all


def in_thread(function: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    """Run the function in a thread: it, and what the function raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, raised


def ended(thread: threading.Thread) -> bool:
    thread.join(WAITED_S)
    return not thread.is_alive()


@contextmanager
def silent_server() -> Iterator[str]:
    """An address whose server takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def interrupts() -> Iterator[None]:
    """SIGINT raises ``KeyboardInterrupt``, whatever it did before."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def in_child(function: Callable[[], object]) -> bool:
    """Run the function in a forked process; return whether it returned true there, in time."""
    child = os.fork()
    if child == 0:
        signal.alarm(WAITED_S)  # A child that hangs is ended.
        try:
            os._exit(0 if function() else 3)
        finally:
            os._exit(4)
    return os.waitpid(child, 0)[1] == 0


def is_refused(call: Callable[[], object]) -> bool:
    """Whether the call raises ``ClientClosed`` that speaks of the fork."""
    try:
        call()
    except ClientClosed as error:
        return "forked" in str(error)
    return False


# -- threads --


def test_a_call_during_which_another_thread_closes_ends_with_a_typed_error() -> None:
    """Its answer could not come any more, and it waited for ever."""
    thread = LoopThread("test")
    has_begun = threading.Event()

    async def wait() -> None:
        has_begun.set()
        await asyncio.get_running_loop().create_future()

    caller, raised = in_thread(lambda: thread.run(wait()))
    assert has_begun.wait(WAITED_S)
    thread.close()
    assert ended(caller)
    (error,) = raised
    assert isinstance(error, ClientClosed)
    with pytest.raises(ClientClosed):
        thread.run(wait())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_callback_that_exits_closes_the_thread_and_is_no_fork() -> None:
    thread = LoopThread("test")
    thread.call_soon(sys.exit)
    assert ended(thread._thread)

    async def nothing() -> None: ...

    for call in (lambda: thread.run(nothing()), lambda: thread.call_soon(sys.exit)):
        with pytest.raises(ClientClosed, match="the client is closed"):
            call()
    thread.close()


class Slow(Client):
    """A client that takes long to close; a second ``close`` returns at once, as of all clients."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_end = asyncio.Event()
        self.has_ended = False

    async def start(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Wait."""
        if not self.has_begun.is_set():
            self.has_begun.set()
            await self.may_end.wait()
            self.has_ended = True


def test_a_second_thread_that_closes_waits_for_the_first() -> None:
    client = Slow()
    face = SyncClient(client)
    first, raised = in_thread(face.close)
    assert client.has_begun.wait(WAITED_S)
    second, raised_too = in_thread(face.close)
    second.join(0.2)
    face.thread.call_soon(client.may_end.set)
    assert ended(first)
    assert ended(second)
    assert raised == raised_too == []
    assert client.has_ended


def test_a_signal_handler_may_close_what_is_being_closed() -> None:
    client = Slow()
    face = SyncClient(client)

    def handler(*_: object) -> None:
        face.close()
        face.thread.call_soon(client.may_end.set)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        waker, _ = in_thread(
            lambda: (
                client.has_begun.wait(WAITED_S),
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1),
            )
        )
        face.close()
        assert ended(waker)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert client.has_ended


def test_closing_from_a_callback_in_the_clients_thread_is_refused_and_another_thread_may() -> None:
    client = Slow()
    face = SyncClient(client)
    raised: list[BaseException] = []

    def callback() -> None:
        try:
            face.close()
        except InvalidRequest as error:
            raised.append(error)
        client.has_begun.set()

    face.thread.call_soon(callback)
    assert client.has_begun.wait(WAITED_S)
    face.close()
    assert len(raised) == 1


def test_threads_that_wait_to_send_are_told_that_the_producer_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sync_producer, "HANDED_OVER_MAX", 5)
    with silent_server() as address:
        producer = Producer(
            address, request_timeout_ms=1_500, delivery_timeout_ms=2_000, retry_backoff_ms=10
        ).sync()

        def send_on() -> None:
            while True:
                producer.send("t", b"v")

        senders = [in_thread(send_on) for _ in range(2)]
        time.sleep(0.2)  # They wait by now, or soon.
        producer.close()
        for sender, raised in senders:
            assert ended(sender)
            (error,) = raised
            assert isinstance(error, ClientClosed)
        for _ in range(10):
            with pytest.raises(ClientClosed):
                producer.send("t", b"v")


def test_records_for_a_node_that_is_not_there_fail_together() -> None:
    """One by one they took as long as an attempt to connect each, and ``close`` waited for all."""
    with silent_server() as address:
        producer = Producer(
            address, request_timeout_ms=500, delivery_timeout_ms=1_000, retry_backoff_ms=10
        ).sync()
        deliveries = [producer.send("t", b"v") for _ in range(500)]
        assert isinstance(deliveries[-1].exception(WAITED_S), ConnectionFailed)
        closer, _ = in_thread(producer.close)
        assert ended(closer)
        assert all(isinstance(one.exception(0), TidelogError) for one in deliveries)


async def test_a_client_that_closes_while_it_connects_ends_the_call_with_a_typed_error() -> None:
    """The end of the connection's task once looked like a cancellation of the caller's."""
    with silent_server() as address:
        consumer = Consumer(address, group_id="g")
        consumer.assign([("t", 0)])
        starting = asyncio.create_task(consumer.start())
        await asyncio.sleep(0.1)
        await consumer._cluster.close()
        with pytest.raises(ClientClosed):
            await starting
        await consumer.close()


# -- forks --


def test_a_forked_process_is_told_that_the_client_is_the_parents(
    node: NodeProcess, topic: str, name: str
) -> None:
    """No thread would ever answer there."""
    with (
        Producer(node.address).sync() as producer,
        Consumer(
            node.address, topics=topic, group_id=name, auto_offset_reset="earliest"
        ).sync() as consumer,
    ):
        producer.send_and_wait(topic, b"before")
        assert in_child(
            lambda: (
                is_refused(lambda: producer.send(topic, b"v"))
                and is_refused(lambda: producer.send_and_wait(topic, b"v"))
                and is_refused(producer.flush)
                and is_refused(consumer.poll)
                and is_refused(lambda: next(iter(consumer)))
                and (producer.close(), consumer.close()) == (None, None)
                and (producer.close(), consumer.close()) == (None, None)
            )
        )
        producer.send_and_wait(topic, b"after")
        found: list[bytes | None] = []
        deadline = time.monotonic() + WAITED_S
        while len(found) < 2 and time.monotonic() < deadline:
            found += [one.value for one in consumer.poll()]
        assert found == [b"before", b"after"]


@pytest.mark.parametrize("held", ["closing", "calling"])
def test_a_forked_process_leaves_a_client_that_another_thread_was_using(held: str) -> None:
    """The lock of that thread is held for ever in the child: the end of ``with`` waited for it."""
    slow = Slow()
    slow.may_end.set()
    client = SyncClient(slow)
    lock = client._closing if held == "closing" else client.thread._lock
    is_held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            is_held.set()
            may_end.wait(WAITED_S)

    holder, _ = in_thread(hold)
    try:
        assert is_held.wait(WAITED_S)
        assert in_child(lambda: (client.close(), client.close()) == (None, None))
    finally:
        may_end.set()
        assert ended(holder)
        client.close()


def test_a_fork_of_a_forked_process_is_one_too() -> None:
    thread = LoopThread("test")

    async def nothing() -> None: ...

    def is_left() -> bool:
        mine = LoopThread("child")
        mine.run(nothing())
        return (
            is_refused(lambda: thread.run(nothing()))
            and in_child(lambda: all(is_refused(one.check_running) for one in (thread, mine)))
            and mine.run(nothing()) is None
        )

    assert in_child(is_left)
    thread.run(nothing())
    thread.close()


def test_a_forked_process_may_have_a_client_of_its_own(node: NodeProcess, topic: str) -> None:
    def send() -> bool:
        with Producer(node.address).sync() as producer:
            return producer.send_and_wait(topic, b"v").offset == 0

    with Producer(node.address).sync():
        assert in_child(send)


# -- interrupts --


class Interruption:
    """Interrupts the next poll that has taken records."""

    is_armed = False

    @classmethod
    def after(cls, taken: list[Any]) -> list[Any]:
        """Return what was taken, and interrupt the program's thread."""
        if taken and cls.is_armed:
            cls.is_armed = False
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return taken


async def _poll(client: RecordReader, **options: Any) -> list[Any]:
    return Interruption.after(await client.poll(**options))


async def _poll_arrow(client: RecordReader, **options: Any) -> list[Any]:
    return Interruption.after(await client.poll_arrow(**options))


class Interrupted(SyncConsumer):
    """A consumer whose polls may be interrupted at the worst moment."""

    poll = Polling(_poll)  # type: ignore[assignment]
    poll_arrow = Polling(_poll_arrow)  # type: ignore[assignment]

    def until_interrupted(self, poll: str) -> None:
        """Poll until the interrupt comes."""
        Interruption.is_armed = True
        with interrupts():
            for _ in range(WAITED_S):
                getattr(self, poll)(timeout_ms=1_000)
                time.sleep(0)  # The interrupt may come a moment later.


@pytest.mark.parametrize("polls", ["poll", "poll_arrow"])
def test_records_that_an_interrupt_takes_from_a_poll_are_read_again(
    node: NodeProcess, topic: str, name: str, polls: str
) -> None:
    """They were committed by ``close``, and no consumer ever saw them."""
    with Producer(node.address).sync() as producer:
        for n in range(20):
            producer.send(topic, b"%d" % n)
        producer.flush()

    def offsets(found: list[Any]) -> list[int]:
        if polls == "poll":
            return [one.offset for one in found]
        return [offset for one in found for offset in one.column("offset").to_pylist()]

    options: dict[str, Any] = {"group_id": name, "auto_offset_reset": "earliest"}
    consumer = Interrupted(Consumer(node.address, topics=topic, **options))
    try:
        with pytest.raises(KeyboardInterrupt):
            consumer.until_interrupted(polls)
    finally:
        consumer.close()
    with Consumer(node.address, topics=topic, **options).sync() as other:
        committed = other.committed([(topic, 0)])[TopicPartition(topic, 0)]
        assert committed is None or committed.offset == 0
        found: list[int] = []
        for _ in range(WAITED_S):
            found += offsets(getattr(other, polls)(timeout_ms=1_000))
            if len(found) == 20:
                break
        assert found == list(range(20))


def test_a_poll_after_an_interrupt_has_the_same_records(
    node: NodeProcess, topic: str, name: str
) -> None:
    with Producer(node.address).sync() as producer:
        producer.send_and_wait(topic, b"v")
    options: dict[str, Any] = {"group_id": name, "auto_offset_reset": "earliest"}
    consumer = Interrupted(Consumer(node.address, topics=topic, **options))
    try:
        with pytest.raises(KeyboardInterrupt):
            consumer.until_interrupted("poll")
        found = []
        for _ in range(WAITED_S):
            found += [one.offset for one in consumer.poll(timeout_ms=1_000)]
            if found:
                break
        assert found == [0]
    finally:
        consumer.close()
