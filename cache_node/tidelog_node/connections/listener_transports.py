"""Selects the transport of a connection by its listener."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from functools import partial

from tidelog_node.authentication.login_log import LoginLog
from tidelog_node.connections.kernel_tls_transport import SPENT_BYTES, KernelTlsTransport
from tidelog_node.connections.node_transport import NodeTransport
from tidelog_node.connections.read_watch import ReadWatch
from tidelog_node.connections.tls_transport import TlsBuffers, TlsTransport
from tidelog_node.connections.transport import PlainTransport, Transport
from tidelog_node.node_sessions import NodeSessions
from tidelog_node.security.handshake_failures import explain_failure
from tidelog_node.security.listener_tls import ListenerTls
from tidelog_node.security.listeners import Listeners
from tidelog_node.security.node_trust import NodeTrust
from tidelog_node.session import Session

CERTIFICATE = "certificate"  # how a client has proved who it is


class ListenerTransports:
    """Makes a ``NodeTransport`` for nodes, and the listener's TLS or plain transport for clients.

    A listener with kernel TLS has a ``KernelTlsTransport``.

    The listener for nodes refuses any client that is not a node of the cluster before it reads
    a request. A listener that requires client certificates refuses clients without a valid one.
    """

    def __init__(
        self,
        listeners: Listeners,
        *,
        tls: ListenerTls,
        trust: NodeTrust,
        nodes: NodeSessions,
        logins: LoginLog,
        kernel_tls: Mapping[str, ReadWatch] | None = None,
        spent_bytes: int = SPENT_BYTES,
    ) -> None:
        """``kernel_tls`` has the listeners whose keys the kernel is offered, by their names.

        ``spent_bytes`` are what their connections may receive or send with one key.
        """
        self._nodes_listener = listeners.nodes.name
        # Their clients are the users of their logins, not of their certificates.
        self._with_sasl = {one.name for one in listeners.clients if one.protocol.has_sasl}
        self._tls = tls
        self._trust = trust
        self._nodes = nodes
        self._logins = logins
        self._kernel_tls = kernel_tls or {}
        self._spent_bytes = spent_bytes
        self._buffers: TlsBuffers | None = None  # made for the first connection with TLS

    def __call__(self, sock: socket.socket, session: Session) -> Transport:
        """Return the transport of an accepted connection."""
        if session.listener == self._nodes_listener:
            return NodeTransport(
                TlsTransport(
                    sock,
                    self._trust.server_context(),
                    buffers=self._tls_buffers(),
                    on_established=partial(self._admit_node, session),
                )
            )
        context = self._tls.context(session.listener)
        if context is None:
            return PlainTransport(sock)
        watch = self._kernel_tls.get(session.listener)
        if watch is not None:
            return KernelTlsTransport(
                sock,
                context,
                buffers=self._tls_buffers(),
                watch=watch,
                on_established=partial(self._admit_client, session),
                on_refused=partial(self._refuse, session),
                on_spent=session.end,
                spent_bytes=self._spent_bytes,
            )
        return TlsTransport(
            sock,
            context,
            buffers=self._tls_buffers(),
            on_established=partial(self._admit_client, session),
            on_refused=partial(self._refuse, session),
        )

    def _tls_buffers(self) -> TlsBuffers:
        if self._buffers is None:
            self._buffers = TlsBuffers()
        return self._buffers

    def _admit_node(self, session: Session, tls: ssl.SSLObject) -> None:
        certificate = tls.getpeercert(binary_form=True)
        assert certificate is not None, "the handshake requires one"
        self._nodes.admit(session, certificate)

    def _admit_client(self, session: Session, tls: ssl.SSLObject | ssl.SSLSocket) -> None:
        certificate = tls.getpeercert(binary_form=True)
        session.become(self._tls.principal(session.listener, certificate))
        if certificate is not None and session.listener not in self._with_sasl:
            self._logins.accepted(session, CERTIFICATE)

    def _refuse(self, session: Session, error: OSError) -> None:
        reason, hint = explain_failure(error)
        self._logins.refused(session, reason, hint=hint)
