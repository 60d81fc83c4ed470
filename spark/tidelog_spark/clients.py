"""The one place where the SDK's clients get what a read's or a write's options say of them."""

from __future__ import annotations

from typing import Protocol

from tidelog.client_factory import ClientFactory


class Reached(Protocol):
    """Options that say how nodes are reached."""

    @property
    def bootstrap_servers(self) -> str: ...
    @property
    def client_id(self) -> str: ...
    @property
    def request_timeout_ms(self) -> int: ...


def client_factory(options: Reached) -> ClientFactory:
    """Return what makes the clients."""
    return ClientFactory(
        options.bootstrap_servers,
        client_id=options.client_id,
        request_timeout_ms=options.request_timeout_ms,
    )
