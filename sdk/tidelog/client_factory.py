"""Makes all clients of one program, so that each reaches the cluster in the same way.

The command line and Spark make theirs here. What says how a connection is made, such as TLS, is
a field of the factory: who makes a client does not have to hand it on.
"""

from __future__ import annotations

import ssl as ssl_module
from collections.abc import Callable
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, TypeVar

from tidelog.cluster import Cluster
from tidelog.options import ClientOptions, check, parse_bootstrap

P = ParamSpec("P")
C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class ClientFactory:
    """Where the cluster is, how it is reached, and the name that the program goes by."""

    bootstrap_servers: str
    client_id: str
    request_timeout_ms: int = 30_000
    ssl: ssl_module.SSLContext | None = None  # None: plain TCP

    def make(
        self, client: Callable[Concatenate[str, P], C], *args: P.args, **options: P.kwargs
    ) -> C:
        """Return a client that is not started: ``factory.make(Producer, acks="all")``.

        Raises ``InvalidConfig``.
        """
        shared = {
            "client_id": self.client_id,
            "request_timeout_ms": self.request_timeout_ms,
            "ssl": self.ssl,
        }
        return client(self.bootstrap_servers, *args, **{**shared, **options})  # type: ignore[arg-type]

    def cluster(self, *, metadata_max_age_ms: int = 300_000) -> Cluster:
        """Return what the clients are built on, not started, for requests of one's own.

        Raises ``InvalidConfig``.
        """
        options = ClientOptions(
            bootstrap=parse_bootstrap(self.bootstrap_servers),
            client_id=self.client_id,
            request_timeout_ms=self.request_timeout_ms,
            metadata_max_age_ms=metadata_max_age_ms,
            ssl=self.ssl,
        )
        check(options)
        return Cluster(options)
