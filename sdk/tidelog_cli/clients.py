"""Clients for commands, with their timeouts and client id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from tidelog_cli.connecting import connection
from tidelog_cli.reaching import opened

if TYPE_CHECKING:
    from tidelog.admin import Admin
    from tidelog.client_factory import ClientFactory
    from tidelog.cluster import Cluster
    from tidelog.errors import TidelogError

T = TypeVar("T")

CLIENT_ID = "tidelog-cli"
REQUEST_TIMEOUT_MS = 15_000
RECORDS_TIMEOUT_MS = 30_000  # of one request of commands that write or read records
ADMIN_TIMEOUT_MS = 30_000


def client_factory(
    bootstrap: str, *, request_timeout_ms: int = REQUEST_TIMEOUT_MS
) -> ClientFactory:
    """Return the factory that makes a command's clients.

    Without addresses they are those of ``connection``, which also says how to log in. Raises
    ``InvalidConfig``.
    """
    from tidelog.client_factory import ClientFactory

    found = connection()
    return ClientFactory(
        bootstrap or found.bootstrap_servers,
        client_id=CLIENT_ID,
        request_timeout_ms=request_timeout_ms,
        **found.security(),
    )


@asynccontextmanager
async def opened_cluster(bootstrap: str) -> AsyncIterator[Cluster]:
    """Connect to the cluster. Raises ``InvalidConfig``, ``ConnectionFailed``."""
    factory = client_factory(bootstrap)
    async with opened(factory.cluster(), factory) as cluster:
        yield cluster


@asynccontextmanager
async def opened_admin(bootstrap: str) -> AsyncIterator[Admin]:
    """Connect an admin. Raises ``InvalidConfig``, ``ConnectionFailed``."""
    from tidelog.admin import Admin

    factory = client_factory(bootstrap)
    async with opened(factory.make(Admin, timeout_ms=ADMIN_TIMEOUT_MS), factory) as admin:
        yield admin


def administer(bootstrap: str, work: Callable[[Admin], Awaitable[T]]) -> T:
    """Run ``work`` with an open admin and return its result.

    The error for an unknown topic names a similar one.
    """

    async def run() -> T:
        from tidelog.errors import SeveralFailed, UnknownTopicOrPartition

        async with opened_admin(bootstrap) as admin:
            try:
                return await work(admin)
            except (SeveralFailed, UnknownTopicOrPartition) as error:
                raise await with_similar_topics(admin, error) from error

    return asyncio.run(run())


async def require_topic(admin: Admin, topic: str) -> None:
    """Raise ``UnknownTopicOrPartition``, with a similar name, if there is no such topic."""
    from tidelog.errors import UnknownTopicOrPartition

    try:
        await admin.describe_topics([topic])
    except UnknownTopicOrPartition as error:
        raise await with_similar_topics(admin, error) from error


async def with_similar_topics(admin: Admin, error: TidelogError) -> TidelogError:
    """Return the error; where it is about an unknown topic, with the name of a similar one."""
    from tidelog.errors import SeveralFailed, UnknownTopicOrPartition

    errors = error.errors if isinstance(error, SeveralFailed) else {"": error}
    unknown = {
        key: one.topic
        for key, one in errors.items()
        if isinstance(one, UnknownTopicOrPartition) and one.topic is not None
    }
    if not unknown:
        return error
    known = {listed.name for listed in await admin.list_topics(include_internal=True)}
    better = {
        key: UnknownTopicOrPartition.of_topic(topic, known)
        for key, topic in unknown.items()
        if topic not in known  # Otherwise it lacks a partition.
    }
    if isinstance(error, SeveralFailed):
        return SeveralFailed({**errors, **better})
    return better.get("", error)
