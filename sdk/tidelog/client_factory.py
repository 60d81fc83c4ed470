"""Makes all clients of one program, so that each reaches the cluster in the same way.

The command line and Spark make theirs here. What says how a connection is made, such as TLS, is
told the factory: who makes a client does not have to hand it on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar, Unpack

from tidelog.cluster import Cluster
from tidelog.options import ClientSettings, check, client_options

P = ParamSpec("P")
C = TypeVar("C")


class ClientFactory:
    """Where the cluster is, and how all clients of a program talk to it."""

    def __init__(self, bootstrap_servers: str, **settings: Unpack[ClientSettings]) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._settings = settings

    def make(
        self, client: Callable[Concatenate[str, P], C], *args: P.args, **options: P.kwargs
    ) -> C:
        """Return a client that is not started: ``factory.make(Producer, acks="all")``.

        Raises ``InvalidConfig``.
        """
        return client(self._bootstrap_servers, *args, **{**self._settings, **options})  # type: ignore[arg-type]

    def cluster(self, **settings: Unpack[ClientSettings]) -> Cluster:
        """Return what the clients are built on, not started, for requests of one's own.

        Raises ``InvalidConfig``.
        """
        options = client_options(self._bootstrap_servers, {**self._settings, **settings})
        check(options)
        return Cluster(options)
