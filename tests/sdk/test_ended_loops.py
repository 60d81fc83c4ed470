"""Clients whose tasks the program cancels as it ends, or whose event loop has ended."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import textwrap
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
from tidelog import Admin, Consumer, Producer
from tidelog.errors import ClientClosed, InvalidRequest

from tests.sdk.scripted_node import ScriptedNode
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually_async

WAITED_S = 30.0  # for what a fault would keep from happening at all


async def cancel_all() -> None:
    """Cancel every other task and wait for them, as programs do when they are told to end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def values(address: str, topic: str, count: int) -> list[bytes | None]:
    """Return the topic's values, once there are so many."""
    found: list[bytes | None] = []
    async with Consumer(address) as consumer, asyncio.timeout(WAITED_S):
        consumer.assign([(topic, 0)])
        consumer.seek((topic, 0), 0)
        while len(found) < count:
            found += [record.value for record in await consumer.poll()]
        found += [record.value for record in await consumer.poll(timeout_ms=100)]
    return found


def in_new_loop(work: Coroutine[Any, Any, Any]) -> Any:
    """Run it in a loop that is closed without cancelling what is left."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(asyncio.wait_for(work, WAITED_S))
    finally:
        loop.close()


def ends_loops(test: Any) -> Any:
    """Mark a test whose loops end with connections and tasks: Python tells of them as it likes."""
    for mark in (
        pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
        pytest.mark.filterwarnings("ignore::ResourceWarning"),
        pytest.mark.usefixtures("collected"),
    ):
        test = mark(test)
    return test


@pytest.fixture
def collected() -> Iterator[None]:
    """What the test leaves is collected before the next test."""
    yield
    gc.collect()


# -- tasks that are cancelled --


@pytest.mark.parametrize("acks", ["all", 1, 0])
@pytest.mark.parametrize("ending", ["close", "flush", "send"])
async def test_records_of_a_producer_whose_tasks_were_cancelled_are_sent(
    node: NodeProcess, topic: str, acks: int | str, ending: str
) -> None:
    """Nothing sent them any more, and ``close`` waited for ever."""
    producer = Producer(node.address, linger_ms=300, acks=acks)
    await producer.send_and_wait(topic, b"0")
    left = [await producer.send(topic, b"1") for _ in range(3)]
    await cancel_all()
    async with asyncio.timeout(WAITED_S):
        if ending == "flush":
            await producer.flush()
        elif ending == "send":
            await producer.send_and_wait(topic, b"2")
        await producer.close()
        for delivery in left:
            await delivery
    expected = [b"0", b"1", b"1", b"1", *([b"2"] if ending == "send" else [])]
    assert await values(node.address, topic, len(expected)) == expected


async def test_a_producer_goes_on_while_its_tasks_are_cancelled_again_and_again(
    node: NodeProcess, topic: str
) -> None:
    async with Producer(node.address, linger_ms=1, batch_size_bytes=200) as producer:
        deliveries = []
        for number in range(20):
            deliveries += [await producer.send(topic, b"%d" % number) for _ in range(50)]
            if number % 2:
                await asyncio.sleep(0.003)
            await cancel_all()
        async with asyncio.timeout(WAITED_S):
            await producer.flush()
        assert [(await one).offset for one in deliveries] == list(range(1_000))
    assert len(await values(node.address, topic, 1_000)) == 1_000


async def test_a_transaction_whose_tasks_are_cancelled_commits_nevertheless(
    node: NodeProcess, topic: str, name: str
) -> None:
    async with (
        Producer(node.address, transactional_id=name, linger_ms=1_000) as producer,
        asyncio.timeout(WAITED_S),
    ):
        async with producer.transaction():
            delivery = await producer.send(topic, b"v")
            await cancel_all()
        assert (await delivery).offset == 0


async def test_metadata_is_fetched_after_all_tasks_were_cancelled(
    node: NodeProcess, name: str
) -> None:
    async with Admin(node.address) as admin, Producer(node.address) as producer:
        await producer.start()
        await cancel_all()
        await admin.create_topic(name)
        async with asyncio.timeout(WAITED_S):
            assert (await producer.send_and_wait(name, b"v")).offset == 0


async def test_a_consumer_whose_tasks_were_cancelled_says_so_and_leaves_its_group(
    node: NodeProcess, topic: str, name: str
) -> None:
    """It returned no record any more, and no error."""
    async with Producer(node.address) as producer:
        await producer.send_and_wait(topic, b"v")
    consumer = Consumer(node.address, topics=topic, group_id=name, auto_offset_reset="earliest")
    assert await consumer.poll(timeout_ms=10_000)
    await cancel_all()
    with pytest.raises(ClientClosed, match="were cancelled"):
        await consumer.poll(timeout_ms=1_000)
    async with asyncio.timeout(WAITED_S):
        await consumer.close()
    async with Admin(node.address) as admin:
        (group,) = (await admin.describe_groups([name])).values()
        assert group.members == ()
        (committed,) = (await admin.list_group_offsets(name)).values()
        assert committed.offset == 1


async def test_a_client_that_closes_while_it_starts_leaves_no_task() -> None:
    """Its metadata were fetched on and on if the last answer of the start came just then."""
    async with ScriptedNode() as scripted:
        before = asyncio.all_tasks()
        for turns in range(0, 40, 3):
            for client in (
                Consumer(scripted.address, group_id="g"),
                Producer(scripted.address),
                Producer(scripted.address, transactional_id="x"),
                Admin(scripted.address),
            ):
                starting = asyncio.ensure_future(client.start())
                for _ in range(turns):
                    await asyncio.sleep(0)
                await client.close()
                await asyncio.wait([starting], timeout=WAITED_S)
                assert starting.done(), turns
                if (error := starting.exception()) is not None:
                    assert isinstance(error, ClientClosed), turns
        await eventually_async(
            lambda: all("_serve" in repr(task) for task in asyncio.all_tasks() - before),
            "no task of a client is left",
        )


# -- loops that end --


@ends_loops
def test_a_producer_of_an_ended_loop_says_so_in_the_next(node: NodeProcess, topic: str) -> None:
    """As in a function that runs a loop for each call: the second one waited for ever."""
    producer = Producer(node.address)

    async def send() -> int:
        return (await producer.send_and_wait(topic, b"v")).offset

    assert asyncio.run(asyncio.wait_for(send(), WAITED_S)) == 0
    for run in (asyncio.run, in_new_loop):
        with pytest.raises(InvalidRequest, match="another event loop"):
            run(asyncio.wait_for(send(), WAITED_S))
    asyncio.run(asyncio.wait_for(producer.close(), WAITED_S))


@ends_loops
def test_a_producer_of_a_closed_loop_says_so_in_the_next(node: NodeProcess, topic: str) -> None:
    producer = Producer(node.address)

    async def send() -> int:
        return (await producer.send_and_wait(topic, b"v")).offset

    assert in_new_loop(send()) == 0
    with pytest.raises(InvalidRequest, match="another event loop"):
        in_new_loop(send())
    in_new_loop(producer.close())


@ends_loops
def test_a_consumer_of_an_ended_loop_says_so_in_the_next(
    node: NodeProcess, topic: str, name: str
) -> None:
    with Producer(node.address).sync() as producer:
        producer.send_and_wait(topic, b"v")
    consumer = Consumer(node.address, topics=topic, group_id=name, auto_offset_reset="earliest")

    async def poll() -> int:
        return len(await consumer.poll(timeout_ms=10_000))

    assert asyncio.run(asyncio.wait_for(poll(), WAITED_S)) == 1
    with pytest.raises((ClientClosed, InvalidRequest)):
        asyncio.run(asyncio.wait_for(poll(), WAITED_S))
    asyncio.run(asyncio.wait_for(consumer.close(), WAITED_S))


@ends_loops
def test_an_admin_of_an_ended_loop_says_so_in_the_next(node: NodeProcess) -> None:
    admin = Admin(node.address)

    async def ask() -> None:
        await admin.list_topics()

    asyncio.run(asyncio.wait_for(ask(), WAITED_S))
    with pytest.raises(InvalidRequest, match="another event loop"):
        asyncio.run(asyncio.wait_for(ask(), WAITED_S))
    asyncio.run(asyncio.wait_for(admin.close(), WAITED_S))


# -- programs that end --


def ended(program: str, *arguments: str) -> str:
    """Run a program to its end; return what it says on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=WAITED_S * 2,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


async def test_records_of_a_plain_producer_that_is_left_open_are_sent_at_the_programs_end(
    node: NodeProcess, topic: str
) -> None:
    """They were lost without a word."""
    program = """
        import sys
        from tidelog import Producer

        producer = Producer(sys.argv[1], linger_ms=200).sync()
        for number in range(100):
            producer.send(sys.argv[2], b"%d" % number)
        """
    assert ended(program, node.address, topic) == ""
    assert await values(node.address, topic, 100) == [b"%d" % number for number in range(100)]


def test_a_program_ends_although_no_node_takes_the_records_of_its_open_producer() -> None:
    program = """
        import sys
        from tidelog import Producer
        from tidelog.producing import sync_producer

        sync_producer.EXIT_SECONDS_MAX = 0.5
        producer = Producer(sys.argv[1], bootstrap_timeout_ms=60_000).sync()
        producer.send("t", b"v")
        """
    assert "records were not sent, close the producer" in ended(program, "127.0.0.1:1")


def test_a_program_is_told_that_its_loop_ended_before_its_producer_was_closed(
    node: NodeProcess, topic: str
) -> None:
    program = """
        import asyncio, sys
        from tidelog import Producer

        async def main():
            producer = Producer(sys.argv[1], linger_ms=1_000)
            await producer.send_and_wait(sys.argv[2], b"v")
            await producer.send(sys.argv[2], b"v")

        asyncio.run(main())
        """
    assert "flush or close it to send its records" in ended(program, node.address, topic)
