"""Control requests that end their connection leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest
from tidelog_node.answers import CloseConnection, ControlReply, Reply
from tidelog_node.connections.answer_queue import AnswerQueue
from tidelog_node.connections.control_requests import run_control_requests
from tidelog_node.fairness.request_memory import RequestMemory


class Closing:
    """A connection whose requests end it."""

    def __init__(self) -> None:
        self.failure = ""

    def is_control_next(self) -> bool:
        return not self.failure

    def on_control_answered(self) -> None:
        raise AssertionError("no request has an answer")

    def on_control_ended(self, failure: CloseConnection | None) -> None:
        assert failure is not None
        self.failure = failure.reason


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def refuse() -> Reply:
    raise CloseConnection("refused")


async def test_a_connection_that_a_request_has_closed_is_freed_without_a_collection(
    uncollected: None,
) -> None:
    loop = asyncio.get_running_loop()
    memory = RequestMemory(
        1 << 20, frame_seconds_max=60.0, loop=loop, on_short=lambda is_short: None
    )
    answers, connection = AnswerQueue(memory), Closing()
    answers.add_control(ControlReply(refuse), 10)
    memory.add_control(10)
    is_freed = weakref.ref(connection)
    await asyncio.create_task(run_control_requests(connection, answers, memory))
    assert connection.failure == "refused"
    del connection
    assert is_freed() is None
