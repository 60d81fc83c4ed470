"""Every client of a program reaches the cluster as its factory says."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

import pytest
from tidelog import Admin, Consumer, Producer
from tidelog.client_factory import ClientFactory
from tidelog.cluster import Cluster
from tidelog.errors import ConnectionFailed, InvalidConfig

TLS_HANDSHAKE = b"\x16\x03"
NAME = b"\x00\x07billing"  # as the header of a request has it

MAKERS: list[Callable[[ClientFactory], Admin | Cluster | Consumer | Producer]] = [
    lambda factory: factory.make(Admin, timeout_ms=1_000),
    lambda factory: factory.make(Consumer, group_id="g"),
    lambda factory: factory.make(Producer, acks=1),
    lambda factory: factory.cluster(),
]


async def first_bytes(
    make: Callable[[ClientFactory], Admin | Cluster | Consumer | Producer],
    tls: ssl.SSLContext | None,
) -> bytes:
    """Return what the client sends first to a node that hangs up."""
    received = asyncio.get_running_loop().create_future()

    served: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        served.add(task)
        try:
            data = await reader.read(1_000)
            if not received.done():
                received.set_result(data)
        except OSError:  # The client has given up a connection that was just accepted.
            pass
        finally:
            writer.transport.abort()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        factory = ClientFactory(
            f"127.0.0.1:{port}", client_id="billing", request_timeout_ms=300, ssl=tls
        )
        client = make(factory)
        with pytest.raises(ConnectionFailed):
            await client.start()
        await client.close()
    await asyncio.gather(*served)
    return bytes(await received)


@pytest.mark.parametrize("make", MAKERS)
async def test_clients_go_by_the_factorys_name_and_speak_tls_where_it_says_so(
    make: Callable[[ClientFactory], Admin | Cluster | Consumer | Producer],
) -> None:
    assert NAME in await first_bytes(make, None)
    assert (await first_bytes(make, ssl.create_default_context())).startswith(TLS_HANDSHAKE)


def test_what_a_client_is_asked_for_goes_before_the_factorys_word() -> None:
    factory = ClientFactory("localhost:1", client_id="billing", request_timeout_ms=0)
    with pytest.raises(InvalidConfig, match="request_timeout_ms must be above zero"):
        factory.make(Admin)
    with pytest.raises(InvalidConfig, match="request_timeout_ms must be above zero"):
        factory.cluster()
    factory.make(Admin, request_timeout_ms=1)
