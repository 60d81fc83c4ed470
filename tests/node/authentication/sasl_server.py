"""A server in the test's loop whose clients log in, and a client that sends what it likes."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader
from tidelog_core.security.scram_client import ScramClient
from tidelog_core.security.scram_credentials import ScramMechanism
from tidelog_core.wire_messages import build, write_message
from tidelog_node.answers import Answer
from tidelog_node.authentication.authentication import AuthenticationRules
from tidelog_node.authentication.exchanges import Mechanisms
from tidelog_node.authentication.login import LOGIN_SECONDS_MAX, LoginService
from tidelog_node.authentication.login_credentials import LoginCredentials
from tidelog_node.authentication.password_checks import PasswordChecks
from tidelog_node.connections.server import Server
from tidelog_node.connections.transport import TransportFactory, plain_transport
from tidelog_node.counters import NodeCounters
from tidelog_node.dispatch import Dispatch
from tidelog_node.handlers.cluster.api_versions import ApiVersionsHandler
from tidelog_node.handlers.security.sasl import SaslHandlers
from tidelog_node.requests.routes import HotRoute, RequestContext
from tidelog_node.requests.session import Session
from tidelog_node.security.listeners import Listener

from tests.support.scram_users import Users, stored

HOT, API_VERSIONS, HANDSHAKE, AUTHENTICATE = 0, 18, 17, 36
USER, PASSWORD = "alice", "alice-has-this-pässword"
SCRAM = ScramMechanism.SCRAM_SHA_256
SASL, OPEN = "SASL", "OPEN"  # names of listeners
ANSWER = b"the hot answer"
SECONDS_MAX = 60.0


class Hot(NamedTuple):
    """A request of the route that only known clients may use."""

    element_count: int = 1


@dataclass
class LoginList:
    """What would be logged."""

    refusals: list[tuple[str, str]] = field(default_factory=list)  # reason and hint
    methods: list[str] = field(default_factory=list)  # of successful logins

    def refused(self, client: Session, reason: str, *, hint: str = "") -> None:
        """Keep it."""
        assert client.listener == SASL
        self.refusals.append((reason, hint))

    def accepted(self, client: Session, method: str) -> None:
        """Keep it."""
        assert client.listener == SASL
        self.methods.append(method)


@dataclass
class SaslServer:
    """The server, and what its handlers saw."""

    port: int
    open_port: int
    counters: NodeCounters
    service: LoginService
    users: Users
    logins: LoginList
    hot_sessions: list[Session]
    clients: list[Client] = field(default_factory=list)

    @property
    def connection_count(self) -> int:
        """The number of open connections, with those of clients that have not logged in yet."""
        return sum(self.counters.listener(name).open_count for name in (SASL, OPEN))

    async def client(self, *, is_open: bool = False) -> Client:
        """Connect."""
        port = self.open_port if is_open else self.port
        client = Client(*await asyncio.open_connection("127.0.0.1", port))
        self.clients.append(client)
        return client


def users_with(password: str = PASSWORD, *names: str) -> Users:
    """Return users that have one password for all mechanisms."""
    return Users(
        {(name, one): stored(password, one) for name in names or (USER,) for one in ScramMechanism}
    )


@asynccontextmanager
async def sasl_server(
    users: Users | None = None,
    *,
    credentials: Callable[[], LoginCredentials] | None = None,
    mechanisms: tuple[str, ...] = (*ScramMechanism, "PLAIN"),
    failure_delay_seconds: float = 0.0,
    session_ms_max: int = 0,
    token_bytes_max: int = 524_288,
    seconds_max: float = LOGIN_SECONDS_MAX,
    now: Callable[[], float] | None = None,
    clock: Callable[[], float] = time.time,
    make_transport: TransportFactory = plain_transport,
) -> AsyncIterator[SaslServer]:
    """Serve two listeners: one whose clients log in and one that is open.

    ``credentials`` are in place of ``users``. ``now`` is steady, ``clock`` the wall's.
    """
    users = users or users_with()
    hot_sessions: list[Session] = []

    def handle(_: Hot, context: RequestContext) -> Answer:
        hot_sessions.append(context.session)
        data = struct.pack(">i", context.correlation_id) + ANSWER
        return [struct.pack(">i", len(data)) + data]

    hot = HotRoute(HOT, 0, 2, 99, lambda *_: Hot(), handle, 0)
    control = SaslHandlers().routes()
    dispatch = Dispatch(
        [hot],
        [*control, *ApiVersionsHandler([hot], control, for_nodes={}).routes()],
        elements_max=100,
        partitions_max=100,
    )
    executor = ThreadPoolExecutor(2)
    logins = LoginList()
    find = credentials or (lambda: users)
    service = LoginService(
        rules={
            SASL: AuthenticationRules(
                mechanisms=mechanisms,
                token_bytes_max=token_bytes_max,
                failure_delay_seconds=failure_delay_seconds,
                session_ms_max=session_ms_max,
            )
        },
        dispatch=dispatch,
        mechanisms=Mechanisms(find, PasswordChecks(find, executor), clock=clock),
        logins=logins,
        now=now or asyncio.get_running_loop().time,
        seconds_max=seconds_max,
    )
    counters = NodeCounters()
    server = Server(
        dispatch,
        request_bytes_max=1_000_000,
        queued_requests_max=10,
        queued_request_bytes_max=1_000_000,
        frame_seconds_max=30,
        idle_seconds_max=30,
        send_buffer_bytes=0,
        make_transport=make_transport,
        begin_login=service.begin,
        counters=counters,
    )
    ports = {name: server.bind(Listener(name=name, port=0)).port for name in (SASL, OPEN)}
    server.start_accepting()
    served = SaslServer(ports[SASL], ports[OPEN], counters, service, users, logins, hot_sessions)
    try:
        yield served
    finally:
        for client in served.clients:
            client.close()
        await server.close(grace_seconds=0)
        for client in served.clients:
            with contextlib.suppress(OSError):
                await client.writer.wait_closed()
        dispatch.close()
        executor.shutdown()


class Client:
    """One connection. Every wait has an end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.correlation_id = 100

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)

    def send_frame(self, data: bytes) -> None:
        """Send bytes behind their size."""
        self.send(struct.pack(">i", len(data)) + data)

    async def receive(self) -> bytes | None:
        """Return the next frame, ``None`` if the connection was closed before."""
        try:
            async with asyncio.timeout(SECONDS_MAX):
                (size,) = struct.unpack(">i", await self.reader.readexactly(4))
                return await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            return None

    def send_request(self, api_key: int, version: int, **fields: Any) -> None:
        """Send a request of an API that kio knows."""
        schema: Any = load_request_schema(api_key, version)
        body = write_message(schema, build(schema, **fields))
        self.send_frame(self.header(api_key, version, is_flexible=schema.__flexible__) + body)

    def header(self, api_key: int, version: int, *, is_flexible: bool = False) -> bytes:
        """Return the header of a request, with a new correlation id."""
        self.correlation_id += 1
        head = struct.pack(">hhih4s", api_key, version, self.correlation_id, 4, b"test")
        return head + b"\0" if is_flexible else head

    async def call(self, api_key: int, version: int, **fields: Any) -> Any:
        """Return the response, ``None`` if the connection was closed instead."""
        self.send_request(api_key, version, **fields)
        return await self.response(api_key, version)

    async def response(self, api_key: int, version: int) -> Any:
        """Return the next response."""
        data = await self.receive()
        if data is None:
            return None
        schema: Any = load_response_schema(api_key, version)
        assert struct.unpack_from(">i", data) == (self.correlation_id,)
        start = 4 + (schema.__flexible__ and api_key != API_VERSIONS)
        return entity_reader(schema)(memoryview(data), start)[0]

    async def hot(self) -> bool:
        """Return whether a request that only known clients may send is answered."""
        self.send_frame(self.header(HOT, 2))
        answer = await self.receive()
        return answer is not None and answer[4:] == ANSWER

    async def log_in(
        self,
        password: str = PASSWORD,
        *,
        user: str = USER,
        mechanism: ScramMechanism = SCRAM,
        version: int = 2,
        is_token: bool = False,
    ) -> Any:
        """Log in by SCRAM; return the last response."""
        await self.call(HANDSHAKE, 1, mechanism=str(mechanism))
        nonce = f"nonce-{self.correlation_id}"
        scram = ScramClient(mechanism, user, password, nonce=nonce, is_token=is_token)
        first = await self.call(AUTHENTICATE, version, auth_bytes=scram.first_message())
        if first is None or first.error_code:
            return first
        final = scram.final_message(bytes(first.auth_bytes))
        last = await self.call(AUTHENTICATE, version, auth_bytes=final)
        if last is not None and not last.error_code:
            scram.check(bytes(last.auth_bytes))
        return last

    async def log_in_plain(
        self, password: str = PASSWORD, *, user: str = USER, acting_as: str = ""
    ) -> Any:
        """Log in by PLAIN; return the response."""
        await self.call(HANDSHAKE, 1, mechanism="PLAIN")
        token = f"{acting_as}\0{user}\0{password}".encode()
        return await self.call(AUTHENTICATE, 2, auth_bytes=token)

    async def is_closed(self) -> bool:
        """Return whether the node closes the connection without another answer."""
        return await self.receive() is None

    def close(self) -> None:
        """Close the connection."""
        self.writer.close()
