"""Which requests are let in, and the headers of every answer. No I/O.

A page of another site can make a browser send requests to the console, and by DNS rebinding also
read the answers, as if they were its own: the browser then names the other site in ``Host``. So the
console answers only to the names that it has, and to forms only with the token that it gave.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from tidelog_console.settings import ConsoleSettings

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
PAGE_CACHE = "no-store"  # pages show what their visitor may see
STRICT_TRANSPORT = {"Strict-Transport-Security": "max-age=31536000"}


@dataclass(frozen=True, slots=True)
class Guard:
    """Decides with the names of the console."""

    names: frozenset[str]  # allowed in Host, without the port
    allows_addresses: bool  # also any IP address: those cannot be rebound

    @classmethod
    def of(cls, settings: ConsoleSettings) -> Guard:
        """Return the guard of a console."""
        names = {name.lower() for name in settings.host_names}
        if settings.is_loopback:
            return cls(frozenset({*names, *LOOPBACK_NAMES, settings.host.lower()}), False)
        return cls(frozenset({*names, settings.host.lower()}), True)

    def knows_host(self, header: str | None) -> bool:
        """Return whether the request's ``Host`` is a name of the console."""
        name = _name_of(header or "")
        if name in self.names:
            return True
        with contextlib.suppress(ValueError):
            return self.allows_addresses and bool(ipaddress.ip_address(name))
        return False

    def is_foreign(self, headers: Mapping[str, str]) -> bool:
        """Return whether another site's page sends the request, other than by a plain link."""
        site = headers.get("Sec-Fetch-Site", "none")
        if site in ("cross-site", "same-site"):
            is_link = headers.get("Sec-Fetch-Mode") == "navigate"
            return not (is_link and headers.get("Sec-Fetch-Dest") == "document")
        return False

    def is_own_origin(self, origin: str | None, host: str) -> bool:
        """Return whether a form was sent from the console's own page; no origin counts as none."""
        if origin is None:
            return True  # The token decides: browsers of before 2020 send none.
        scheme, separator, rest = origin.partition("://")
        return bool(separator) and scheme in ("http", "https") and rest.lower() == host.lower()


def _name_of(host: str) -> str:
    """Return the name in a ``Host`` header, without the port and in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().rstrip(".")


def sign(secret: bytes, purpose: str, text: str) -> str:
    """Return the signature of a text for one purpose; another purpose has another one."""
    # Cookies may have bytes that are no text: aiohttp reads them as surrogates.
    signed = f"{purpose}\0{text}".encode(errors="surrogatepass")
    return hmac.new(secret, signed, hashlib.sha256).hexdigest()


def is_signed(secret: bytes, purpose: str, text: str, signature: str) -> bool:
    """Return whether the signature is the text's; the time does not tell how much is right."""
    expected = sign(secret, purpose, text)
    return hmac.compare_digest(expected.encode(), signature.encode(errors="replace"))
