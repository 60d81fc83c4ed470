"""``ClientFactory`` makes all clients of a program with the same connection settings.

The command line and Spark use it, so settings such as TLS are given once and not passed
through their code.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Concatenate, ParamSpec, Self, TypeVar, Unpack

from tidelog.cluster import Cluster
from tidelog.options import ClientSettings, check, client_options, parse_bootstrap
from tidelog.settings.resolving import resolve
from tidelog.wire.connection import Address

logger = logging.getLogger(__name__)

P = ParamSpec("P")
C = TypeVar("C")


class ClientFactory:
    """Holds the cluster's addresses and the settings of a program's connections."""

    def __init__(self, bootstrap_servers: str, **settings: Unpack[ClientSettings]) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._settings = settings

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Return the addresses to connect to first. Raises ``InvalidConfig``."""
        return parse_bootstrap(self._bootstrap_servers)

    @property
    def is_encrypted(self) -> bool:
        """Whether the clients use TLS."""
        return self._settings.get("ssl") is not None

    @classmethod
    def from_context(
        cls,
        name: str | None = None,
        *,
        environ: Mapping[str, str] = os.environ,
        **settings: Unpack[ClientSettings],
    ) -> Self:
        """Return the factory for a cluster of the file of contexts, or of the environment.

        Without a name it is the context of ``TIDELOG_CONTEXT``, or the current one. Variables such
        as ``TIDELOG_SASL_PASSWORD`` count before the context. Raises ``InvalidConfig`` with every
        problem.
        """
        connection = resolve(environ, context=name)
        for note in connection.notes:
            logger.warning("settings of the cluster need a look", extra={"reason": note})
        chosen: ClientSettings = {**connection.security(), **settings}
        return cls(connection.bootstrap_servers, **chosen)

    def make(
        self, client: Callable[Concatenate[str, P], C], *args: P.args, **options: P.kwargs
    ) -> C:
        """Return a client that is not started: ``factory.make(Producer, acks="all")``.

        Raises ``InvalidConfig``.
        """
        return client(self._bootstrap_servers, *args, **{**self._settings, **options})  # type: ignore[arg-type]

    def cluster(self, **settings: Unpack[ClientSettings]) -> Cluster:
        """Return an unstarted ``Cluster``, for requests that no client offers.

        Raises ``InvalidConfig``.
        """
        options = client_options(self._bootstrap_servers, {**self._settings, **settings}, Cluster)
        check(options)
        return Cluster(options)
