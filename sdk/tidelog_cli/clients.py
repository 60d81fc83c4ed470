"""The clients of commands: how long they wait, and what they call themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidelog.admin import Admin
from tidelog.cluster import Cluster
from tidelog.options import ClientOptions, check, parse_bootstrap

CLIENT_ID = "tidelog-cli"
REQUEST_TIMEOUT_MS = 15_000
ADMIN_TIMEOUT_MS = 30_000


@asynccontextmanager
async def opened_cluster(bootstrap: str) -> AsyncIterator[Cluster]:
    """Connect to the cluster. Raises ``InvalidConfig``, ``ConnectionFailed``."""
    options = ClientOptions(
        bootstrap=parse_bootstrap(bootstrap),
        client_id=CLIENT_ID,
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        metadata_max_age_ms=300_000,
        retry_backoff_ms=100,
        retry_backoff_max_ms=1_000,
        reconnect_backoff_ms=50,
        reconnect_backoff_max_ms=1_000,
        ssl=None,
    )
    check(options)
    cluster = Cluster(options)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.close()


def opened_admin(bootstrap: str) -> Admin:
    """Return an admin for one command, to be entered with ``async with``."""
    return Admin(
        bootstrap,
        client_id=CLIENT_ID,
        timeout_ms=ADMIN_TIMEOUT_MS,
        request_timeout_ms=REQUEST_TIMEOUT_MS,
    )
