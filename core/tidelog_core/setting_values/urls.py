"""Parses the addresses of services that nodes call: of OpenTelemetry's receivers, of login keys.

Source: the OTLP exporter specification, ``OTEL_EXPORTER_OTLP_ENDPOINT`` and ``_HEADERS``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import SplitResult, unquote, urlsplit

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE = re.compile(r"[\x20-\x7e]*")


def parse_otlp_endpoint(text: str) -> str:
    """Return the URL without a slash at its end, empty if there is none. Raises ``ValueError``."""
    if not text:
        return ""
    parts = urlsplit(text)
    is_right = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc
    if not is_right or not _is_port(parts) or parts.query or parts.fragment:
        raise ValueError("must be http://host:port or https://host:port, and may have a path")
    return text.rstrip("/")


def parse_otlp_headers(text: str) -> Mapping[str, str]:
    """Return the headers of ``name=value,name=value``, whose values may be percent-encoded.

    Raises ``ValueError`` without the values: they may be secrets.
    """
    headers = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, separator, value = part.partition("=")
        name, value = name.strip(), unquote(value.strip())
        if not separator or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError("must be name=value,name=value, with values percent-encoded")
        headers[name] = value
    return headers


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


def _is_port(parts: SplitResult) -> bool:
    try:
        return parts.port is None or parts.port > 0
    except ValueError:
        return False
