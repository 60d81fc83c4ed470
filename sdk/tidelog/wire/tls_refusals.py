"""Tells a refusal that no retry mends from a handshake that was cut short."""

from __future__ import annotations

import ssl

from tidelog.errors import AuthenticationFailed

_TRUST = (
    "trust the authority that signed the node's certificate (ssl.truststore.location), and connect"
    " by a host name that is in the certificate"
)
_CERTIFICATE = (
    "give the client a certificate that the listener's ssl.truststore.location vouches for"
    " (ssl.keystore.location)"
)
_PROTOCOL = "the listener may have no TLS, or other versions of it: check its security protocol"
# By the end of OpenSSL's reason: its alerts have the version before it.
_HINTS = {
    "CERTIFICATE_VERIFY_FAILED": _TRUST,
    "ALERT_UNKNOWN_CA": _CERTIFICATE,
    "ALERT_BAD_CERTIFICATE": _CERTIFICATE,
    "ALERT_CERTIFICATE_REQUIRED": _CERTIFICATE,
    "ALERT_CERTIFICATE_EXPIRED": _CERTIFICATE,
    "ALERT_CERTIFICATE_REVOKED": _CERTIFICATE,
    "ALERT_CERTIFICATE_UNKNOWN": _CERTIFICATE,
    "ALERT_UNSUPPORTED_CERTIFICATE": _CERTIFICATE,
    "ALERT_ACCESS_DENIED": _CERTIFICATE,
    "ALERT_DECRYPT_ERROR": _CERTIFICATE,
    "ALERT_HANDSHAKE_FAILURE": _CERTIFICATE,
    "ALERT_PROTOCOL_VERSION": _PROTOCOL,
    "UNSUPPORTED_PROTOCOL": _PROTOCOL,
    "WRONG_VERSION_NUMBER": _PROTOCOL,
    "RECORD_LAYER_FAILURE": _PROTOCOL,
}


def tls_refusal(problem: BaseException | None, address: object) -> AuthenticationFailed | None:
    """Return the error of a TLS connection that fails the same way each time, else ``None``.

    With TLS 1.3 a node refuses a client's certificate when the client has finished its handshake
    already, so the alert may come in place of the first answer.
    """
    if not isinstance(problem, ssl.SSLError):
        return None
    reason = getattr(problem, "reason", None) or ""  # Not all of Python's own have one.
    for ending, hint in _HINTS.items():
        if reason.endswith(ending):
            error = AuthenticationFailed(
                f"TLS with {address} was refused: {problem}", reason=reason
            )
            error.hint = hint
            return error
    return None
