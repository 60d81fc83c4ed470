"""The transport of a connection from another node.

It begins with TLS, by which both ends prove who they are. If neither wants encryption, the server
ends it right after that (close_notify, which also says that the client was accepted), and both go
on in plain bytes: sendfile again, and half of the CPU time. The handshake protects the choice
(ALPN), so nobody on the way can make it for them. What follows in plain bytes is as safe as the
network between the nodes.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence

from tidelog_core.model import ReadableFile

from tidelog_node.connections.tls_transport import TlsBuffers, TlsTransport
from tidelog_node.connections.transport import Buffer, PlainTransport, Transport
from tidelog_node.security.node_identity import PLAIN


class NodeTransport:
    """TLS, and the plain socket after it if both ends agree."""

    __slots__ = ("_early", "_socket", "_tls", "_transport")

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext,
        *,
        buffers: TlsBuffers,
        on_established: Callable[[ssl.SSLObject], None],
    ) -> None:
        """``on_established`` is called as ``TlsTransport`` calls it."""
        self._socket = sock
        self._tls = TlsTransport(sock, context, buffers=buffers, on_established=on_established)
        self._transport: Transport = self._tls
        self._early = b""  # plain bytes that came together with the end of the handshake

    @property
    def has_received(self) -> bool:
        """Whether ``recv_into`` has something without the socket."""
        return bool(self._early) or self._transport.has_received

    @property
    def wants_write(self) -> bool:
        """Whether bytes are held back."""
        return self._transport.wants_write

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._transport.fileno()

    def recv_into(self, buffer: memoryview) -> int:
        """Receive; the first calls make the handshake."""
        if not self._tls.is_established:
            self._tls.shake_hands()
            if self._tls.application_protocol == PLAIN:
                self._early = self._tls.end_encryption()
                self._transport = PlainTransport(self._socket)
        if self._early:
            count = min(len(buffer), len(self._early))
            buffer[:count] = self._early[:count]
            self._early = self._early[count:]
            return count
        return self._transport.recv_into(buffer)

    def send(self, data: Buffer) -> int:
        """Send the bytes."""
        return self._transport.send(data)

    def sendmsg(self, segments: Sequence[Buffer], *, has_more: bool) -> int:
        """Send the segments in one call."""
        return self._transport.sendmsg(segments, has_more=has_more)

    def sendfile(self, file: ReadableFile, position: int, size_bytes: int) -> int:
        """Send bytes of the file."""
        return self._transport.sendfile(file, position, size_bytes)

    def flush(self) -> None:
        """Send what is held back, as far as the socket takes it."""
        self._transport.flush()

    def close(self) -> None:
        """Close the socket."""
        self._transport.close()
