"""The registry's HTTP server among clients that mean harm, or just say nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from tidelog_core.schema_registry.api.calls import AllPermissions, Permissions
from tidelog_core.schema_registry.api.registry_api import RegistryApi
from tidelog_core.schema_registry.registry import SchemaRegistry
from tidelog_node.registry import http_server
from tidelog_node.registry.callers import RequestOfCaller, unauthorized
from tidelog_node.registry.http_server import BODY_BYTES_MAX, CONNECTIONS_MAX, RegistryServer

from tests.support.memory_store import MemoryMetadataStore

SECONDS_MAX = 60.0
GET = b"GET /subjects HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /subjects/a/versions HTTP/1.1\r\nHost: localhost\r\n"


class OpenDesk:
    """Lets everyone in."""

    async def admit(self, request: RequestOfCaller) -> Permissions:
        assert request.host == "127.0.0.1"
        return AllPermissions()


@pytest.fixture
async def port() -> AsyncIterator[int]:
    api = RegistryApi(SchemaRegistry(MemoryMetadataStore(latency=0)), cluster_id="c", version="1")
    server = RegistryServer(api, OpenDesk(), lambda: None)
    try:
        yield await server.start("127.0.0.1", 0)
    finally:
        await server.close()


class ShutDesk:
    """Lets nobody in."""

    async def admit(self, request: RequestOfCaller) -> Permissions:
        raise unauthorized()


class Client:
    """A connection that sends what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def answer(self) -> tuple[int, bytes]:
        """Return status and body of the next answer."""
        async with asyncio.timeout(SECONDS_MAX):
            head = await self.reader.readuntil(b"\r\n\r\n")
            lines = head.decode().splitlines()
            length = next(int(one.split(":")[1]) for one in lines if "ontent-Length" in one)
            return int(lines[0].split()[1]), await self.reader.readexactly(length)

    async def ends(self) -> bool:
        """Return whether the server ends the connection."""
        async with asyncio.timeout(SECONDS_MAX):
            try:
                return await self.reader.read() is not None
            except ConnectionError:
                return True


Connect = Callable[..., Awaitable[Client]]


@pytest.fixture
async def connect(port: int) -> AsyncIterator[Connect]:
    async with AsyncExitStack() as stack:

        async def connected(data: bytes = b"") -> Client:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            writer.write(data)
            return Client(reader, writer)

        yield connected


async def test_a_connection_has_many_requests(connect: Connect) -> None:
    client = await connect(GET)
    assert await client.answer() == (200, b"[]")
    body = json.dumps({"schema": '"int"'}).encode()
    client.writer.write(POST + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    assert (await client.answer())[0] == 200
    client.writer.write(GET)
    assert await client.answer() == (200, b'["a"]')


async def test_silent_connections_keep_nobody_out(connect: Connect) -> None:
    silent = [await connect() for _ in range(CONNECTIONS_MAX + 20)]
    client = await connect(GET)
    assert await client.answer() == (200, b"[]")
    assert await silent[0].ends()


async def test_too_long_bodies_are_not_read(connect: Connect) -> None:
    client = await connect(POST + f"Content-Length: {BODY_BYTES_MAX + 1}\r\n\r\n".encode())
    status, body = await client.answer()
    assert (status, json.loads(body)["error_code"]) == (413, 413)
    assert await client.ends()
    chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    client = await connect(POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 40)
    assert (await client.answer())[0] == 413


async def test_a_body_that_does_not_come_is_not_awaited_for_ever(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "BODY_SECONDS_MAX", 0.05)
    client = await connect(POST + b"Content-Length: 10\r\n\r\n{")
    assert (await client.answer())[0] == 408
    assert await client.ends()


async def test_callers_who_are_not_known_get_no_turn_for_their_bodies() -> None:
    api = RegistryApi(SchemaRegistry(MemoryMetadataStore(latency=0)), cluster_id="c", version="1")
    server = RegistryServer(api, ShutDesk(), lambda: None)
    port = await server.start("127.0.0.1", 0)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        client = Client(reader, writer)
        writer.write(GET)
        assert (await client.answer())[0] == 401, "and the connection is kept"
        writer.write(POST + b"Content-Length: 10\r\n\r\n{")
        status, body = await client.answer()
        assert (status, json.loads(body)["error_code"]) == (401, 401)
        assert await client.ends()
        writer.close()
    finally:
        await server.close()


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """For servers that start afterwards."""
    monkeypatch.setattr(http_server, "SILENT_SECONDS_MAX", 0.05)
    monkeypatch.setattr(http_server, "IDLE_SECONDS_MAX", 0.05)


@pytest.mark.usefixtures("short_waits")
async def test_connections_that_say_nothing_are_ended(connect: Connect) -> None:
    assert await (await connect()).ends()
    assert await (await connect(b"GET /sub")).ends()
    client = await connect(GET)
    assert await client.answer() == (200, b"[]")
    assert await client.ends()


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 1_000 + b"\r\n",
        b"GET /%ff%00 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /subjects/a/versions HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /subjects/%ED%A0%80/versions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
        b"GET /schemas/ids/1?subject=%ED%A0%80 HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01",
    ],
)
async def test_garbage_is_refused_and_others_are_served(connect: Connect, data: bytes) -> None:
    client = await connect(data)
    client.writer.write_eof()
    async with asyncio.timeout(SECONDS_MAX):
        answer = await client.reader.read()
    assert answer == b"" or answer.split()[1][:1] == b"4", answer
    assert await (await connect(GET)).answer() == (200, b"[]")


async def test_pages_of_other_sites_are_refused(connect: Connect) -> None:
    client = await connect(GET[:-2] + b"Sec-Fetch-Site: cross-site\r\n\r\n")
    assert (await client.answer())[0] == 403
    # Browsers send no such header to another machine without TLS.
    for origin in (b"null", b"http://evil.example", b"http://localhost:1", b"http://[", b""):
        client = await connect(POST + b"Origin: " + origin + b"\r\nContent-Length: 0\r\n\r\n")
        assert (await client.answer())[0] == 403, origin
    client = await connect(GET[:-2] + b"Origin: http://localhost\r\n\r\n")
    assert (await client.answer())[0] == 200


class HostsDesk:
    """Lets everyone in."""

    async def admit(self, request: RequestOfCaller) -> Permissions:
        del request
        return AllPermissions()


@pytest.fixture
async def hosts() -> AsyncIterator[Callable[[str, bytes], Awaitable[Client]]]:
    """Connections to one server from addresses of the caller's choice."""
    api = RegistryApi(SchemaRegistry(MemoryMetadataStore(latency=0)), cluster_id="c", version="1")
    server = RegistryServer(api, HostsDesk(), lambda: None)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.close)
        port = await server.start("127.0.0.1", 0)

        async def connected(host: str, data: bytes) -> Client:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
            stack.callback(writer.close)
            writer.write(data)
            return Client(reader, writer)

        yield connected


SLOW = POST + b"Content-Length: 10\r\n\r\n{"  # and no more


async def test_a_host_whose_bodies_come_slowly_holds_up_no_other(
    hosts: Callable[[str, bytes], Awaitable[Client]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bodies are awaited for longer than a client would wait for an answer."""
    monkeypatch.setattr(http_server, "BODY_SECONDS_MAX", 10 * SECONDS_MAX)
    slow = [await hosts("127.0.0.2", SLOW) for _ in range(4 * http_server.REQUESTS_MAX)]
    client = await hosts("127.0.0.3", GET)
    assert await client.answer() == (200, b"[]")
    for one in slow:
        one.writer.write(b'"schema":')
    answers = await asyncio.gather(*(one.answer() for one in slow))
    assert {status for status, _ in answers} == {400}, "each has had its turn"


async def test_a_host_with_too_many_requests_is_refused_and_others_are_served(
    hosts: Callable[[str, bytes], Awaitable[Client]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "BODY_SECONDS_MAX", 10 * SECONDS_MAX)
    count = http_server.HOST_REQUESTS_MAX + http_server.HOST_WAITING_MAX
    slow = [await hosts("127.0.0.2", SLOW) for _ in range(count + 1)]
    answers = [asyncio.create_task(one.answer()) for one in slow]
    done, others = await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
    (status, body), *more = [one.result() for one in done]
    assert (status, json.loads(body)["error_code"], more) == (429, 429, [])
    assert await (await hosts("127.0.0.3", GET)).answer() == (200, b"[]")
    for one in others:
        one.cancel()
    await asyncio.gather(*others, return_exceptions=True)
