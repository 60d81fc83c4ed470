"""Clients of the HTTP port that say nothing, too much, or nonsense. The node goes on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager

import pytest
from tidelog_node.monitoring import http_server
from tidelog_node.monitoring.http_server import CONNECTIONS_MAX, HttpServer, Page

from tests.support.http_pages import get, readiness
from tests.support.node_process import NodeProcess

LARGE = 8_000_000
GET = b"GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("hostile")
    with NodeProcess(folder / "node", arguments=("--http-port", "0")) as running:
        yield running


@contextmanager
def sockets(address: str, count: int) -> Iterator[list[socket.socket]]:
    host, _, port = address.rpartition(":")
    with ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
            for _ in range(count)
        ]


def test_a_thousand_silent_sockets_keep_neither_probes_nor_clients_out(node: NodeProcess) -> None:
    memory_before = node.rss_bytes()
    with sockets(node.http_address, 1_000):
        assert readiness(node.http_address)[0] == 200
        http_port = node.http_address.rpartition(":")[2]
        held = [path for path, name in node.open_files().items() if name.startswith("socket:")]
        assert len(held) < CONNECTIONS_MAX + 20, http_port
    assert node.rss_bytes() - memory_before < 10_000_000
    assert "ERROR" not in node.log


@pytest.mark.parametrize(
    "given",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",  # TLS
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n" + b"x: y\r\n" * 10_000 + b"\r\n",
        b"GET /livez HTTP/1.1\r\nx: " + b"y" * 1_000_000 + b"\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999999\r\n\r\n" + b"z" * 1_000_000,
        b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n" * 10_000,
        b"\r\n" * 100_000,
    ],
    ids=["tls", "line", "headers", "header", "body", "pipelined", "empty-lines"],
)
def test_nonsense_ends_its_own_connection(node: NodeProcess, given: bytes) -> None:
    with sockets(node.http_address, 1) as (sock,):
        try:
            sock.sendall(given)
            sock.shutdown(socket.SHUT_WR)
            received = b"".join(iter(lambda: sock.recv(65_536), b""))
            assert received.count(b"HTTP/1.1 200 OK") <= 1
        except TimeoutError:
            raise
        except OSError:
            pass  # The node has closed the connection before it had everything.
    assert get(node.http_address, "/livez").status == 200
    assert "ERROR" not in node.log


@asynccontextmanager
async def served() -> AsyncIterator[int]:
    """Serve one large page in this process, and return the port."""

    async def page() -> Page:
        return Page(b"x" * LARGE)

    server = HttpServer({"/page": page})
    port = await server.start("127.0.0.1", 0)
    try:
        yield port
    finally:
        await server.close()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[socket.socket]:
    with socket.socket() as sock:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        yield sock


async def read_all(sock: socket.socket) -> int | None:
    """Return how many bytes come until the end, ``None`` if the connection is reset."""
    loop, size = asyncio.get_running_loop(), 0
    try:
        async with asyncio.timeout(60):
            while part := await loop.sock_recv(sock, 65_536):
                size += len(part)
    except ConnectionResetError:
        return None
    return size


async def test_a_client_that_sends_slowly_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "REQUEST_SECONDS_MAX", 0.2)
    async with served() as port, connected(port) as sock:
        await asyncio.get_running_loop().sock_sendall(sock, GET[:10])
        assert not await read_all(sock)


async def test_a_client_that_reads_slowly_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "CONNECTION_SECONDS_MAX", 0.2)
    async with served() as port, connected(port) as sock:
        await asyncio.get_running_loop().sock_sendall(sock, GET)
        await asyncio.sleep(0.5)
        assert (await read_all(sock) or 0) < LARGE  # The kernels' buffers hold a part of it.


async def test_clients_that_are_being_answered_are_not_replaced() -> None:
    loop = asyncio.get_running_loop()
    asked, may_answer = asyncio.Semaphore(0), asyncio.Event()

    async def page() -> Page:
        asked.release()
        await may_answer.wait()
        return Page(b"answer")

    server = HttpServer({"/page": page})
    port = await server.start("127.0.0.1", 0)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.close)
        first = [await stack.enter_async_context(connected(port)) for _ in range(CONNECTIONS_MAX)]
        for sock in first:
            await loop.sock_sendall(sock, GET)
            await asked.acquire()
        late = await stack.enter_async_context(connected(port))
        assert not await read_all(late)
        may_answer.set()
        assert all([await read_all(sock) for sock in first])


async def test_a_page_that_fails_answers_500_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken() -> Page:
        raise ValueError("broken")

    server = HttpServer({"/page": broken})
    port = await server.start("127.0.0.1", 0)
    answer = await asyncio.to_thread(get, f"127.0.0.1:{port}", "/page")
    assert answer.status == 500
    assert b"broken" not in answer.body
    assert "http request failed" in caplog.text
    await server.close()
