"""The client's side of the handshake by which two nodes prove who they are.

See ``NodeTransport``, its other end.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import cast

from tidelog_node.security.node_identity import PLAIN

UNKNOWN_ALERT = "TLSV1_ALERT_UNKNOWN_CA"  # OpenSSL: the other end does not trust the certificate
UNKNOWN_THERE = "the other node has not read this one's registration yet"


class NodeProof(asyncio.Protocol):
    """Makes the handshake on an open connection; ``result`` has its outcome."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing)
        self._transport: asyncio.Transport | None = None
        self._is_established = False
        # Whether the other end has accepted this one and both continue in plain bytes. False: it
        # wants encryption, and this connection can only be closed. Raises ``OSError``.
        self.result: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the handshake."""
        self._transport = cast("asyncio.Transport", transport)
        self._go_on()

    def data_received(self, data: bytes) -> None:
        """Continue the handshake with the received bytes."""
        self._incoming.write(data)
        self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the handshake."""
        self._fail(exc or ConnectionResetError("closed during the handshake"))

    def _go_on(self) -> None:
        assert self._transport is not None
        try:
            if not self._is_established:
                self._tls.do_handshake()
                self._is_established = True
            if self._tls.selected_alpn_protocol() != PLAIN:
                self._finish(is_plain=False)
            elif self._tls.read(1) or self._incoming.pending:
                self._fail(ConnectionAbortedError("the node sends data that was not asked for"))
            else:
                self._finish(is_plain=True)  # It has ended TLS: so it has accepted this end.
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            is_unknown = error.reason == UNKNOWN_ALERT
            self._fail(ConnectionRefusedError(UNKNOWN_THERE) if is_unknown else error)
        self._transport.write(self._outgoing.read())

    def _finish(self, *, is_plain: bool) -> None:
        if not self.result.done():
            self.result.set_result(is_plain)

    def _fail(self, error: Exception) -> None:
        if not self.result.done():
            self.result.set_exception(error)
