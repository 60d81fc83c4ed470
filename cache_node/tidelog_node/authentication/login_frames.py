"""Receives the frames of a client that has not logged in, one at a time and with little memory.

Only the current frame is read from the transport; the connection after the log-in reads the bytes
after it. The announced size of a frame takes no memory: its buffer grows with the received bytes.
Memory of frames above ``FRAME_BYTES_UNCOUNTED`` is counted for all clients together, separately
from the memory of requests: unknown clients take none from known ones.
"""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress

from tidelog_node.answers import CloseConnection
from tidelog_node.connections.transport import Buffer, Transport

FRAME_BYTES_UNCOUNTED = 16_384  # real tokens are smaller, and usually come in one piece
COUNTED_BYTES_MAX = 16_777_216
RECEIVE_BYTES = 16_384
SETTING = "sasl.server.max.receive.size"
_SIZE = struct.Struct(">i")
_TLS_HANDSHAKE = b"\x16\x03"


class LoginMemory:
    """The shared memory of the unfinished frames of one loop's unknown clients."""

    __slots__ = ("counted_bytes", "received")

    def __init__(self) -> None:
        self.received = memoryview(bytearray(RECEIVE_BYTES))  # empty between calls
        self.counted_bytes = 0


class LoginFrames:
    """The frames of one client."""

    __slots__ = ("_bytes_max", "_counted_bytes", "_loop", "_memory", "_transport")

    def __init__(self, transport: Transport, memory: LoginMemory, *, bytes_max: int) -> None:
        self._transport = transport
        self._memory = memory
        self._bytes_max = bytes_max
        self._counted_bytes = 0
        self._loop = asyncio.get_running_loop()

    async def receive(self) -> bytearray | None:
        """Return the next frame without its size, ``None`` once the client sends no more.

        Its memory counts until the next call. Raises ``CloseConnection`` for one that is too
        large, and ``OSError``.
        """
        self._count(0)
        head = await self._exactly(_SIZE.size)
        if head is None:
            return None
        (size,) = _SIZE.unpack(head)
        if not 0 <= size <= self._bytes_max:
            raise CloseConnection(_size_problem(head, size, self._bytes_max))
        return await self._exactly(size)

    async def send(self, data: Buffer) -> None:
        """Return once the transport has accepted all bytes. Raises ``OSError``."""
        left = memoryview(data)
        while left or self._transport.wants_write:
            try:
                if left:
                    left = left[self._transport.send(left) :]
                else:
                    self._transport.flush()
            except BlockingIOError:
                pass
            if left or self._transport.wants_write:
                await self._wait(for_room=True)

    async def discard(self) -> None:
        """Discard received bytes until the client sends no more. Raises ``OSError``."""
        while True:
            with suppress(BlockingIOError):
                if self._transport.recv_into(self._memory.received) == 0:
                    return
            # Also where more is there already: others get their turns in between.
            await self._wait(for_room=self._transport.wants_write)

    def close(self) -> None:
        """Release the counted memory."""
        self._count(0)

    async def _exactly(self, size_bytes: int) -> bytearray | None:
        data = bytearray()
        while len(data) < size_bytes:
            room = self._memory.received[: size_bytes - len(data)]
            try:
                count = self._transport.recv_into(room)
            except BlockingIOError:
                self._count(len(data))
                await self._wait(for_room=self._transport.wants_write)
                continue
            if count == 0:
                return None
            data += room[:count]
        self._count(len(data))
        return data

    def _count(self, frame_bytes: int) -> None:
        """Count the bytes of the current frame. Raises ``CloseConnection``."""
        counted_bytes = frame_bytes if frame_bytes > FRAME_BYTES_UNCOUNTED else 0
        self._memory.counted_bytes += counted_bytes - self._counted_bytes
        self._counted_bytes = counted_bytes
        if counted_bytes and self._memory.counted_bytes > COUNTED_BYTES_MAX:
            raise CloseConnection("too many large tokens of clients that are not logged in")

    async def _wait(self, *, for_room: bool) -> None:
        """Return once the socket is readable, or writable with ``for_room``."""
        event: asyncio.Future[None] = self._loop.create_future()
        descriptor = self._transport.fileno()
        if for_room:
            self._loop.add_writer(descriptor, _wake, event)
        else:
            self._loop.add_reader(descriptor, _wake, event)
        try:
            await event
        finally:
            if for_room:
                self._loop.remove_writer(descriptor)
            else:
                self._loop.remove_reader(descriptor)
        if for_room:
            self._transport.flush()


def _wake(event: asyncio.Future[None]) -> None:
    if not event.done():
        event.set_result(None)


def _size_problem(head: bytearray, size: int, bytes_max: int) -> str:
    if head.startswith(_TLS_HANDSHAKE):
        return "the client begins with TLS, which this listener does not have"
    return f"a frame of {size} bytes before authentication, allowed are {bytes_max} ({SETTING})"
