"""Makes the SDK's clients from the options of a read or a write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tidelog_spark.options.security_options import SecurityOptions

if TYPE_CHECKING:
    from tidelog.client_factory import ClientFactory


class ConnectionOptions(Protocol):
    """Options for connecting to nodes."""

    @property
    def bootstrap_servers(self) -> str: ...
    @property
    def client_id(self) -> str: ...
    @property
    def request_timeout_ms(self) -> int: ...
    @property
    def first_node_timeout_ms(self) -> int: ...
    @property
    def security(self) -> SecurityOptions: ...


def client_factory(options: ConnectionOptions) -> ClientFactory:
    """Return the factory that makes the clients.

    Raises ``InvalidConfig`` where a file of keys or certificates cannot be used.
    """
    from tidelog.client_factory import ClientFactory
    from tidelog.settings.security import connection_settings

    return ClientFactory(
        options.bootstrap_servers,
        client_id=options.client_id,
        request_timeout_ms=options.request_timeout_ms,
        bootstrap_timeout_ms=min(options.request_timeout_ms, options.first_node_timeout_ms),
        **connection_settings(dict(options.security)),
    )
