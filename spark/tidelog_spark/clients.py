"""The one place where the SDK's clients get what a read's or a write's options say of them."""

from __future__ import annotations

from tidelog.client_factory import ClientFactory

from tidelog_spark.options import NodeOptions
from tidelog_spark.sink.options import SinkOptions


def client_factory(options: NodeOptions | SinkOptions) -> ClientFactory:
    """Return what makes the clients."""
    return ClientFactory(
        options.bootstrap_servers,
        client_id=options.client_id,
        request_timeout_ms=options.request_timeout_ms,
    )
