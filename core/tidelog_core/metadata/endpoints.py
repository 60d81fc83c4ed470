"""The endpoints of a broker's listeners, and how its item stores them.

A broker whose only listener is ``PLAINTEXT`` is stored as ``host`` and ``port``, as programs
from before named listeners write and read it. Any other is stored as ``endpoints``, a list of
``{"listener", "host", "port"}``, which those programs cannot read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidelog_core.metadata.store import JsonValue

PORT_MAX = 65_535
PLAINTEXT = "PLAINTEXT"  # the listener of a node that names none
NODE = "NODE"  # the listener for the other nodes


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """The address that clients of one listener connect to."""

    listener: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def plaintext_endpoints(host: str, port: int) -> tuple[BrokerEndpoint, ...]:
    """Return the endpoints of a broker with one listener."""
    return (BrokerEndpoint(PLAINTEXT, host, port),)


def read_endpoints(values: Any, _: Mapping[str, Any]) -> tuple[BrokerEndpoint, ...]:
    """Return stored endpoints. Raises ``ValueError``."""
    if not isinstance(values, list | tuple) or not values:
        raise ValueError(f"must be a list of at least one, not {values!r}")
    endpoints: dict[str, BrokerEndpoint] = {}
    for value in values:
        endpoint = _endpoint(value)
        if endpoint is None or endpoint.listener in endpoints:
            raise ValueError(f"must be of one listener each, not {value!r}")
        endpoints[endpoint.listener] = endpoint
    return tuple(endpoints.values())


def _endpoint(value: JsonValue) -> BrokerEndpoint | None:
    """Return the endpoint that the value describes, ``None`` if it describes none."""
    if not isinstance(value, Mapping) or value.keys() != {"listener", "host", "port"}:
        return None
    listener, host, port = value["listener"], value["host"], value["port"]
    if not isinstance(listener, str) or not isinstance(host, str) or type(port) is not int:
        return None
    return BrokerEndpoint(listener, host, port) if listener and 0 <= port <= PORT_MAX else None
