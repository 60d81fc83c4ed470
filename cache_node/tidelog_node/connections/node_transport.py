"""The transport of a connection from another node.

It begins with TLS, by which both ends prove their identities. If neither requires encryption, the
server ends TLS directly after the handshake (close_notify, which also means that the client was
accepted), and both continue in plain bytes, with sendfile. The handshake protects the choice
(ALPN), so an attacker on the network cannot change it. The plain bytes are as safe as the network
between the nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog_core.model import ReadableFile

from tidelog_node.connections.tls_transport import TlsTransport
from tidelog_node.connections.transport import Buffer, Transport
from tidelog_node.security.node_identity import PLAIN


class NodeTransport:
    """TLS, then the plain socket if both ends agree."""

    __slots__ = ("_early", "_tls", "_transport")

    def __init__(self, tls: TlsTransport) -> None:
        """``tls`` has not begun its handshake."""
        self._tls = tls
        self._transport: Transport = tls
        self._early = b""  # plain bytes that came together with the end of the handshake

    @property
    def has_received(self) -> bool:
        """Whether ``recv_into`` has bytes without reading the socket."""
        return bool(self._early) or self._transport.has_received

    @property
    def wants_write(self) -> bool:
        """Whether bytes are held back."""
        return self._transport.wants_write

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._transport.fileno()

    def expect(self, size_bytes: int) -> None:
        """Pass it on."""
        self._transport.expect(size_bytes)

    def recv_into(self, buffer: memoryview) -> int:
        """Receive; the first calls make the handshake."""
        if not self._tls.is_established:
            self._tls.shake_hands()
            if self._tls.application_protocol == PLAIN:
                self._transport, self._early = self._tls.end_encryption()
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
        """Send the held bytes, as far as the socket accepts them."""
        self._transport.flush()

    def close(self) -> None:
        """Close the socket."""
        self._transport.close()
