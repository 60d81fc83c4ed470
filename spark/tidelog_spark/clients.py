"""Makes the SDK's clients from the options of a read or a write."""

from __future__ import annotations

from typing import Protocol

from tidelog.client_factory import ClientFactory


class Reached(Protocol):
    """Options for connecting to nodes."""

    @property
    def bootstrap_servers(self) -> str: ...
    @property
    def client_id(self) -> str: ...
    @property
    def request_timeout_ms(self) -> int: ...


def client_factory(options: Reached) -> ClientFactory:
    """Return the factory that makes the clients."""
    return ClientFactory(
        options.bootstrap_servers,
        client_id=options.client_id,
        request_timeout_ms=options.request_timeout_ms,
    )
