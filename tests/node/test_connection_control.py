"""Control requests of one connection: their order, their memory, and what ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tidelog_node.connection import CloseConnection
from tidelog_node.owed_reply import Reply

from tests.node.served_connections import REQUEST, Owner, connect, loop_buffers

SECONDS_MAX = 30.0


async def until(is_so: Callable[[], bool]) -> None:
    """Return once it is so."""
    async with asyncio.timeout(SECONDS_MAX):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    "problem", [RuntimeError("a bug"), CloseConnection("malformed", is_expected=True)]
)
def test_a_control_request_that_fails_gives_its_memory_back_and_ends_the_connection(
    problem: Exception,
) -> None:
    async def run() -> None:
        async def fail() -> Reply:
            raise problem

        owner, buffers = Owner(), loop_buffers()
        client, _ = connect(lambda _, __: fail, owner=owner, buffers=buffers)
        client.sendall(REQUEST * 3)
        await until(lambda: bool(owner.tasks) and all(task.done() for task in owner.tasks))
        assert client.recv(1) == b""
        assert buffers.memory.held_bytes == 0
        assert [task.exception() for task in owner.tasks] == [None]
        client.close()

    asyncio.run(run())


def test_a_control_request_that_is_cancelled_gives_its_memory_back() -> None:
    async def run() -> None:
        async def wait() -> Reply:
            await asyncio.Event().wait()
            return []

        owner, buffers = Owner(), loop_buffers()
        client, _ = connect(lambda _, __: wait, owner=owner, buffers=buffers)
        client.sendall(REQUEST * 3)
        await until(lambda: bool(owner.tasks))
        await asyncio.sleep(0)
        owner.tasks[0].cancel()
        await until(owner.tasks[0].done)
        assert client.recv(1) == b""
        assert buffers.memory.held_bytes == 0
        client.close()

    asyncio.run(run())
