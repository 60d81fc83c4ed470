"""Selects the transport of a connection by its listener."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from functools import partial

from tidelog_node.connections.node_transport import NodeTransport
from tidelog_node.connections.tls_transport import TlsBuffers, TlsTransport
from tidelog_node.connections.transport import Transport, TransportFactory, plain_transport
from tidelog_node.requests.node_sessions import NodeSessions
from tidelog_node.requests.session import Session
from tidelog_node.security.node_trust import NodeTrust


class ListenerTransports:
    """Makes a ``NodeTransport`` for nodes, and the listener's TLS or plain transport for clients.

    The listener for nodes refuses any client that is not a node of the cluster before it reads
    a request.
    """

    def __init__(
        self,
        nodes_listener: str,
        *,
        trust: NodeTrust,
        nodes: NodeSessions,
        buffers: Callable[[], TlsBuffers],
        of_clients: TransportFactory = plain_transport,
    ) -> None:
        """``of_clients`` makes the transports of all other listeners."""
        self._nodes_listener = nodes_listener
        self._trust = trust
        self._nodes = nodes
        self._buffers = buffers
        self._of_clients = of_clients

    def __call__(self, sock: socket.socket, session: Session) -> Transport:
        """Return the transport of an accepted connection."""
        if session.listener != self._nodes_listener:
            return self._of_clients(sock, session)
        return NodeTransport(
            TlsTransport(
                sock,
                self._trust.server_context(),
                buffers=self._buffers(),
                on_established=partial(self._admit, session),
            )
        )

    def _admit(self, session: Session, tls: ssl.SSLObject) -> None:
        certificate = tls.getpeercert(binary_form=True)
        assert certificate is not None, "the handshake requires one"
        self._nodes.admit(session, certificate)
