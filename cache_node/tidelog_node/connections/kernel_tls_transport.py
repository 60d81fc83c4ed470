"""A TLS transport that has the kernel encrypt, so that records go out with ``sendfile``.

The handshake is made on the socket, because OpenSSL hands keys to the kernel only there. After it
``choose_sender`` asks the kernel whether it encrypts sent bytes. OpenSSL receives: it needs two
system calls for each record, so clients that produce cost more than with ``TlsTransport``.

OpenSSL does not change a key that the kernel has. A client of TLS 1.3 that changes its own and asks
for another of the node (Java does after 2^37 bytes) may get records that it cannot read: OpenSSL
announces the new key if it sends anything itself, and the kernel goes on with the old one. So the
owner is told to end such a connection between two requests, once ``SPENT_BYTES`` have come or gone.
That is also below the number of records that one key may encrypt (RFC 8446, section 5.5).
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import cast

from tidelog_core.model import ReadableFile

from tidelog_node.connections.read_watch import ReadWatch
from tidelog_node.connections.ssl_socket_senders import (
    KernelSender,
    OpenSslSender,
    Sender,
    choose_sender,
)
from tidelog_node.connections.tls_transport import (
    RECEIVE_BYTES,
    TlsBuffers,
    tls_low_water_mark,
)
from tidelog_node.connections.transport import Buffer

SPENT_BYTES = 1 << 36  # half of Java's ``jdk.tls.keyLimits``


class KernelTlsTransport:
    """The server's end of a TLS connection. Shakes hands in the first receives."""

    __slots__ = (
        "_buffers",
        "_low_water",
        "_may_be_spent",
        "_on_established",
        "_on_refused",
        "_on_spent",
        "_received_bytes",
        "_sender",
        "_sent_bytes",
        "_socket",
        "_spent_bytes",
        "_watch",
        "has_received",
        "is_established",
    )

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        buffers: TlsBuffers,
        watch: ReadWatch,
        on_established: Callable[[ssl.SSLSocket], None],
        on_refused: Callable[[OSError], None] | None = None,
        on_spent: Callable[[], None] = lambda: None,
        spent_bytes: int = SPENT_BYTES,
    ) -> None:
        """Takes the socket over. The context must have ``allow_kernel_tls``.

        ``on_established`` and ``on_refused`` are as for ``TlsTransport``. ``on_spent`` is called
        in every receive after so many bytes. Raises ``OSError``.
        """
        self._socket = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        self._buffers = buffers
        self._watch = watch
        self._on_established = on_established
        self._on_refused = on_refused
        self._on_spent = on_spent
        self._spent_bytes = spent_bytes
        self._may_be_spent = False
        self._received_bytes = self._sent_bytes = 0
        self._low_water = tls_low_water_mark(self._socket)
        # Of the handshake's own messages, and of all others if the kernel takes no keys.
        self._sender: Sender = OpenSslSender(self._socket, buffers.file)
        self.is_established = False
        self.has_received = False

    @property
    def wants_write(self) -> bool:
        """Whether bytes are held back."""
        return self._sender.wants_write

    @property
    def is_sent_by_kernel(self) -> bool:
        """Whether the kernel encrypts sent bytes."""
        return isinstance(self._sender, KernelSender)

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def expect(self, size_bytes: int) -> None:
        """Have the socket readable only once a good part of these bytes has come."""
        self._low_water.expect(size_bytes)

    def recv_into(self, buffer: memoryview) -> int:
        """Receive and decrypt; the first calls make the handshake."""
        if self._socket.fileno() < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if not self.is_established:
            self._shake_hands()  # OpenSSL bounds its messages.
        self._watch.begin(self._socket)
        try:
            filled = self._read_into(buffer)
        finally:
            self._watch.end()
        self._received_bytes += filled
        if self._may_be_spent and max(self._received_bytes, self._sent_bytes) >= self._spent_bytes:
            self._on_spent()
        return filled

    def send(self, data: Buffer) -> int:
        """Encrypt and send, until the socket is full."""
        sent = self._sender.send(data)
        self._sent_bytes += sent
        return sent

    def sendmsg(self, segments: Sequence[Buffer], *, has_more: bool) -> int:
        """Send the segments together."""
        sent = self._sender.sendmsg(segments, has_more=has_more)
        self._sent_bytes += sent
        return sent

    def sendfile(self, file: ReadableFile, position: int, size_bytes: int) -> int:
        """Encrypt and send bytes of the file."""
        sent = self._sender.sendfile(file, position, size_bytes)
        self._sent_bytes += sent
        return sent

    def flush(self) -> None:
        """Send the held bytes, as far as the socket accepts them."""
        with suppress(BlockingIOError):
            self._sender.flush()

    def close(self) -> None:
        """Send close_notify, if the socket accepts it, and close the socket."""
        if self.is_established and not self.wants_write and self._socket.fileno() >= 0:
            with suppress(OSError):  # «Want read» is one: the client's close_notify is not awaited.
                self._socket.unwrap()
        self._socket.close()

    # -- inside --

    def _shake_hands(self) -> None:
        """Continue the handshake. Raises ``BlockingIOError`` while it needs more bytes."""
        try:
            self._socket.do_handshake()
            # A client that it refuses gets no close_notify, as with ``TlsTransport``.
            self._on_established(self._socket)
        except ssl.SSLWantReadError:
            raise BlockingIOError from None
        except ssl.SSLWantWriteError:
            raise ConnectionAbortedError(
                "the handshake does not fit into the socket: raise socket.send.buffer.bytes"
            ) from None
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            raise ConnectionAbortedError("closed during the handshake") from None
        except (ssl.SSLError, PermissionError) as error:
            if self._on_refused is not None:
                self._on_refused(error)
            raise
        self._sender = choose_sender(self._socket, self._buffers.file)
        self._may_be_spent = self.is_sent_by_kernel and self._socket.version() == "TLSv1.3"
        self.is_established = True

    def _read_into(self, buffer: memoryview) -> int:
        """Return how many bytes OpenSSL has put into the buffer. Raises ``BlockingIOError``."""
        filled, room_bytes = 0, min(len(buffer), RECEIVE_BYTES)
        if self.has_received:
            room_bytes = min(room_bytes, self._socket.pending())
        self.has_received = False
        try:
            while filled < room_bytes:
                rest = cast("bytearray", buffer[filled:room_bytes])
                count = self._socket.read(room_bytes - filled, rest)
                if not count:
                    self._raise_if_reset()
                    break
                filled += cast("int", count)
        except ssl.SSLWantReadError:
            if not filled:
                raise BlockingIOError from None
        except ssl.SSLWantWriteError:
            raise ConnectionAbortedError("a client that changes its key takes no answers") from None
        # Of a record that did not fit. The socket has an event for all others.
        self.has_received = filled == room_bytes and self._socket.pending() > 0
        return filled

    def _raise_if_reset(self) -> None:
        """Raise ``ConnectionResetError`` if the connection has ended in both directions.

        OpenSSL and Python report a reset as the end of the client's data.
        """
        try:
            self._socket.getpeername()
        except OSError:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)) from None
