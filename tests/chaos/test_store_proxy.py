"""The proxy in front of DynamoDB, between plain HTTP ends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tests.support.store_proxy import STORE_PASSES, StoreBehaviour, StoreProxy
from tests.support.waiting import eventually_async

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone"
REQUEST = b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi"


@asynccontextmanager
async def proxied(
    pace_s: Callable[[str], float] = lambda _: 0.0,
) -> AsyncIterator[tuple[StoreProxy, list[bytes]]]:
    """A proxy before a server that notes what it carries out, and the notes."""
    carried_out: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                carried_out.append(await reader.readexactly(2))
                writer.write(ANSWER)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with StoreProxy(f"http://127.0.0.1:{port}", random.Random(1), pace_s=pace_s) as proxy:
        yield proxy, carried_out
    server.close()
    await server.wait_closed()


async def ask(proxy: StoreProxy) -> bytes:
    """Return all bytes that a request is answered with; none if the connection ends first."""
    host, port = proxy.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(REQUEST)
    try:
        async with asyncio.timeout(1.0):
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            return head + await reader.readexactly(size)
    except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
        return b""
    finally:
        writer.transport.abort()


async def test_requests_and_answers_pass() -> None:
    async with proxied() as (proxy, carried_out):
        assert await ask(proxy) == ANSWER
        assert carried_out == [b"hi"]


async def test_a_throttled_request_is_refused_and_not_carried_out() -> None:
    async with proxied() as (proxy, carried_out):
        proxy.behave(StoreBehaviour(throttled_part=1.0))
        assert b"ProvisionedThroughputExceededException" in await ask(proxy)
        assert carried_out == []


async def test_a_lost_answer_was_carried_out() -> None:
    async with proxied() as (proxy, carried_out):
        proxy.behave(StoreBehaviour(lost_part=1.0))
        assert await ask(proxy) == b""
        assert carried_out == [b"hi"]
        proxy.behave(STORE_PASSES)
        assert await ask(proxy) == ANSWER


async def test_a_late_request_is_carried_out_when_its_caller_has_gone() -> None:
    async with proxied() as (proxy, carried_out):
        proxy.behave(StoreBehaviour(late_part=1.0, late_s=0.1, hold_s=0.0))
        assert await ask(proxy) == b""
        await eventually_async(lambda: carried_out == [b"hi"])
        assert proxy.counts["late"] == 1


async def test_a_late_request_is_not_carried_out_after_the_end() -> None:
    async with proxied() as (proxy, carried_out):
        proxy.behave(StoreBehaviour(late_part=1.0, late_s=3_600.0, hold_s=0.0))
        assert await ask(proxy) == b""
    assert carried_out == []


async def test_each_request_takes_its_time_by_its_method() -> None:
    asked: list[str] = []

    def pace_s(method: str) -> float:
        asked.append(method)
        return 0.001

    async with proxied(pace_s) as (proxy, _):
        assert await ask(proxy) == ANSWER
    assert asked == ["POST"]


async def test_nothing_gets_through_a_cut_until_it_heals() -> None:
    async with proxied() as (proxy, carried_out):
        proxy.behave(StoreBehaviour(is_cut=True))
        assert await ask(proxy) == b""
        assert carried_out == []
        proxy.behave(STORE_PASSES)
        assert await ask(proxy) == ANSWER
