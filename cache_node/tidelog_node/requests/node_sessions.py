"""The sessions of other nodes: each acts as the broker whose identity it has proved."""

from __future__ import annotations

from collections.abc import Callable

from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.model import ANONYMOUS, Principal

from tidelog_node.requests.session import NO_NODE, Session
from tidelog_node.security.node_trust import NodeTrust

NODE_KIND = "Node"  # of a principal


class NodeSessions:
    """Admits nodes while the image has their certificates. For the node's event loop."""

    def __init__(self, trust: NodeTrust) -> None:
        self._trust = trust
        self._certificates: dict[Session, bytes] = {}

    def start(self, view: ClusterView) -> Callable[[], None]:
        """Follow the image. Returns the function that ends the subscription."""
        return view.subscribe(self._on_image)

    def admit(self, session: Session, certificate: bytes) -> None:
        """Let the session act as the broker that the certificate (DER) belongs to.

        Raises ``PermissionError`` if it belongs to no broker of the image.
        """
        broker_id = self._trust.broker_of(certificate)
        if broker_id is None:
            raise PermissionError("the certificate belongs to no broker of this cluster")
        session.node_id = broker_id
        session.become(Principal(NODE_KIND, str(broker_id)))
        self._certificates[session] = certificate
        session.on_close(self._forget)

    def _on_image(self, _: ClusterImage, __: frozenset[str]) -> None:
        for session, certificate in tuple(self._certificates.items()):
            if self._trust.broker_of(certificate) is None:
                # Another process of this id has registered, or the broker was removed.
                session.node_id = NO_NODE
                session.become(ANONYMOUS)
                self._forget(session)

    def _forget(self, session: Session) -> None:
        self._certificates.pop(session, None)
