"""The proxy in front of DynamoDB, between plain HTTP ends."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from tests.support.store_proxy import STORE_PASSES, StoreBehaviour, StoreProxy

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone"
REQUEST = b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi"


def run(scenario: Callable[[StoreProxy, list[bytes]], Awaitable[None]]) -> None:
    """Run the scenario with a proxy before a server that notes what it carries out."""
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

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with StoreProxy(f"http://127.0.0.1:{port}", random.Random(1)) as proxy:
            await scenario(proxy, carried_out)
        server.close()
        await server.wait_closed()

    asyncio.run(main())


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


def test_requests_and_answers_pass() -> None:
    async def scenario(proxy: StoreProxy, carried_out: list[bytes]) -> None:
        assert await ask(proxy) == ANSWER
        assert carried_out == [b"hi"]

    run(scenario)


def test_a_throttled_request_is_refused_and_not_carried_out() -> None:
    async def scenario(proxy: StoreProxy, carried_out: list[bytes]) -> None:
        proxy.behave(StoreBehaviour(throttled_part=1.0))
        assert b"ProvisionedThroughputExceededException" in await ask(proxy)
        assert carried_out == []

    run(scenario)


def test_a_lost_answer_was_carried_out() -> None:
    async def scenario(proxy: StoreProxy, carried_out: list[bytes]) -> None:
        proxy.behave(StoreBehaviour(lost_part=1.0))
        assert await ask(proxy) == b""
        assert carried_out == [b"hi"]
        proxy.behave(STORE_PASSES)
        assert await ask(proxy) == ANSWER

    run(scenario)


def test_nothing_gets_through_a_cut_until_it_heals() -> None:
    async def scenario(proxy: StoreProxy, carried_out: list[bytes]) -> None:
        proxy.behave(StoreBehaviour(is_cut=True))
        assert await ask(proxy) == b""
        assert carried_out == []
        proxy.behave(STORE_PASSES)
        assert await ask(proxy) == ANSWER

    run(scenario)
