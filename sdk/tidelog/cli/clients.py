"""A bare view of the cluster, for commands that ask nodes without a producer or consumer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidelog.cluster import Cluster
from tidelog.options import ClientOptions, check, parse_bootstrap

CLIENT_ID = "tidelog-cli"
REQUEST_TIMEOUT_MS = 15_000


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
