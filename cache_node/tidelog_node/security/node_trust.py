"""Maps certificates to brokers, by the newest image.

A new node is unknown to its peers until their next poll of the store shows its item. Until then
they refuse its connections, and it tries again.
"""

from __future__ import annotations

import base64
import binascii
import logging
import ssl
from collections.abc import Mapping

from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Broker

from tidelog_node.security.node_identity import NodeIdentity

logger = logging.getLogger(__name__)

SPARE_CERTIFICATES = 16  # of ended processes, besides one a broker, before a context is replaced


class NodeTrust:
    """Pins nodes to their certificates, in both directions. For the node's event loop."""

    def __init__(
        self, identity: NodeIdentity, view: ClusterView, *, encrypts: bool = False
    ) -> None:
        """``encrypts``: all connections of this node stay encrypted."""
        self.identity = identity
        self.encrypts = encrypts
        self._view = view
        self._brokers: Mapping[int, Broker] = {}  # from which the values below were read
        self._ids: dict[bytes, int] = {}  # of brokers, by certificate
        self._read: dict[str, bytes | None] = {}  # certificates by their text in the items
        self._server_context: ssl.SSLContext | None = None  # made at its first use
        self._accepted: set[bytes] = set()  # by the context; some processes may have ended
        # By the certificate dialed, and whether the connection stays encrypted.
        self._client_contexts: dict[tuple[bytes, bool], ssl.SSLContext] = {}

    def broker_of(self, certificate: bytes) -> int | None:
        """Return the broker of the certificate (DER), ``None`` if it is unknown."""
        return self._current_ids().get(certificate)

    def server_context(self) -> ssl.SSLContext:
        """Return the context that accepts the nodes of the image.

        It may also accept certificates that have left the image, since a context cannot forget
        one: call ``broker_of`` after the handshake. A new context for every node that starts would
        take 0.2 s in a cluster of 1,000.
        """
        ids = self._current_ids()
        context = self._server_context
        if context is None or len(self._accepted) > 2 * len(ids) + SPARE_CERTIFICATES:
            context = self.identity.server_context(ids, may_be_plain=not self.encrypts)
            self._accepted = set(ids)
        for certificate in ids.keys() - self._accepted:
            context.load_verify_locations(cadata=certificate)
            self._accepted.add(certificate)
        self._server_context = context
        return context

    def client_context(self, broker: Broker, *, encrypts: bool) -> ssl.SSLContext | None:
        """Return the context for connecting to the broker, ``None`` if it has no identity."""
        certificate = self._certificate_of(broker)
        if certificate is None:
            return None
        key = certificate, encrypts
        context = self._client_contexts.get(key)
        if context is None:
            ids = self._current_ids()
            for gone in [key for key in self._client_contexts if key[0] not in ids]:
                del self._client_contexts[gone]
            context = self.identity.client_context([certificate], may_be_plain=not encrypts)
            self._client_contexts[key] = context
        return context

    def _current_ids(self) -> Mapping[bytes, int]:
        brokers = self._view.image.brokers
        if brokers is not self._brokers:
            self._brokers = brokers
            self._ids = {
                certificate: broker.broker_id
                for broker in brokers.values()
                if (certificate := self._certificate_of(broker)) is not None
            }
            known = {broker.certificate for broker in brokers.values()}
            self._read = {text: self._read[text] for text in self._read if text in known}
        return self._ids

    def _certificate_of(self, broker: Broker) -> bytes | None:
        """Return the certificate (DER) that the broker publishes, ``None`` without a usable one."""
        text = broker.certificate
        if text not in self._read:
            self._read[text] = _read_certificate(broker)
        return self._read[text]


def _read_certificate(broker: Broker) -> bytes | None:
    if not broker.certificate:
        return None
    try:
        certificate = base64.b64decode(broker.certificate, validate=True)
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=certificate)
    except (binascii.Error, ssl.SSLError, ValueError) as error:
        logger.warning(
            "certificate cannot be used",
            extra={"broker_id": broker.broker_id, "reason": str(error)},
        )
        return None
    return certificate
