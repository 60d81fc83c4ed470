"""Finds the zone of a client, by its rack and the address and listener of its connection.

The first source that knows decides:

1. ``client.rack``, where a request carries it: Fetch does, Metadata does not (no version of Kafka's
   schema has the rack that KIP-1163 would add).
2. A hint in ``client.id``, as clients of other logs without replication have them:
   ``diskless_az=``, ``ws_az=``, ``warpstream_az=`` or ``automq_az=`` at its beginning or after one
   of the separators ``,``, ``|``, ``&`` and space.
3. ``client.az.listener.map``: the zone of the listener that the client connected to.
4. ``client.az.cidr.map``: the zone of the smallest subnet that has the client's address.

A hint that names the rack of no broker is passed over. Kafka Connect and Kafka Streams append to
``client.id`` (``app,diskless_az=use1-az1-StreamThread-1-producer``), so what follows a ``-`` is
left out until a rack has that name.
Source: ``ClientAZExtractor`` and ``client.az.listener.map`` of Inkless, ``ClientIdMetadata`` of
AutoMQ.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote_plus

ZONES_MAX = 1_000  # entries of a map
HINTED_CHARS_MAX = 1_000  # of a client id, which may have 32,000: the rest is not looked at
_HINT = re.compile(r"(?:^|[ ,|&])(diskless_az|ws_az|warpstream_az|automq_az)=([^=,|& ]+)")
_PERCENT_ENCODED = "automq_az"

ListenerZones = Mapping[str, str]  # by the listener's name in capitals


@dataclass(frozen=True, slots=True)
class CidrZones:
    """The zones of subnets. An IPv4 address that is written as IPv6 counts as IPv4."""

    # By the length of the prefix, longest first, the subnets of that length with their zones. IPv4
    # and IPv6 apart: their numbers overlap.
    v4: tuple[tuple[int, Mapping[int, str]], ...] = ()
    v6: tuple[tuple[int, Mapping[int, str]], ...] = ()

    def zone_of(self, address: str) -> str | None:
        """Return the zone of the smallest subnet with the address, ``None`` without one."""
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return None
        if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
            parsed = parsed.ipv4_mapped
        tables = self.v4 if isinstance(parsed, ipaddress.IPv4Address) else self.v6
        number, bits = int(parsed), parsed.max_prefixlen
        for length, zones in tables:
            zone = zones.get(number >> (bits - length))
            if zone is not None:
                return zone
        return None


@dataclass(frozen=True, slots=True)
class ClientZones:
    """The availability zones of clients, by the maps of a node's settings."""

    listeners: ListenerZones = field(default_factory=dict)
    subnets: CidrZones = field(default_factory=CidrZones)

    @classmethod
    def of(cls, listener_map: str, cidr_map: str) -> ClientZones:
        """Parse the settings. Raises ``ValueError``, which names the wrong entry."""
        return cls(parse_listener_zones(listener_map), parse_cidr_zones(cidr_map))

    def zone_of(
        self,
        client_id: str | None,
        client_rack: str | None,
        address: str,
        *,
        listener: str = "",
        racks: Collection[str] = (),
    ) -> str | None:
        """Return the client's zone, ``None`` if no source knows it.

        ``racks`` are those of the brokers. Without any a hint is taken as it is.
        """
        if client_rack:
            return client_rack
        return (
            hinted_zone(client_id or "", racks)
            or self.listeners.get(listener.upper())
            or self.subnets.zone_of(address)
        )


def hinted_zone(client_id: str, racks: Collection[str]) -> str | None:
    """Return the zone that a client id names, ``None`` if it names no rack of a broker."""
    for key, value in _HINT.findall(client_id[:HINTED_CHARS_MAX]):
        zone = unquote_plus(value) if key == _PERCENT_ENCODED else value
        if not racks:
            return zone
        while zone and zone not in racks:
            zone = zone.rpartition("-")[0]
        if zone:
            return zone
    return None


def parse_listener_zones(text: str) -> ListenerZones:
    """Return the zones of ``LISTENER=zone,LISTENER=zone``. Raises ``ValueError``."""
    zones: dict[str, str] = {}
    for name, zone in _entries(text, "LISTENER=zone"):
        if name.upper() in zones:
            raise ValueError(f"{name} has two zones: capitals and small letters are the same")
        zones[name.upper()] = zone
    return zones


def parse_cidr_zones(text: str) -> CidrZones:
    """Return the zones of ``10.0.0.0/20=zone,2001:db8::/56=zone``. Raises ``ValueError``."""
    v4: dict[int, dict[int, str]] = {}
    v6: dict[int, dict[int, str]] = {}
    for subnet, zone in _entries(text, "subnet=zone"):
        try:
            network = ipaddress.ip_network(subnet, strict=False)
        except ValueError:
            raise ValueError(
                f"{subnet} is no subnet: write it as 10.0.0.0/20 or 2001:db8::/56"
            ) from None
        address, slash, _ = subnet.partition("/")
        if not slash or ipaddress.ip_address(address) != network.network_address:
            raise ValueError(f"{subnet} is an address in a subnet: did you mean {network}?")
        lengths = v6 if isinstance(network, ipaddress.IPv6Network) else v4
        zones = lengths.setdefault(network.prefixlen, {})
        key = int(network.network_address) >> (network.max_prefixlen - network.prefixlen)
        if key in zones:
            raise ValueError(f"{network} has two zones")
        zones[key] = zone
    return CidrZones(_longest_first(v4), _longest_first(v6))


def _entries(text: str, form: str) -> list[tuple[str, str]]:
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    if len(entries) > ZONES_MAX:
        raise ValueError(f"{len(entries)} entries, at most {ZONES_MAX} are allowed")
    pairs = []
    for entry in entries:
        name, _, zone = (part.strip() for part in entry.partition("="))
        if not name or not zone or "=" in zone:
            raise ValueError(f"{entry!r} is not of the form {form}")
        pairs.append((name, zone))
    return pairs


def _longest_first(
    lengths: Mapping[int, Mapping[int, str]],
) -> tuple[tuple[int, Mapping[int, str]], ...]:
    return tuple(sorted(lengths.items(), key=lambda one: -one[0]))
