"""Decides by its listener how the bytes of a connection travel."""

from __future__ import annotations

import socket
import ssl
from functools import partial

from tidelog_core.metadata.endpoints import NODE

from tidelog_node.connections.node_transport import NodeTransport
from tidelog_node.connections.tls_transport import TlsBuffers
from tidelog_node.connections.transport import PlainTransport, Transport, TransportFactory
from tidelog_node.node_sessions import NodeSessions
from tidelog_node.security.node_trust import NodeTrust
from tidelog_node.session import Session


def listener_transports(trust: NodeTrust, nodes: NodeSessions) -> TransportFactory:
    """Return what makes ``NodeTransport`` of the node listener's connections; others are plain.

    At the node listener the handshake refuses whoever is no node of the cluster, before a byte of
    a request is read.
    """
    buffers = TlsBuffers()

    def make(sock: socket.socket, session: Session) -> Transport:
        if session.listener != NODE:
            return PlainTransport(sock)
        return NodeTransport(
            sock,
            trust.server_context(),
            buffers=buffers,
            on_established=partial(_admit, nodes, session),
        )

    return make


def _admit(nodes: NodeSessions, session: Session, tls: ssl.SSLObject) -> None:
    certificate = tls.getpeercert(binary_form=True)
    assert certificate is not None, "the handshake requires one"
    nodes.admit(session, certificate)
