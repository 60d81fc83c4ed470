"""Builds the TLS context of a listener from PEM text, and tests it by a handshake in memory.

A context is never changed once clients use it. OpenSSL would keep an old certificate beside a new
one of another key type, and could not forget a trusted authority.
"""

from __future__ import annotations

import datetime
import ssl
from dataclasses import dataclass, field

from tidelog_core.config import ListenerConfig
from tidelog_core.errors import InvalidConfig

from tidelog_node.security.cipher_suites import apply_cipher_suites
from tidelog_node.security.in_memory_file import in_memory_file
from tidelog_node.security.kernel_tls import allow_kernel_tls

ROUND_TRIPS_MAX = 10  # of a handshake in memory; it takes three at most

# The names of members of ``ssl``, which is executed only where there is TLS.
_VERSIONS = {"TLSv1.2": "TLSv1_2", "TLSv1.3": "TLSv1_3"}
_CLIENT_AUTH = {"none": "CERT_NONE", "requested": "CERT_OPTIONAL", "required": "CERT_REQUIRED"}


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """The secrets and certificates of a listener, as PEM text."""

    key: str = field(repr=False)  # the private key; may be in the same text as the chain
    chain: str = field(repr=False)  # the certificate, then those that signed it
    password: str = field(repr=False)  # of the private key; "": it is not encrypted
    trusted: str = field(repr=False)  # the authorities of clients


def build_tls_context(config: ListenerConfig, material: TlsMaterial) -> ssl.SSLContext:
    """Return the context that accepts clients. Raises ``InvalidConfig`` with the reason."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    versions = sorted(ssl.TLSVersion[_VERSIONS[name]] for name in config.ssl_enabled_protocols)
    if not versions:
        raise InvalidConfig(["ssl.enabled.protocols has none: TLSv1.2 and TLSv1.3 are allowed"])
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # Kafka's clients do not resume sessions. TLS 1.2 keeps its tickets: without them OpenSSL would
    # store up to 20,480 sessions in memory.
    context.num_tickets = 0
    if config.ssl_ktls_enable:
        allow_kernel_tls(context)
    apply_cipher_suites(context, config.ssl_cipher_suites)
    _load_key(context, material)
    if material.trusted:
        try:
            context.load_verify_locations(cadata=material.trusted)
        except ssl.SSLError as error:
            raise InvalidConfig([f"the trusted certificates are not PEM text: {error}"]) from None
    elif config.ssl_client_auth != "none":
        raise InvalidConfig(
            [
                f"ssl.client.auth={config.ssl_client_auth} needs the authorities of clients:"
                " give ssl.truststore.location or ssl.truststore.certificates"
            ]
        )
    for version in versions:
        _prove(context, version)
    context.verify_mode = ssl.VerifyMode[_CLIENT_AUTH[config.ssl_client_auth]]
    return context


def expiry(material: TlsMaterial) -> datetime.datetime:
    """Return when the certificate expires. Raises ``InvalidConfig`` if it is not well formed."""
    from cryptography import x509

    try:
        certificates = x509.load_pem_x509_certificates(material.chain.encode())
    except ValueError as error:
        raise InvalidConfig([f"the certificate is not well formed: {error}"]) from None
    return certificates[0].not_valid_after_utc


def _load_key(context: ssl.SSLContext, material: TlsMaterial) -> None:
    from tidelog_node.security.certificate_chain import with_issuers

    # With no password OpenSSL would ask for one on the terminal.
    password = material.password or "no password is set"
    with (
        in_memory_file(material.key.encode()) as key,
        in_memory_file(with_issuers(material.chain, material.trusted).encode()) as chain,
    ):
        try:
            context.load_cert_chain(chain, key, password=password)
        except ssl.SSLError as error:
            raise InvalidConfig([_key_problem(error, material)]) from None


def _key_problem(error: ssl.SSLError, material: TlsMaterial) -> str:
    if "CERTIFICATE" not in material.chain:
        return "the key store has no certificate (-----BEGIN CERTIFICATE-----)"
    if "PRIVATE KEY" not in material.key:
        return "the key store has no private key (-----BEGIN PRIVATE KEY-----)"
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the private key does not belong to the first certificate of the chain"
    if "ENCRYPTED" in material.key and not material.password:
        return "the private key is encrypted: give ssl.key.password"
    if "ENCRYPTED" in material.key:
        return "the private key cannot be decrypted: is ssl.key.password right?"
    return f"the private key or the certificates cannot be read: {error.reason or error}"


def _prove(context: ssl.SSLContext, version: ssl.TLSVersion) -> None:
    """Shake hands with a client in memory. Raises ``InvalidConfig``."""
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    client_context.verify_mode = ssl.CERT_NONE
    client_context.minimum_version = client_context.maximum_version = version
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server)
    waiting = [client, server]
    try:
        for _ in range(ROUND_TRIPS_MAX):
            waiting = [end for end in waiting if not _is_done(end)]
            if not waiting:
                return
    except ssl.SSLError as error:
        raise InvalidConfig(
            [f"no handshake is possible by {version.name}: {error.reason}"]
        ) from None
    raise InvalidConfig([f"no handshake is possible by {version.name}: it does not end"])


def _is_done(end: ssl.SSLObject) -> bool:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True
