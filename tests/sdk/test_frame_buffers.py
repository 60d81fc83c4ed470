"""Buffers of answers: used again once their records are not, and given back after a while."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tidelog.wire.frame_buffers import KEPT_MAX, KEPT_S, KEPT_SIZE_BYTES_MAX, FrameBuffers


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose time is set."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def pass_to(self, now: float) -> None:
        self.now = now
        self.call_soon(self.stop)
        self.run_forever()


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def test_a_buffer_is_used_again_when_its_last_view_is_gone(loop: Loop) -> None:
    buffers = FrameBuffers(loop)
    first = buffers.take(1_000)
    obj = first.obj
    records = first[10:20]
    del first
    second = buffers.take(1_000)
    assert second.obj is not obj, "records of the first are in use"
    del records
    third = buffers.take(900)
    assert third.obj is obj
    assert len(third) == 900
    third[:] = b"x" * 900


def test_a_larger_answer_gets_a_larger_buffer_in_the_place_of_a_free_one(loop: Loop) -> None:
    buffers = FrameBuffers(loop)
    small = buffers.take(100).obj
    large = buffers.take(200)
    assert (len(large), large.obj is not small) == (200, True)
    assert [len(one) for one in buffers._kept] == [200]


def test_few_buffers_of_limited_size_are_kept(loop: Loop) -> None:
    buffers = FrameBuffers(loop)
    held = [buffers.take(100) for _ in range(KEPT_MAX + 4)]
    assert len({id(one.obj) for one in held}) == KEPT_MAX + 4
    assert len(buffers._kept) == KEPT_MAX
    held.clear()
    buffers.take(KEPT_SIZE_BYTES_MAX + 1)
    assert max(map(len, buffers._kept)) <= KEPT_SIZE_BYTES_MAX


def test_the_memory_is_given_back_after_a_while_without_large_answers(loop: Loop) -> None:
    buffers = FrameBuffers(loop)
    buffers.take(100)
    loop.pass_to(KEPT_S - 1)
    buffers.take(100)
    loop.pass_to(KEPT_S)
    assert buffers._kept, "it was used a second ago"
    loop.pass_to(2 * KEPT_S - 1)
    assert buffers._kept == []
    assert buffers._timer is None


def test_a_closed_connection_keeps_none(loop: Loop) -> None:
    buffers = FrameBuffers(loop)
    view = buffers.take(100)
    buffers.close()
    assert buffers._kept == []
    assert len(view) == 100
    loop.pass_to(100.0)
