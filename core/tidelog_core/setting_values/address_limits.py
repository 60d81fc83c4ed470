"""Parses the limits of connections of single addresses."""

from __future__ import annotations

import ipaddress


def parse_address_limits(text: str) -> dict[str, int]:
    """Return the numbers of connections of ``max.connections.per.ip.overrides``, by address.

    ``10.0.0.1:200,[::1]:50``. Raises ``ValueError``.
    """
    limits: dict[str, int] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        address, colon, count = part.rpartition(":")
        if not colon or not count.isascii() or not count.isdigit():
            raise ValueError(f"{part!r} must be an address and a number, such as 10.0.0.1:200")
        try:
            parsed = ipaddress.ip_address(address.removeprefix("[").removesuffix("]"))
        except ValueError:
            raise ValueError(f"{address!r} is not an address; host names are not allowed") from None
        limits[str(parsed)] = int(count)
    return limits
