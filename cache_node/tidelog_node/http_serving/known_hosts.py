"""Checks the ``Host`` of HTTP requests: the defence against DNS rebinding. No I/O.

A page of any site can have its own name resolved to 127.0.0.1, and then read the answers of servers
there, because the browser takes them for the page's own site. The browser still names the page's
site in ``Host``. So requests that come over the loopback interface must give a name of this
machine. An IP address is always allowed: the browser did not resolve it, so nobody can rebind it.
Requests without ``Host`` come from no browser.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

ANY_HOST = "*"
LOOPBACK_NAME = "localhost"
SHOWN_CHARACTERS_MAX = 100
REFUSED_STATUS = 403


class _Transport(Protocol):
    def get_extra_info(self, name: str, default: object = None) -> object: ...


@dataclass(frozen=True, slots=True)
class KnownHosts:
    """Names of this node beside its IP addresses, in lower case; ``*``: every name."""

    names: frozenset[str] = frozenset({LOOPBACK_NAME})

    @classmethod
    def of(cls, names: Iterable[str]) -> KnownHosts:
        """Return these names, and localhost."""
        return cls(frozenset({LOOPBACK_NAME, *(name.lower() for name in names if name)}))

    def refusal(self, transport: _Transport | None, hosts: Iterable[str]) -> str | None:
        """Return why a request with these ``Host`` headers is refused; ``None``: it is not."""
        if ANY_HOST in self.names or not _is_over_loopback(transport):
            return None
        for header in hosts:
            if not self._knows(header):
                return (
                    f"{header[:SHOWN_CHARACTERS_MAX]!r} is no name of this node: ask for localhost "
                    "or an IP address, or add the name to http_allowed_hosts of the node"
                )
        return None

    def _knows(self, header: str) -> bool:
        name = _name_of(header)
        if name in self.names:
            return True
        with contextlib.suppress(ValueError):
            return bool(ipaddress.ip_address(name))
        return False


ONLY_LOCALHOST = KnownHosts()


def _is_over_loopback(transport: _Transport | None) -> bool:
    """Return whether the client connected to a loopback address; true if nobody knows."""
    address = None if transport is None else transport.get_extra_info("sockname")
    if not isinstance(address, tuple) or not address:
        return True
    try:
        found = ipaddress.ip_address(str(address[0]))
    except ValueError:
        return True
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def _name_of(header: str) -> str:
    """Return the name in a ``Host`` header, without the port and in lower case."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower().rstrip(".")
