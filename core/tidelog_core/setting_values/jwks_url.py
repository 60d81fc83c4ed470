"""Parses the address of the keys of OAUTHBEARER."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit


def parse_jwks_url(url: str) -> SplitResult | None:
    """Return the parts of ``sasl.oauthbearer.jwks.endpoint.url``, ``None`` if it is empty.

    Raises ``ValueError`` unless it is an https address or a file's: an attacker who can change the
    keys in transit can log in as anyone.
    """
    if not url:
        return None
    parts = urlsplit(url)
    is_file = parts.scheme == "file" and parts.path and parts.netloc in ("", "localhost")
    is_https = parts.scheme == "https" and parts.hostname and not parts.username
    if not is_file and not is_https:
        raise ValueError("must be https://host/path, or file:/path")
    return parts
