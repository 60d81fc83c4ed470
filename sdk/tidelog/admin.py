"""``Admin``: topics, configs, records, groups, transactions and the cluster."""

from __future__ import annotations

import ssl as ssl_module
from collections.abc import Sequence

from tidelog.administering.every_call import EveryCall
from tidelog.administering.sync_admin import SyncAdmin
from tidelog.cluster import Cluster
from tidelog.options import ClientOptions, check, parse_bootstrap


class Admin(EveryCall):
    """Administers a cluster.

    ``async with Admin("localhost:9092") as admin:`` or ``start()`` and ``close()``. A
    call about several things raises the error of the one that failed, or
    ``SeveralFailed``; the others are done. Calls try again for ``timeout_ms`` while what
    stands in their way may pass. All calls from one event loop; ``sync()`` gives the
    same for programs without one.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        client_id: str = "tidelog",
        timeout_ms: int = 60_000,
        request_timeout_ms: int = 30_000,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 1_000,
        reconnect_backoff_ms: int = 50,
        reconnect_backoff_max_ms: int = 1_000,
        metadata_max_age_ms: int = 300_000,
        ssl: ssl_module.SSLContext | None = None,
    ) -> None:
        """Check the options; nothing is sent before ``start()``. Raises ``InvalidConfig``."""
        client = ClientOptions(
            bootstrap=parse_bootstrap(bootstrap_servers),
            client_id=client_id,
            request_timeout_ms=request_timeout_ms,
            metadata_max_age_ms=metadata_max_age_ms,
            retry_backoff_ms=retry_backoff_ms,
            retry_backoff_max_ms=retry_backoff_max_ms,
            reconnect_backoff_ms=reconnect_backoff_ms,
            reconnect_backoff_max_ms=reconnect_backoff_max_ms,
            ssl=ssl,
        )
        check(client)
        super().__init__(Cluster(client), timeout_ms)

    def sync(self) -> SyncAdmin:
        """Return the plain face of this admin; it is used through that alone from here on."""
        return SyncAdmin(self)
