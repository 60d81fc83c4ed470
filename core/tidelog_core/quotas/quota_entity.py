"""The entities of quotas. Source: KIP-55 (users and client ids), KIP-612 (addresses)."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tidelog_core.errors import InvalidRequest

USER, CLIENT_ID, IP = "user", "client-id", "ip"
ENTITY_TYPES = (USER, CLIENT_ID, IP)
DEFAULT = ""  # the entity name for all names without a quota of their own
NAME_SIZE_MAX = 1000  # characters of a user's or client's name


class QuotaEntity(NamedTuple):
    """A user, a client id, both together, or an address. A part that is ``None`` is not named."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def parts(self) -> Iterator[tuple[str, str | None]]:
        """Yield the type and name of each part; the name is ``None`` for the default."""
        for kind, name in zip(ENTITY_TYPES, self, strict=True):
            if name is not None:
                yield kind, name or None

    def __str__(self) -> str:
        return ", ".join(f"{kind} {name or '<default>'}" for kind, name in self.parts())


def quota_entity(parts: Mapping[str, str | None]) -> QuotaEntity:
    """Return the entity of these names by their types; ``None`` names the default.

    Raises ``InvalidRequest``. Source: Kafka's ``ClientQuotaControlManager``.
    """
    if not parts:
        raise InvalidRequest("Invalid empty client quota entity")
    for kind, name in parts.items():
        if kind not in ENTITY_TYPES:
            raise InvalidRequest(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise InvalidRequest(f"Empty {kind} not supported")
        if name is not None and len(name) > NAME_SIZE_MAX:
            raise InvalidRequest(f"A {kind} of {len(name)} characters, allowed are {NAME_SIZE_MAX}")
    if IP in parts and len(parts) > 1:
        raise InvalidRequest(
            "Invalid quota entity combination: an address is an entity by itself, not together"
            " with a user or a client id."
        )
    names = {kind: name or DEFAULT for kind, name in parts.items()}
    ip = names.get(IP)
    if ip:
        ip = _address(ip)
    return QuotaEntity(names.get(USER), names.get(CLIENT_ID), ip)


def _address(text: str) -> str:
    """Return an address in the form that nodes show it in."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        # Kafka resolves names. Nodes would do so at different times, with different results.
        problem = f"{text} is not a valid IP or resolvable host."
    raise InvalidRequest(f"{problem} Allowed are addresses, not names.")
