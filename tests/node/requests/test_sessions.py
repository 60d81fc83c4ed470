"""What the node knows of the client of a connection, and who is handed it."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, NamedTuple

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader
from tidelog_core.model import ANONYMOUS
from tidelog_node.answers import Answer, CloseConnection, ControlReply
from tidelog_node.connections.server import Server
from tidelog_node.dispatch import Dispatch
from tidelog_node.handlers.cluster.api_versions import ApiVersionsHandler
from tidelog_node.requests.routes import HotRoute, RequestContext
from tidelog_node.requests.session import Session
from tidelog_node.security.listeners import Listener
from tidelog_node.wire.primitives import request_header

from tests.support.request_contexts import a_session

HOT, API_VERSIONS = 0, 18


class Request(NamedTuple):
    """A request of the hot route below."""

    element_count: int = 1


def frame_of(api_key: int, version: int, client_id: bytes | None, body: bytes = b"") -> memoryview:
    """Return a frame without its size."""
    length = -1 if client_id is None else len(client_id)
    head = request_header(max(length, 0)).pack(api_key, version, 7, length, client_id or b"")
    return memoryview(bytearray(head + body))


class Handler:
    """Notes whom it has answered."""

    def __init__(self) -> None:
        self.contexts: list[RequestContext] = []
        hot = HotRoute(HOT, 0, 2, 99, lambda *_: Request(), self.handle, 0)
        control = ApiVersionsHandler([hot], (), for_nodes={}).routes()
        self.dispatch = Dispatch([hot], control, elements_max=100, partitions_max=100)

    def handle(self, _: Request, context: RequestContext) -> Answer:
        self.contexts.append(context)
        return [b"answer"]


async def test_a_hot_route_is_handed_the_session_and_what_its_request_says() -> None:
    handler, session = Handler(), a_session()
    for client_id in (b"app", b"app", b"app-2", b"ppa-2", None, b""):
        handler.dispatch(frame_of(HOT, 2, client_id), session)
    contexts = handler.contexts
    assert all(context.session is session for context in contexts)
    assert [c.client_id for c in contexts] == ["app", "app", "app-2", "ppa-2", None, ""]
    assert (contexts[0].api_version, contexts[0].correlation_id) == (2, 7)
    assert session.principal == ANONYMOUS
    assert str(session.principal) == "User:ANONYMOUS"


@pytest.mark.parametrize("api_key", [HOT, API_VERSIONS])
async def test_a_client_id_that_does_not_fit_its_request_ends_the_connection(api_key: int) -> None:
    handler, session = Handler(), a_session()
    handler.dispatch(frame_of(HOT, 0, b"app"), session)
    with pytest.raises(CloseConnection, match="malformed"):
        handler.dispatch(frame_of(api_key, 0, b"app longer")[:-7], session)
    assert session.client_id == "app"


def software(name: str, version: str) -> bytes:
    """Return ApiVersions of version 3, behind the client id."""
    fields = [b"\0"] + [bytes([len(text) + 1]) + text.encode() for text in (name, version)]
    return b"".join(fields) + b"\0"


async def ask_versions(handler: Handler, session: Session, name: str, version: str) -> Any:
    frame = frame_of(API_VERSIONS, 3, b"app", software(name, version))
    answer = handler.dispatch(frame, session)
    assert isinstance(answer, ControlReply)
    reply = await answer.call()
    data = b"".join(bytes(part) for part in reply)  # type: ignore[arg-type]
    schema: Any = load_response_schema(API_VERSIONS, 3)
    return entity_reader(schema)(memoryview(data), 8)[0]


async def test_the_session_has_the_software_that_api_versions_names() -> None:
    handler, session = Handler(), a_session()
    await ask_versions(handler, session, "librdkafka", "2.10.1")
    assert (session.software_name, session.software_version) == ("librdkafka", "2.10.1")
    await ask_versions(handler, session, "not allowed!", "1")
    assert session.software_name == "librdkafka"


async def test_connections_know_the_listener_that_accepted_them() -> None:
    seen: list[Session] = []

    def handle(_: memoryview, session: Session) -> Answer:
        seen.append(session)
        return [b"12345678"]

    server = Server(
        handle,
        request_bytes_max=1000,
        queued_requests_max=10,
        queued_request_bytes_max=10_000,
        frame_seconds_max=30,
        idle_seconds_max=30,
        send_buffer_bytes=0,
    )
    ports = {name: server.bind(Listener(name=name, port=0)).port for name in ("CLIENTS", "NODE")}
    server.start_accepting()
    loop = asyncio.get_running_loop()
    for port in ports.values():
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setblocking(False)
            await loop.sock_sendall(client, struct.pack(">i8s", 8, b"request!"))
            await loop.sock_recv(client, 8)
            address = client.getsockname()
            assert (seen[-1].client_host, seen[-1].client_port) == address
    assert [session.listener for session in seen] == ["CLIENTS", "NODE"]
    await server.close(grace_seconds=0)
