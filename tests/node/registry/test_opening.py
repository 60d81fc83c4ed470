"""When a node's registry lets clients in: once its changes need not wait for the bucket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from tidelog_core.schema_registry.api.registry_api import RegistryApi
from tidelog_core.schema_registry.registry import SchemaRegistry
from tidelog_node.assembly import registry as assembly
from tidelog_node.assembly.registry import listen_once_open
from tidelog_node.registry.http_server import RegistryServer

from tests.node.registry.test_http_server import OpenDesk
from tests.support.memory_store import MemoryMetadataStore

GET = b"GET /subjects HTTP/1.1\r\nHost: localhost\r\n\r\n"


def a_server() -> RegistryServer:
    api = RegistryApi(SchemaRegistry(MemoryMetadataStore(latency=0)), cluster_id="c", version="1")
    return RegistryServer(api, OpenDesk(), lambda: None)


@pytest.fixture
async def server() -> AsyncIterator[RegistryServer]:
    made = a_server()
    try:
        yield made
    finally:
        await made.close()


async def asked(port: int) -> bytes:
    """Return the first line of the answer. Raises ``ConnectionRefusedError``."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(GET)
        async with asyncio.timeout(60):
            return await reader.readline()
    finally:
        writer.close()


async def test_clients_are_refused_at_once_until_the_journal_is_open(
    server: RegistryServer,
) -> None:
    """A client with the addresses of several nodes asks the next one then."""
    port = await server.bind("127.0.0.1", 0)
    is_open = asyncio.Event()
    listening = asyncio.create_task(listen_once_open(server, is_open, {}))
    await asyncio.sleep(0)
    with pytest.raises(ConnectionRefusedError):
        await asked(port)
    is_open.set()
    await listening
    assert b"200" in await asked(port)


async def test_reads_are_served_if_the_bucket_is_away(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "OPENING_SECONDS_MAX", 0.01)
    port = await server.bind("127.0.0.1", 0)
    await listen_once_open(server, asyncio.Event(), {})
    assert b"200" in await asked(port)


async def test_a_port_in_use_is_named_before_anything_waits(server: RegistryServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port} for schemas"):
            await server.bind("127.0.0.1", port)
