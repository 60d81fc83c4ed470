"""Clients for commands, with their timeouts and client id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from tidelog_cli.options import command_config

if TYPE_CHECKING:
    from tidelog.admin import Admin
    from tidelog.client_factory import ClientFactory
    from tidelog.cluster import Cluster

T = TypeVar("T")

CLIENT_ID = "tidelog-cli"
REQUEST_TIMEOUT_MS = 15_000
RECORDS_TIMEOUT_MS = 30_000  # of one request of commands that write or read records
ADMIN_TIMEOUT_MS = 30_000


def client_factory(
    bootstrap: str, *, request_timeout_ms: int = REQUEST_TIMEOUT_MS
) -> ClientFactory:
    """Return the factory that makes a command's clients.

    They connect as the file of ``--command-config`` says. Raises ``InvalidConfig``.
    """
    from tidelog.client_factory import ClientFactory
    from tidelog.client_properties import connection_settings, read_properties

    path = command_config()
    security = connection_settings({} if path is None else read_properties(path))
    return ClientFactory(
        bootstrap, client_id=CLIENT_ID, request_timeout_ms=request_timeout_ms, **security
    )


@asynccontextmanager
async def opened_cluster(bootstrap: str) -> AsyncIterator[Cluster]:
    """Connect to the cluster. Raises ``InvalidConfig``, ``ConnectionFailed``."""
    cluster = client_factory(bootstrap).cluster()
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.close()


def administer(bootstrap: str, work: Callable[[Admin], Awaitable[T]]) -> T:
    """Run ``work`` with an open admin and return its result."""
    from tidelog.admin import Admin

    async def run() -> T:
        async with client_factory(bootstrap).make(Admin, timeout_ms=ADMIN_TIMEOUT_MS) as admin:
            return await work(admin)

    return asyncio.run(run())
