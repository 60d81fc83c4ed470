"""A transport that encrypts, with OpenSSL between two buffers in memory.

The socket's bytes go into one buffer (BIO), from which OpenSSL reads records. It writes encrypted
bytes into the other buffer, from which they go to the socket. One large receive brings many
records; OpenSSL on a socket would make two system calls for each.

Memory of one connection: at most ``CHUNK_BYTES`` of encrypted bytes wait for a slow client, and no
more are encrypted before they are sent. At most ``RECEIVE_BYTES`` of received bytes wait for
``recv_into``, and one call takes no more than that from the socket: a client of TLS 1.3 may send
changes of its key without end, which have no bytes to hand out. It may want each answered by a
change of the node's key; a client that does not take these answers is disconnected.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from tidelog_node.connections.chunk_sender import ChunkSender
from tidelog_node.connections.transport import PlainTransport
from tidelog_node.low_water_mark import LowWaterMark

CHUNK_BYTES = 262_144  # encrypted, and read from a file, at a time
RECEIVE_BYTES = 131_072
RECORD_BYTES_MAX = 5 + 16_384 + 256  # with its head and padding. Source: RFC 8446, section 5.2.
LOW_WATER_BYTES_MIN = 32_768  # of a client's request that is still to come
UNASKED_BYTES_MAX = 65_536  # of OpenSSL's own answers, which are some 30 bytes each


class TlsBuffers:
    """The buffers that the transports of one loop share; they are empty between calls."""

    __slots__ = ("file", "received")

    def __init__(self) -> None:
        self.received = memoryview(bytearray(RECEIVE_BYTES))
        self.file = memoryview(bytearray(CHUNK_BYTES))


def tls_low_water_mark(sock: socket.socket) -> LowWaterMark:
    """Return the mark of a socket from which OpenSSL receives.

    Encrypted, the bytes are more, so a mark below them is always reached. But OpenSSL keeps what
    has come of an unfinished record to itself: that much less is to come.
    """
    return LowWaterMark(sock, held_bytes_max=RECORD_BYTES_MAX, bytes_min=LOW_WATER_BYTES_MIN)


class TlsTransport(ChunkSender):
    """The server's end of a TLS connection. Shakes hands in the first receives."""

    __slots__ = (
        "_buffers",
        "_incoming",
        "_low_water",
        "_on_established",
        "_on_refused",
        "_outgoing",
        "_socket",
        "_tls",
        "has_received",
        "is_established",
        "wants_write",
    )

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        buffers: TlsBuffers,
        on_established: Callable[[ssl.SSLObject], None],
        on_refused: Callable[[OSError], None] | None = None,
    ) -> None:
        """``on_established`` is called after the handshake; an ``OSError`` refuses the client.

        ``on_refused`` gets that error, or the reason why the handshake failed. It is not called
        for a client that closes the connection during the handshake.
        """
        super().__init__(buffers.file)
        self._socket = sock
        self._buffers = buffers
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._on_established = on_established
        self._on_refused = on_refused
        self.is_established = False
        self._low_water = tls_low_water_mark(sock)
        self.has_received = False
        self.wants_write = False

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def expect(self, size_bytes: int) -> None:
        """Have the socket readable only once a good part of these bytes has come."""
        self._low_water.expect(size_bytes - self._incoming.pending)

    def recv_into(self, buffer: memoryview) -> int:
        """Receive and decrypt; the first calls make the handshake."""
        if not self.is_established:
            self.shake_hands()
            if not self._incoming.pending and not self._tls.pending():
                raise BlockingIOError  # The client's first request has not come.
        if self._outgoing.pending > UNASKED_BYTES_MAX:
            raise ConnectionAbortedError("a client that changes its key takes no answers to it")
        filled, room_bytes = 0, len(buffer)
        is_fed = False
        self.has_received = False
        # One call reads one record, and a client may make a record of each field of a request.
        read: Callable[[int, memoryview], int] = self._tls.read  # type: ignore[assignment]
        try:
            while filled < room_bytes:
                try:
                    count = read(room_bytes - filled, buffer[filled:])
                except ssl.SSLWantReadError:
                    if is_fed and not filled:
                        raise BlockingIOError from None
                    if filled or not self._feed():
                        break
                    is_fed = True
                    continue
                except ssl.SSLZeroReturnError:
                    break
                if not count:
                    break
                filled += count
        finally:
            # A client that changes its key may want an answer.
            self.wants_write = bool(self._held) or self._outgoing.pending > 0
        # Only bytes that did not fit. The socket has an event for the rest of a partial record.
        self.has_received = filled == room_bytes and (
            self._tls.pending() > 0 or self._incoming.pending > 0
        )
        return filled

    def flush(self) -> None:
        """Send the held bytes, as far as the socket accepts them."""
        with suppress(BlockingIOError):
            self._send_held()

    def close(self) -> None:
        """Send close_notify, if the socket accepts it, and close the socket."""
        if self.is_established and not self._held and self._socket.fileno() >= 0:
            with suppress(OSError):  # «Want read» is one: the client's close_notify is not awaited.
                self._tls.unwrap()
            with suppress(OSError):
                self._socket.send(self._outgoing.read())
        self._held = b""
        self._socket.close()

    # -- the handshake --

    def shake_hands(self) -> None:
        """Continue the handshake. Raises ``BlockingIOError`` while it needs more bytes."""
        try:
            self._negotiate()
            # A client that it refuses gets no close_notify: between nodes it means acceptance.
            self._on_established(self._tls)
        except (ssl.SSLError, PermissionError) as error:
            if self._on_refused is not None:
                self._on_refused(error)
            raise
        self.is_established = True

    @property
    def application_protocol(self) -> str | None:
        """The protocol chosen by ALPN."""
        return self._tls.selected_alpn_protocol()

    def end_encryption(self) -> tuple[PlainTransport, bytes]:
        """Announce plain bytes; return their transport, and the plain bytes received so far.

        Call it directly after the handshake, before any send. This transport must not be used
        after it. Raises ``OSError``.
        """
        early = self._incoming.read()  # First: unwrap would read it as the client's own end.
        with suppress(ssl.SSLWantReadError):  # The client does not answer it.
            self._tls.unwrap()
        self._send_held()
        return PlainTransport(self._socket), early

    # -- inside --

    def _negotiate(self) -> None:
        try:
            if not self._incoming.pending and not self._feed():  # The client speaks first.
                raise ConnectionAbortedError("closed during the handshake")
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                # The received bytes are used up. The client's next bytes answer those sent below.
                raise BlockingIOError from None
        finally:
            # Also after a failure: the client gets an alert with the reason.
            with suppress(BlockingIOError):
                self._send_held()

    def _feed(self) -> bool:
        """Receive encrypted bytes; return False once the client sends no more."""
        received = self._buffers.received
        count = self._socket.recv_into(received)
        if count:
            self._incoming.write(received[:count])
        return count > 0

    def _send_chunk(self, chunk: memoryview) -> int:
        """Encrypt the chunk, record by record, and send as much as the socket accepts."""
        written, size_bytes = 0, len(chunk)
        while written < size_bytes:
            written += self._tls.write(chunk[written:])
        self._send_encrypted()
        return size_bytes

    def _send_held(self) -> None:
        """Send all encrypted bytes. Raises ``BlockingIOError`` if some are left."""
        if self._socket.fileno() < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        while self._held or self._outgoing.pending:
            self._send_encrypted()
            if self._held:
                raise BlockingIOError

    def _send_encrypted(self) -> None:
        """Send the encrypted bytes; hold those that the socket does not accept."""
        data = memoryview(self._held or self._outgoing.read())
        try:
            while data:
                count = self._socket.send(data)
                data = data[count:]
        except BlockingIOError:
            pass
        finally:
            self._held = data  # encrypted bytes that the socket has not taken
            self.wants_write = bool(data) or self._outgoing.pending > 0
