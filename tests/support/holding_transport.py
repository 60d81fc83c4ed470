"""Transports that do to a connection what encryption will: hold bytes back, hand out few."""

from __future__ import annotations

import os
import random
import socket
import ssl
from collections.abc import Sequence

from tidelog_core.model import ReadableFile
from tidelog_node.connections.transport import Buffer

RECORD_BYTES_MAX = 20_000


class HoldingTransport:
    """Hands out what it has received in pieces, and holds back what it is to send.

    Like one over memory BIOs it takes more from the socket than it is asked for, and answers
    for bytes that the socket has not taken. At times it has nothing to hand out though the socket
    was readable (a part of a record), and something of its own to send (a handshake).
    """

    def __init__(
        self,
        sock: socket.socket,
        *,
        receive_bytes_max: int = 1,
        held_bytes_max: int = 100,
        send_bytes_max: int = 7,
        chance: random.Random | None = None,
        greeting: bytes = b"",
    ) -> None:
        """``greeting`` is what it sends by itself when the client has sent something."""
        self.wants_write = False
        self._socket = sock
        self._receive_bytes_max = receive_bytes_max
        self._held_bytes_max = held_bytes_max
        self._send_bytes_max = send_bytes_max  # that the socket takes at a time
        self._chance = chance
        self._greeting = greeting
        self._received = b""
        self._held = bytearray()

    @property
    def has_received(self) -> bool:
        """Whether it has bytes that it has not handed out."""
        return bool(self._received)

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def expect(self, size_bytes: int) -> None:
        """Do nothing."""

    def recv_into(self, buffer: memoryview) -> int:
        """Hand out a piece."""
        if not self._received:
            if self._chance is not None and self._chance.random() < 0.2:
                raise BlockingIOError
            self._received = self._socket.recv(1000)
            self._held += self._greeting
            self._greeting = b""
            self.wants_write = bool(self._held)
        count = min(self._receive_bytes_max, len(buffer), len(self._received))
        buffer[:count] = self._received[:count]
        self._received = self._received[count:]
        return count

    def send(self, data: Buffer) -> int:
        """Hold some of it, after what was held before is out."""
        self._flush_or_block()
        count = min(len(data), self._held_bytes_max)
        self._held += data[:count]
        self.flush()
        return count

    def sendmsg(self, segments: Sequence[Buffer], *, has_more: bool) -> int:
        """Send them as one."""
        assert segments
        return self.send(b"".join(segments))

    def sendfile(self, file: ReadableFile, position: int, size_bytes: int) -> int:
        """Read the bytes and send them."""
        self._flush_or_block()
        return self.send(os.pread(file.fileno(), min(size_bytes, self._held_bytes_max), position))

    def flush(self) -> None:
        """Give the socket a piece of what is held."""
        if self._held:
            sent = self._socket.send(self._held[: self._send_bytes_max])
            del self._held[:sent]
        self.wants_write = bool(self._held)

    def _flush_or_block(self) -> None:
        if self.wants_write:
            self.flush()
        if self.wants_write:
            raise BlockingIOError

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


class TlsClient:
    """The client's end of a TLS connection, with the methods of a socket that tests use."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        self._socket = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing)

    def go_on(self) -> bool:
        """Go on with the handshake; return whether this end has finished it.

        The last message is not sent yet then.
        """
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self.flush()
            self._socket.setblocking(False)
            try:
                self._incoming.write(self._socket.recv(RECORD_BYTES_MAX))
            except BlockingIOError:
                pass
            finally:
                self._socket.settimeout(60)
            return False
        return True

    def sendall(self, data: bytes) -> None:
        written = 0
        while written < len(data):
            written += self._tls.write(data[written:])
        self.flush()

    def recv(self, size_bytes: int, flags: int = 0) -> bytes:
        while True:
            try:
                return self._tls.read(size_bytes)
            except ssl.SSLWantReadError:
                received = self._socket.recv(RECORD_BYTES_MAX, flags)
                if not received:
                    return b""
                self._incoming.write(received)
            except ssl.SSLZeroReturnError:
                return b""

    def shutdown(self, how: int) -> None:
        self._socket.shutdown(how)

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        self._socket.setsockopt(level, option, value)

    def close(self) -> None:
        self._socket.close()

    def flush(self, behind: bytes = b"") -> None:
        """Send what is encrypted, and plain bytes behind it."""
        self._socket.sendall(self._outgoing.read() + behind)
