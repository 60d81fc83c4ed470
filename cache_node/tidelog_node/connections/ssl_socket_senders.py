"""How bytes are sent on a TLS connection whose handshake was made on the socket itself.

``choose_sender`` asks the kernel whether it encrypts the connection. If so, plain bytes go to the
socket, by ``sendfile`` too. If not, every byte goes through OpenSSL: bytes written to the socket
itself would be sent unencrypted.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Sequence
from typing import Protocol

from tidelog_core.model import ReadableFile

from tidelog_node.connections.chunk_sender import ChunkSender
from tidelog_node.connections.transport import Buffer
from tidelog_node.security.kernel_tls import kernel_encrypts

CHUNK_BYTES = 65_536  # given to OpenSSL at a time, and held back for a slow client


class Sender(Protocol):
    """The sending half of a ``Transport``."""

    @property
    def wants_write(self) -> bool:
        """Whether bytes are held back."""

    def send(self, data: Buffer) -> int:
        """Return how many of the bytes are sent or held back."""

    def sendmsg(self, segments: Sequence[Buffer], *, has_more: bool) -> int:
        """Send the segments together."""

    def sendfile(self, file: ReadableFile, position: int, size_bytes: int) -> int:
        """Send bytes of a file. Returns 0 if the file ends before them."""

    def flush(self) -> None:
        """Send the bytes held back. Raises ``BlockingIOError`` while some are left."""


def choose_sender(sock: ssl.SSLSocket, chunk: memoryview) -> Sender:
    """Return the sender for a connection after its handshake. ``chunk`` is as for OpenSSL's."""
    return KernelSender(sock) if kernel_encrypts(sock) else OpenSslSender(sock, chunk)


class KernelSender:
    """Has the kernel encrypt. It buffers nothing: sent bytes are in the socket."""

    __slots__ = ("_socket", "wants_write")

    def __init__(self, sock: ssl.SSLSocket) -> None:
        """Raises ``PermissionError`` if the bytes would leave in the clear."""
        if not kernel_encrypts(sock):
            raise PermissionError("the kernel does not encrypt this connection")
        self._socket = sock
        self.wants_write = False

    def send(self, data: Buffer) -> int:
        """Send the bytes."""
        # An SSLSocket's own ``send`` would use OpenSSL.
        sent = socket.socket.send(self._socket, data)
        if sent < len(data):
            self._raise_if_broken()
        return sent

    def sendmsg(self, segments: Sequence[Buffer], *, has_more: bool) -> int:
        """Send the segments in one call; with ``has_more`` the next bytes share their record."""
        flags = socket.MSG_MORE if has_more else 0
        return socket.socket.sendmsg(self._socket, segments, (), flags)

    def sendfile(self, file: ReadableFile, position: int, size_bytes: int) -> int:
        """Have the kernel read and encrypt the bytes of the file."""
        return os.sendfile(self._socket.fileno(), file.fileno(), position, size_bytes)

    def flush(self) -> None:
        """Do nothing: no bytes are held back."""

    def _raise_if_broken(self) -> None:
        """Raise ``BrokenPipeError`` if the client has reset the connection.

        Linux 6.1 takes bytes for it all the same, a record at a time, and drops them. So a reset
        shows here or, as always, in the next receive.
        """
        try:
            self._socket.getpeername()
        except OSError:
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from None


class OpenSslSender(ChunkSender):
    """Has OpenSSL encrypt, on the socket.

    OpenSSL sends a chunk whole or wants the same bytes again, even if most are sent: fewer, or
    others, would end the connection. So a chunk that it could not send is held back until it could.
    """

    __slots__ = ("_socket", "wants_write")

    def __init__(self, sock: ssl.SSLSocket, chunk: memoryview) -> None:
        """``chunk`` has room for ``CHUNK_BYTES``, is shared, and empty between calls."""
        super().__init__(chunk[:CHUNK_BYTES])
        self._socket = sock
        self.wants_write = False

    def flush(self) -> None:
        """Send the bytes held back. Raises ``BlockingIOError`` while some are left."""
        self._send_held()

    def _send_held(self) -> None:
        """Give OpenSSL the held bytes again."""
        if self._socket.fileno() < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if self._held:
            if not self._is_written(self._held):
                raise BlockingIOError
            self._held = b""
            self.wants_write = False

    def _send_chunk(self, chunk: memoryview) -> int:
        """Send the chunk or hold it back; return its size."""
        if not self._is_written(chunk):
            self._held = bytes(chunk)  # not encrypted; OpenSSL may have sent a part of it
            self.wants_write = True
        return len(chunk)

    def _is_written(self, data: Buffer) -> bool:
        try:
            self._socket.write(data)
        except ssl.SSLWantWriteError:
            return False
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from None
        return True
