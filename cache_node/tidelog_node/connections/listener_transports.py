"""Selects the transport of a connection by its listener."""

from __future__ import annotations

import socket
import ssl
from functools import partial

from tidelog_node.connections.node_transport import NodeTransport
from tidelog_node.connections.tls_transport import TlsBuffers, TlsTransport
from tidelog_node.connections.transport import PlainTransport, Transport
from tidelog_node.node_sessions import NodeSessions
from tidelog_node.security.handshake_failures import explain_failure
from tidelog_node.security.listener_tls import ListenerTls
from tidelog_node.security.listeners import Listeners
from tidelog_node.security.node_trust import NodeTrust
from tidelog_node.security.refusals import RefusalLog
from tidelog_node.session import Session


class ListenerTransports:
    """Makes a ``NodeTransport`` for nodes, and the listener's TLS or plain transport for clients.

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
        refusals: RefusalLog,
    ) -> None:
        self._nodes_listener = listeners.nodes.name
        self._tls = tls
        self._trust = trust
        self._nodes = nodes
        self._refusals = refusals
        self._buffers = TlsBuffers()

    def __call__(self, sock: socket.socket, session: Session) -> Transport:
        """Return the transport of an accepted connection."""
        if session.listener == self._nodes_listener:
            return NodeTransport(
                TlsTransport(
                    sock,
                    self._trust.server_context(),
                    buffers=self._buffers,
                    on_established=partial(self._admit_node, session),
                )
            )
        context = self._tls.context(session.listener)
        if context is None:
            return PlainTransport(sock)
        return TlsTransport(
            sock,
            context,
            buffers=self._buffers,
            on_established=partial(self._admit_client, session),
            on_refused=partial(self._refuse, session),
        )

    def _admit_node(self, session: Session, tls: ssl.SSLObject) -> None:
        certificate = tls.getpeercert(binary_form=True)
        assert certificate is not None, "the handshake requires one"
        self._nodes.admit(session, certificate)

    def _admit_client(self, session: Session, tls: ssl.SSLObject) -> None:
        certificate = tls.getpeercert(binary_form=True)
        session.become(self._tls.principal(session.listener, certificate))

    def _refuse(self, session: Session, error: OSError) -> None:
        reason, hint = explain_failure(error)
        self._refusals.note(session, reason, hint=hint)
