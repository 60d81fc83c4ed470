"""Buffers of answers: shared by a client's connections, and given back after a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from tidelog import Consumer
from tidelog.reused_memory import thread_memory
from tidelog.wire.frame_buffers import KEPT_BYTES_MAX, KEPT_S, FrameBuffers

T = TypeVar("T")


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose time is set."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def pass_to(self, now: float) -> None:
        self.now = now
        self.do(lambda: None)

    def do(self, action: Callable[[], T]) -> T:
        """Return what the action does in the loop."""

        async def acted() -> T:
            await asyncio.sleep(0)  # What is due comes first.
            return action()

        return self.run_until_complete(acted())


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def test_an_answer_gets_as_much_as_it_has(loop: Loop) -> None:
    buffers = FrameBuffers()
    for size_bytes in (100, 70_000, 3_000_000):
        view = loop.do(lambda: buffers.take(size_bytes))  # noqa: B023
        assert len(view) == size_bytes
        view[:] = b"x" * size_bytes


def test_the_memory_is_given_back_after_a_while_without_large_answers(loop: Loop) -> None:
    buffers = FrameBuffers()
    loop.do(lambda: buffers.take(100))
    loop.pass_to(KEPT_S - 1)
    loop.do(lambda: buffers.take(100))
    loop.pass_to(KEPT_S)
    assert buffers.kept_bytes, "it was used a second ago"
    thread_memory().take(100)
    loop.pass_to(2 * KEPT_S - 1)
    assert buffers.kept_bytes == 0
    assert thread_memory().kept_bytes == 0, "and what was decoded into"
    loop.do(lambda: buffers.take(100))
    assert buffers.kept_bytes
    loop.pass_to(4 * KEPT_S)
    assert buffers.kept_bytes == 0


def test_a_closed_client_keeps_none(loop: Loop) -> None:
    buffers = FrameBuffers()
    view = loop.do(lambda: buffers.take(100))
    buffers.close()
    assert buffers.kept_bytes == 0
    assert len(view) == 100
    loop.pass_to(100.0)


async def test_a_consumer_with_a_small_limit_for_records_keeps_no_more_than_that() -> None:
    """The limit of what is fetched ahead bounds what is kept for it, over all nodes."""
    small = Consumer("localhost:1", prefetch_bytes_max=2 * 1024 * 1024)
    usual = Consumer("localhost:1")
    for consumer, limit in ((small, 2 * 1024 * 1024), (usual, KEPT_BYTES_MAX)):
        buffers = consumer._cluster._buffers
        held = [buffers.take(1024 * 1024) for _ in range(50)]
        assert 0 < buffers.kept_bytes <= limit
        del held
        assert buffers.kept_bytes <= limit
        await consumer.close()
        assert buffers.kept_bytes == 0
