"""A TCP proxy between clients and one server on this machine; subclasses decide what passes.

It listens, dials and ends both sides of each connection. Kafka's frames (``flaky_proxy``), messages
of HTTP (``store_proxy``, ``tests.aws.lossy_proxy``) and bytes (``tests.chaos.proxy``) are relayed
by its subclasses.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Self

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
HOST = "127.0.0.1"
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class ProxiedConnection:
    """A client's connection, and the one to the server once it is dialed."""

    def __init__(self, client: Streams, target: tuple[str, int]) -> None:
        self.client = client
        self.is_aborted = False
        self.on_abort: Callable[[], None] = lambda: None
        self._target = target
        self._writers = [client[1]]

    async def dial(self) -> Streams:
        """Connect to the server. Raises ``OSError`` if that fails or the client's side is aborted."""
        streams = await asyncio.open_connection(*self._target)
        self._writers.append(streams[1])
        if self.is_aborted:
            streams[1].transport.abort()
            raise ConnectionAbortedError
        return streams

    def abort(self) -> None:
        """Break both sides now."""
        self.is_aborted = True
        for writer in self._writers:
            writer.transport.abort()
        self.on_abort()


class TcpProxy(ABC):
    """Listens on a port of 127.0.0.1 for the length of its block."""

    def __init__(self, target: tuple[str, int], *, port: int = 0) -> None:
        """``port`` 0: a free one."""
        self.port = port
        self._target = target
        self._connections: set[ProxiedConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @abstractmethod
    async def relay(self, connection: ProxiedConnection) -> None:
        """Relay until one side ends; then both are ended.

        A side may end at any time: ``OSError`` and ``asyncio.IncompleteReadError`` are no failures.
        """

    @property
    def url(self) -> str:
        """The address for clients that speak HTTP."""
        return f"http://{HOST}:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self.refuse()
        # asyncio.streams does not take it well when its tasks are cancelled.
        self.cut()
        await asyncio.gather(*self._tasks)
        assert self._server is not None
        await self._server.wait_closed()

    def refuse(self) -> None:
        """Refuse new connections from now on."""
        assert self._server is not None
        self._server.close()

    def cut(self) -> None:
        """Break every connection now."""
        for connection in list(self._connections):
            connection.abort()

    def keep(self, work: Coroutine[None, None, None]) -> None:
        """Run a task beside the connections; the proxy's block ends after it."""
        self._note(asyncio.create_task(work))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._note(task)
        connection = ProxiedConnection((reader, writer), self._target)
        self._connections.add(connection)
        try:
            await self.relay(connection)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._connections.discard(connection)
            connection.abort()

    def _note(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def reset(writer: asyncio.StreamWriter) -> None:
    """End the connection so that the other side sees a reset and not an end."""
    raw: socket.socket = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    writer.transport.abort()
