"""``Admin`` manages topics, configs, groups, transactions, users, ACLs, quotas and the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from tidelog.administering.every_call import EveryCall
from tidelog.administering.sync_admin import SyncAdmin
from tidelog.cluster import Cluster
from tidelog.option_types import number_problems
from tidelog.options import ClientSettings, check, client_options


class Admin(EveryCall):
    """Administers a cluster.

    Use ``async with Admin("localhost:9092") as admin:``, or call ``start()`` and ``close()``.
    A call about several resources raises the error of the one that failed, or
    ``SeveralFailed``; the changes to the other resources stay. Retriable errors are retried
    for ``timeout_ms``. Make all calls from one event loop; ``sync()`` returns a client for
    programs without one.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        *,
        timeout_ms: int = 60_000,
        **settings: Unpack[ClientSettings],
    ) -> None:
        """Check the options (see ``tidelog.options``); ``start()`` connects.

        Raises ``InvalidConfig`` with all problems.
        """
        client = client_options(bootstrap_servers, settings, Admin)
        problems = number_problems("timeout_ms", timeout_ms)
        if not problems and timeout_ms <= 0:
            problems = [f"timeout_ms must be above zero, is {timeout_ms}"]
        check(client, others=problems)
        super().__init__(Cluster(client), timeout_ms)

    def sync(self) -> SyncAdmin:
        """Return a synchronous client around this admin; use only that one afterwards."""
        return SyncAdmin(self)
