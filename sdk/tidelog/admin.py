"""``Admin``: topics, configs, records, groups, transactions and the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from tidelog.administering.every_call import EveryCall
from tidelog.administering.sync_admin import SyncAdmin
from tidelog.cluster import Cluster
from tidelog.options import ClientSettings, check, client_options


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
        timeout_ms: int = 60_000,
        **settings: Unpack[ClientSettings],
    ) -> None:
        """Check the options (see ``options``); nothing is sent before ``start()``.

        Raises ``InvalidConfig`` naming every problem.
        """
        client = client_options(bootstrap_servers, settings)
        check(client)
        super().__init__(Cluster(client), timeout_ms)

    def sync(self) -> SyncAdmin:
        """Return the plain face of this admin; it is used through that alone from here on."""
        return SyncAdmin(self)
