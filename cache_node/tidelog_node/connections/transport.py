"""The bytes of one connection, to the client and from it. A transport never waits.

``Connection`` watches the socket for it, and calls ``recv_into`` when it is readable and ``flush``
when it is writable. A transport that encrypts may have received more than it has handed out
(``has_received``), or hold back bytes of an answer or of a handshake that the socket has not taken
(``wants_write``). No event of the socket shows either, so the transport reports them itself.

It is a protocol: tests can put a transport of their own under a connection that is compiled. A base
class would save 0.1 µs for each event of a socket, and needs a package at run time to allow that.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from tidelog_core.model import ReadableFile

from tidelog_node.requests.session import Session

Buffer = bytes | bytearray | memoryview


class Transport(Protocol):
    """Raises ``BlockingIOError`` instead of waiting, another ``OSError`` once it is broken.

    Bytes that it holds back are sent before any others; it would wait while it cannot send them.
    A send of fewer bytes than given means that the socket is full.
    """

    @property
    def has_received(self) -> bool:
        """Whether received bytes are waiting, so that ``recv_into`` returns at once."""

    @property
    def wants_write(self) -> bool:
        """Whether it holds bytes back: call ``flush`` as soon as the socket is writable."""

    def fileno(self) -> int:
        """Return the socket's descriptor, to watch it."""

    def expect(self, size_bytes: int) -> None:
        """Have the socket readable only once a good part of these bytes has come, if that helps.

        They are the rest of a request; 0: any byte counts.
        """

    def recv_into(self, buffer: memoryview) -> int:
        """Receive; return how many bytes, 0 once the client sends no more.

        Takes nothing from the socket until all bytes received before are handed out.
        """

    def send(self, data: Buffer) -> int:
        """Return how many of the bytes are sent or held back: the caller may forget them."""

    def sendmsg(self, segments: Sequence[Buffer], *, has_more: bool) -> int:
        """Send as ``send``; with ``has_more`` the last bytes may wait for the next ones."""

    def sendfile(self, file: ReadableFile, position: int, size_bytes: int) -> int:
        """Send bytes of a file as ``send``. Returns 0 if the file ends before them."""

    def flush(self) -> None:
        """Send the bytes held back; ``wants_write`` is True while some are left."""

    def close(self) -> None:
        """Close the socket and drop the bytes held back. A second call does nothing."""


TransportFactory = Callable[[socket.socket, Session], Transport]
"""Takes an accepted, non-blocking socket and its session."""


class PlainTransport:
    """The socket itself: it holds no bytes back."""

    __slots__ = ("_socket", "has_received", "wants_write")

    def __init__(self, sock: socket.socket) -> None:
        self.has_received = False
        self.wants_write = False
        self._socket = sock

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def expect(self, size_bytes: int) -> None:
        """Do nothing: clients send plain bytes in large pieces."""

    def recv_into(self, buffer: memoryview) -> int:
        """Receive into the buffer."""
        return self._socket.recv_into(buffer)

    def send(self, data: Buffer) -> int:
        """Send the bytes."""
        return self._socket.send(data)

    def sendmsg(self, segments: Sequence[Buffer], *, has_more: bool) -> int:
        """Send the segments in one call."""
        return self._socket.sendmsg(segments, (), socket.MSG_MORE if has_more else 0)

    def sendfile(self, file: ReadableFile, position: int, size_bytes: int) -> int:
        """Have the system send the bytes of the file; they are not copied."""
        return os.sendfile(self._socket.fileno(), file.fileno(), position, size_bytes)

    def flush(self) -> None:
        """Do nothing: no bytes are held back."""

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def plain_transport(sock: socket.socket, _: Session) -> Transport:
    """Return the transport of an unencrypted connection, for any listener."""
    return PlainTransport(sock)
