"""Explains to an operator why a TLS handshake with a client failed."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

PLAIN_CLIENT = "the client sends plain bytes: set its security.protocol to SSL or SASL_SSL"
UNTRUSTED_HERE = "add the authority of the client's certificate to ssl.truststore.location"
UNTRUSTED_THERE = "give the client the authority of this node's certificate (ssl.ca.location)"

# By OpenSSL's names of the reasons.
_HINTS: Mapping[str, str] = {
    "HTTP_REQUEST": "this address speaks the Kafka protocol, not HTTP",
    "HTTPS_PROXY_REQUEST": "this address speaks the Kafka protocol, not HTTP",
    "WRONG_VERSION_NUMBER": PLAIN_CLIENT,
    "RECORD_LAYER_FAILURE": PLAIN_CLIENT,
    "UNSUPPORTED_PROTOCOL": "the client offers no version of ssl.enabled.protocols",
    "NO_SHARED_CIPHER": "the client offers no suite of ssl.cipher.suites",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": (
        "ssl.client.auth=required: give the client a certificate and its key"
    ),
    "CERTIFICATE_VERIFY_FAILED": UNTRUSTED_HERE,
    "TLSV1_ALERT_UNKNOWN_CA": UNTRUSTED_THERE,
    "SSLV3_ALERT_BAD_CERTIFICATE": UNTRUSTED_THERE,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": UNTRUSTED_THERE,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "renew this node's certificate",
}


def explain_failure(error: OSError) -> tuple[str, str]:
    """Return the reason, and the operator's next step ("" if unknown)."""
    if not isinstance(error, ssl.SSLError):
        return str(error), ""
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{reason}: {error.verify_message}", _HINTS.get(reason, "")
    return reason, _HINTS.get(reason, "")
