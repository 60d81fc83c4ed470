"""Makes the transports of clients at listeners with TLS; their certificates may say who they are.

A listener that requires client certificates refuses clients without a valid one. Only nodes with
such listeners import this.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from tidelog_node.authentication.login_log import LoginLog
from tidelog_node.connections.kernel_tls_transport import SPENT_BYTES, KernelTlsTransport
from tidelog_node.connections.read_watch import ReadWatch
from tidelog_node.connections.tls_transport import TlsBuffers, TlsTransport
from tidelog_node.connections.transport import PlainTransport, Transport
from tidelog_node.requests.session import Session
from tidelog_node.security.handshake_failures import explain_failure
from tidelog_node.security.listener_tls import ListenerTls
from tidelog_node.security.listeners import Listener

CERTIFICATE = "certificate"  # how a client has proved who it is


class TlsClients:
    """Makes a ``TlsTransport``, or at a listener with kernel TLS a ``KernelTlsTransport``."""

    def __init__(
        self,
        listeners: Iterable[Listener],
        *,
        tls: ListenerTls,
        logins: LoginLog,
        buffers: Callable[[], TlsBuffers],
        kernel_tls: Mapping[str, ReadWatch],
        spent_bytes: int = SPENT_BYTES,
    ) -> None:
        """``kernel_tls`` has the listeners whose keys the kernel is offered, by their names.

        ``spent_bytes`` are what their connections may receive or send with one key.
        """
        # Their clients are the users of their logins, not of their certificates.
        self._with_sasl = {one.name for one in listeners if one.protocol.has_sasl}
        self._tls = tls
        self._logins = logins
        self._buffers = buffers
        self._kernel_tls = kernel_tls
        self._spent_bytes = spent_bytes

    def __call__(self, sock: socket.socket, session: Session) -> Transport:
        """Return the transport of an accepted connection; a plain one if its listener is plain."""
        context = self._tls.context(session.listener)
        if context is None:
            return PlainTransport(sock)
        watch = self._kernel_tls.get(session.listener)
        if watch is not None:
            return KernelTlsTransport(
                sock,
                context,
                buffers=self._buffers(),
                watch=watch,
                on_established=partial(self._admit, session),
                on_refused=partial(self._refuse, session),
                on_spent=session.end,
                spent_bytes=self._spent_bytes,
            )
        return TlsTransport(
            sock,
            context,
            buffers=self._buffers(),
            on_established=partial(self._admit, session),
            on_refused=partial(self._refuse, session),
        )

    def _admit(self, session: Session, tls: ssl.SSLObject | ssl.SSLSocket) -> None:
        certificate = tls.getpeercert(binary_form=True)
        session.become(self._tls.principal(session.listener, certificate))
        if certificate is not None and session.listener not in self._with_sasl:
            self._logins.accepted(session, CERTIFICATE)

    def _refuse(self, session: Session, error: OSError) -> None:
        reason, hint = explain_failure(error)
        self._logins.refused(session, reason, hint=hint)
