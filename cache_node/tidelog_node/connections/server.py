"""Accepts connections at the listening sockets, and closes the idle ones."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from tidelog_core.errors import is_out_of_resources
from tidelog_core.metadata.endpoints import BrokerEndpoint

from tidelog_node.connections.connection import Connection
from tidelog_node.connections.frame_receiver import FrameHandler
from tidelog_node.connections.loop_buffers import LoopBuffers
from tidelog_node.connections.transport import Transport, TransportFactory, plain_transport
from tidelog_node.counters import NodeCounters
from tidelog_node.fairness.request_memory import RequestMemory
from tidelog_node.requests.session import Session
from tidelog_node.security.listeners import Listener, is_loopback
from tidelog_node.throttling.connection_limits import ConnectionLimits

if TYPE_CHECKING:
    from tidelog_node.authentication.login import Login

logger = logging.getLogger(__name__)

LoginFactory = Callable[[Transport, Session], "Login | None"]
"""Begins the login of a client, ``None`` on a listener where clients do not log in."""

ACCEPTS_PER_EVENT_MAX = 64
ACCEPT_RETRY_SECONDS = 1.0  # after running out of descriptors
BACKLOG = 1024
SWEEP_SECONDS_MAX = 10.0
HELD_MAX = 1_000  # clients that came too fast, and are closed later; further ones are at once
UNPACED = b"reno"  # a congestion control that every Linux has, and that sends at once
PACED = b"bbr"  # those whose names begin so send by timers
IPV4_IN_IPV6 = "::ffff:"  # how a socket of both families shows an IPv4 address


class Server:
    """Owns the listening sockets, the connections and the tasks of their requests."""

    def __init__(
        self,
        handle: FrameHandler,
        *,
        request_bytes_max: int,
        queued_requests_max: int,
        queued_request_bytes_max: int,
        frame_seconds_max: float,
        idle_seconds_max: float,
        send_buffer_bytes: int,
        nodes_listener: str | None = None,
        make_transport: TransportFactory = plain_transport,
        begin_login: LoginFactory = lambda _, __: None,
        limits: ConnectionLimits | None = None,
        counters: NodeCounters | None = None,
    ) -> None:
        """``send_buffer_bytes`` are those of clients' connections; 0: the system's growing ones.

        Connections of ``nodes_listener`` have growing ones: a follower's takes a whole answer at
        once, so neither end wakes for every 100 KiB.
        ``make_transport`` returns the transport for a listener's client.
        ``begin_login`` returns its login on listeners where clients log in. Without ``limits``
        there may be any number of connections.
        """
        self._limits = limits
        self._counters = counters or NodeCounters()
        self._full: set[socket.socket] = set()  # listeners that accept again when one is closed
        self._held: set[socket.socket] = set()  # clients that are not served yet, or never
        self._loop = asyncio.get_running_loop()
        self._handle = handle
        self._buffers = LoopBuffers(
            request_bytes_max=request_bytes_max,
            queued_requests_max=queued_requests_max,
            queued_request_bytes_max=queued_request_bytes_max,
            frame_seconds_max=frame_seconds_max,
            loop=self._loop,
        )
        self._idle_seconds_max = idle_seconds_max
        self._send_buffer_bytes = send_buffer_bytes
        self._nodes_listener = nodes_listener
        self._make_transport = make_transport
        self._begin_login = begin_login
        self._logins: set[Login] = set()
        self._listeners: dict[socket.socket, str] = {}  # the listeners' names
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweep_timer: asyncio.TimerHandle | None = None

    @property
    def memory(self) -> RequestMemory:
        """The memory of unanswered requests."""
        return self._buffers.memory

    def bind(self, listener: Listener) -> BrokerEndpoint:
        """Take the listener's address; return the endpoint that clients connect to.

        Clients that connect wait until ``start_accepting``. Raises ``OSError`` if the address
        is not available.
        """
        host, port = listener.host, listener.port
        try:
            sock = _listen(
                host,
                port,
                send_buffer_bytes=self._send_buffer_bytes,
                grows=listener.name == self._nodes_listener,
            )
        except OSError as error:
            problem = f"cannot listen on {host!r} port {port}: {error.strerror}"
            raise OSError(error.errno, problem) from error
        self._listeners[sock] = listener.name
        advertised_port = listener.advertised_port or sock.getsockname()[1]
        return BrokerEndpoint(listener.name, listener.advertised_host, advertised_port)

    def start_accepting(self) -> None:
        """Accept clients at every address taken."""
        for listener in self._listeners:
            self._loop.add_reader(listener.fileno(), self._accept, listener)
        if self._sweep_timer is None:
            self._sweep()

    def stop_accepting(self) -> None:
        """Close the listening sockets; open connections go on."""
        for listener in self._listeners:
            self._loop.remove_reader(listener.fileno())
            listener.close()
        self._listeners.clear()
        self._full.clear()
        for sock in self._held:
            sock.close()
        self._held.clear()

    async def close(self, *, grace_seconds: float) -> None:
        """Give requests under way ``grace_seconds`` to be answered, then close everything."""
        self.stop_accepting()
        for connection in self._connections:
            connection.stop_reading()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        deadline = self._loop.time() + grace_seconds
        while self._loop.time() < deadline:
            if all(connection.is_answered for connection in self._connections):
                break
            await asyncio.sleep(0.01)  # polling is fine here: the node stops
        for connection in list(self._connections):
            connection.close("node shuts down")
        self._buffers.disk.shutdown(wait=False, cancel_futures=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for login in tuple(self._logins):  # whose tasks were cancelled before they began
            login.close()

    # -- the owner of connections --

    def forget(self, connection: Connection) -> None:
        """Note that the connection is closed."""
        self._connections.discard(connection)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` as a task that ``close`` awaits."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- inside --

    def _accept(self, listener: socket.socket) -> None:
        limits, name = self._limits, self._listeners[listener]
        for _ in range(ACCEPTS_PER_EVENT_MAX):
            if limits is not None and not limits.has_room(name):
                self._loop.remove_reader(listener.fileno())
                self._full.add(listener)
                return
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if not is_out_of_resources(error):
                    raise
                logger.error("cannot accept connections", extra={"reason": str(error)})
                self._loop.remove_reader(listener.fileno())
                self._loop.call_later(ACCEPT_RETRY_SECONDS, self._accept_again, listener)
                return
            wait_ms = 0 if limits is None else limits.count_connection(name)
            if wait_ms:
                self._loop.remove_reader(listener.fileno())
                self._held.add(sock)
                self._loop.call_later(wait_ms / 1000, self._accept_held, sock, address, listener)
                return
            self._admit(sock, address, name)

    def _accept_held(
        self, sock: socket.socket, address: tuple[Any, ...], listener: socket.socket
    ) -> None:
        """Serve a client that had to wait, and accept others again."""
        if sock in self._held:
            self._held.discard(sock)
            self._admit(sock, address, self._listeners[listener])
            self._accept_again(listener)

    def _admit(self, sock: socket.socket, address: tuple[Any, ...], listener: str) -> None:
        """Serve a client unless its address has too many connections, or makes them too fast."""
        host = address[0].removeprefix(IPV4_IN_IPV6)
        limits, traffic = self._limits, self._counters.listener(listener)
        if limits is not None:
            refused_ms = limits.refused_ms(listener, host)
            if refused_ms:
                traffic.refused_count += 1
            if refused_ms and len(self._held) < HELD_MAX:
                self._held.add(sock)
                self._loop.call_later(refused_ms / 1000, self._close_held, sock)
                return
            if refused_ms:
                sock.close()
                return
            if not limits.enter(listener, host):
                traffic.refused_count += 1
                sock.close()
                return
        session = Session(host, address[1], listener, traffic)
        traffic.accepted_count += 1
        traffic.open_count += 1
        session.on_close(traffic.left)
        if limits is not None:
            session.on_close(self._left)
        try:
            self._welcome(sock, session)
        except (OSError, ImportError) as error:
            # The client has disconnected already, or what a first connection with TLS loads cannot
            # be opened: the next one tries again.
            if isinstance(error, ImportError):
                logger.warning("connection refused", extra={"reason": str(error)})
            sock.close()
            session.closed()

    def _close_held(self, sock: socket.socket) -> None:
        self._held.discard(sock)
        sock.close()

    def _left(self, session: Session) -> None:
        """Count a connection no longer, and have the listeners accept that waited for it."""
        assert self._limits is not None
        self._limits.leave(session.listener, session.client_host)
        full, self._full = self._full, set()
        for listener in full:
            self._accept_again(listener)

    def _welcome(self, sock: socket.socket, session: Session) -> None:
        sock.setblocking(False)
        transport = self._make_transport(sock, session)
        login = self._begin_login(transport, session)
        if login is None:
            self._serve(transport, session, self._handle)
        else:
            self._logins.add(login)
            self.spawn(self._log_in(login, transport, session))

    async def _log_in(self, login: Login, transport: Transport, session: Session) -> None:
        """Serve the client once it has logged in."""
        try:
            handle = await login.run()
        finally:
            self._logins.discard(login)
        if handle is not None:
            self._serve(transport, session, handle)

    def _serve(self, transport: Transport, session: Session, handle: FrameHandler) -> None:
        """Make the connection, which begins to receive requests."""
        self._connections.add(
            Connection(
                transport,
                session,
                handle=handle,
                buffers=self._buffers,
                loop=self._loop,
                owner=self,
            )
        )

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener.fileno(), self._accept, listener)

    def _sweep(self) -> None:
        """Close connections that were silent too long; take buffers from the quiet ones."""
        now = self._loop.time()
        interval = min(SWEEP_SECONDS_MAX, self._idle_seconds_max / 2)
        for connection in list(self._connections):
            silent_seconds = now - connection.active_at
            if silent_seconds > self._idle_seconds_max and connection.waits_for_client:
                connection.close("idle")
            elif connection.is_abandoned:
                connection.close("closed by the client")
            elif silent_seconds > interval:
                connection.release_idle_buffer()
        self._sweep_timer = self._loop.call_later(interval, self._sweep)


def _listen(host: str, port: int, *, send_buffer_bytes: int, grows: bool) -> socket.socket:
    """Return a listening socket. Those that it accepts have its options.

    With ``grows`` their send buffers grow if the system sends at once.
    """
    # Python loads its tables of Unicode for every name that is not bytes.
    name = host.encode() if host.isascii() else host
    family, _, _, _, address = socket.getaddrinfo(
        name or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if send_buffer_bytes > 0 and not (grows and _sends_at_once(listener, str(address[0]))):
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        listener.bind(address)
        # At once: two sockets may be bound to one port until one of them listens.
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _sends_at_once(listener: socket.socket, host: str) -> bool:
    """Return whether the system sends the data of the listener's connections without pacing.

    BBR does, by a timer for every 64 KiB: with large buffers these cost more than all the rest. To
    the same machine pacing is of no use, so a listener there goes without.
    """
    if sys.platform != "linux":
        return True
    try:
        if is_loopback(host):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, UNPACED)
        name = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    except OSError:
        return False
    return not name.startswith(PACED)
