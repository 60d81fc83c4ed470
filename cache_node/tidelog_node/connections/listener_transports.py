"""Selects the transport of a connection by its listener."""

from __future__ import annotations

import socket
import ssl
from functools import partial

from tidelog_node.connections.node_transport import NodeTransport
from tidelog_node.connections.tls_transport import TlsBuffers, TlsTransport
from tidelog_node.connections.transport import PlainTransport, Transport, TransportFactory
from tidelog_node.node_sessions import NodeSessions
from tidelog_node.security.listeners import Listeners
from tidelog_node.security.node_trust import NodeTrust
from tidelog_node.session import Session


def listener_transports(
    listeners: Listeners, trust: NodeTrust, nodes: NodeSessions
) -> TransportFactory:
    """Return the factory of transports: ``NodeTransport`` for nodes, plain for clients.

    The listener for nodes refuses any client that is not a node of the cluster before it reads
    a request.
    """
    buffers = TlsBuffers()

    def make(sock: socket.socket, session: Session) -> Transport:
        if session.listener != listeners.nodes.name:
            return PlainTransport(sock)
        tls = TlsTransport(
            sock,
            trust.server_context(),
            buffers=buffers,
            on_established=partial(_admit, nodes, session),
        )
        return NodeTransport(tls)

    return make


def _admit(nodes: NodeSessions, session: Session, tls: ssl.SSLObject) -> None:
    certificate = tls.getpeercert(binary_form=True)
    assert certificate is not None, "the handshake requires one"
    nodes.admit(session, certificate)
