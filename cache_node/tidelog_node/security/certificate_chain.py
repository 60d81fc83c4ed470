"""Completes the certificates that a listener shows to its clients.

If there is only the listener's own certificate, OpenSSL adds those of its issuers that are among
the trusted ones. It finds and verifies them again in every handshake, which took an eighth of a
handshake's instructions. So the same certificates are added once, when the context is built.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding

ISSUERS_MAX = 10  # of a certificate, each the issuer of the one before


def with_issuers(chain: str, trusted: str) -> str:
    """Return the chain (PEM), with the trusted issuers of its certificate if that is alone.

    Text that cannot be read is returned as it is: OpenSSL names its fault.
    """
    try:
        shown = x509.load_pem_x509_certificates(chain.encode())
        known = x509.load_pem_x509_certificates(trusted.encode()) if trusted else []
    except ValueError:
        return chain
    if len(shown) != 1:
        return chain
    newest = shown[0]
    found: list[x509.Certificate] = []
    while len(found) < ISSUERS_MAX and newest.issuer != newest.subject:
        issuer = _issuer_of(newest, known)
        if issuer is None:
            break
        found.append(issuer)
        newest = issuer
    return "\n".join([chain, *(one.public_bytes(Encoding.PEM).decode() for one in found)])


def _issuer_of(
    certificate: x509.Certificate, known: Iterable[x509.Certificate]
) -> x509.Certificate | None:
    """Return the issuer's certificate, as OpenSSL: a valid one, else the last one that was."""
    now = datetime.datetime.now(datetime.UTC)
    newest: x509.Certificate | None = None
    for candidate in known:
        try:
            certificate.verify_directly_issued_by(candidate)
        except (InvalidSignature, UnsupportedAlgorithm, TypeError, ValueError):
            continue
        if candidate.not_valid_before_utc <= now <= candidate.not_valid_after_utc:
            return candidate
        if newest is None or candidate.not_valid_after_utc > newest.not_valid_after_utc:
            newest = candidate
    return newest
