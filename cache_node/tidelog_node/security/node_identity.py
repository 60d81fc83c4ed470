"""The key pair by which a node proves to the other nodes which broker it is.

Each process makes a P-256 key and a self-signed certificate, and publishes the certificate in its
broker item (``Broker.certificate``). A writer of the metadata store counts as a node, so the item
is sufficient proof. The other nodes trust exactly the certificates of the image, so
there is no authority, no file to distribute and no expiry; a certificate is revoked by leaving the
image. The key comes by a pipe from the process that makes it (``key_pair``) and then stays in this
one; the next process of the broker has another.
"""

from __future__ import annotations

import binascii
import logging
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field

from tidelog_node.security.in_memory_file import in_memory_file
from tidelog_node.security.key_pair import new_key_pair

logger = logging.getLogger(__name__)

PLAIN = "tidelog-plain"  # chosen by ALPN, which the handshake protects
# The certificate itself is trusted, so a wrong clock does not matter.
_VALID_FROM, _VALID_TO = "20000101000000Z", "99991231000000Z"
_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """A node's certificate and its key. Made by ``generate_identity``."""

    broker_id: int
    certificate: bytes  # DER
    _pair: bytes = field(repr=False)  # PEM: the key and the certificate

    def server_context(
        self, trusted: Iterable[bytes], *, may_be_plain: bool = False
    ) -> ssl.SSLContext:
        """Return the context that accepts clients with a trusted certificate (DER).

        If it ``may_be_plain`` here and at the other end, both continue without encryption once they
        have proved their identities.
        """
        context = self._context(ssl.PROTOCOL_TLS_SERVER, trusted, may_be_plain=may_be_plain)
        context.num_tickets = 0  # a resumed session does not prove the certificate again
        return context

    def client_context(
        self, trusted: Iterable[bytes], *, may_be_plain: bool = False
    ) -> ssl.SSLContext:
        """Return the context that connects to servers with a trusted certificate (DER)."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT, trusted, may_be_plain=may_be_plain)

    def _context(
        self, protocol: int, trusted: Iterable[bytes], *, may_be_plain: bool
    ) -> ssl.SSLContext:
        """Raises ``ssl.SSLError`` if a trusted certificate is malformed."""
        context = ssl.SSLContext(protocol)
        if may_be_plain:
            context.set_alpn_protocols([PLAIN])
        context.minimum_version = ssl.TLSVersion.TLSv1_3  # both ends are ours
        context.check_hostname = False  # addresses change, certificates name brokers
        context.verify_mode = ssl.CERT_REQUIRED
        # A certificate that is trusted itself needs no authority above it.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        for certificate in trusted:
            context.load_verify_locations(cadata=certificate)
        with in_memory_file(self._pair) as path:
            context.load_cert_chain(path)
        return context


def generate_identity(broker_id: int) -> NodeIdentity:
    """Return a new identity."""
    name = f"tidelog node {broker_id}"
    try:
        pair = new_key_pair(name, valid_from=_VALID_FROM, valid_to=_VALID_TO)
    except OSError as error:
        # A Python with an OpenSSL of its own inside, or one of another version.
        logger.debug("key pair made by the package cryptography", extra={"reason": str(error)})
        pair = _new_pair_by_package(name)
    # ``ssl.PEM_cert_to_DER_cert`` would load OpenSSL.
    encoded = pair[pair.index(_BEGIN) + len(_BEGIN) : pair.index(_END)]
    return NodeIdentity(broker_id, binascii.a2b_base64(encoded), pair)


def _new_pair_by_package(common_name: str) -> bytes:
    """Return a new key pair, as ``new_key_pair``. The package takes 50 ms to load, and 15 MB."""
    from datetime import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.strptime(_VALID_FROM, "%Y%m%d%H%M%S%z"))
        .not_valid_after(datetime.strptime(_VALID_TO, "%Y%m%d%H%M%S%z"))
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding
    return key.private_bytes(
        encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ) + certificate.public_bytes(encoding.PEM)
