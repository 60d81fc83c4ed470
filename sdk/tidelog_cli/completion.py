"""Names for the shell's completion, asked of the cluster. Without an answer there are none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from tidelog.admin import Admin

SECONDS_MAX = 2.0  # a person waits for it


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Return the topics whose names begin so."""

    async def ask(admin: Admin) -> list[str]:
        return [listed.name for listed in await admin.list_topics()]

    return _ask(context, incomplete, ask)


def complete_group(context: typer.Context, incomplete: str) -> list[str]:
    """Return the groups whose names begin so."""

    async def ask(admin: Admin) -> list[str]:
        return [listed.group_id for listed in await admin.list_groups()]

    return _ask(context, incomplete, ask)


def _ask(
    context: typer.Context, incomplete: str, ask: Callable[[Admin], Awaitable[list[str]]]
) -> list[str]:
    from tidelog.admin import Admin
    from tidelog.errors import TidelogError

    from tidelog_cli.clients import client_factory
    from tidelog_cli.options import DEFAULT_BOOTSTRAP, choose_cluster

    given = context.find_root().params
    choose_cluster(given.get("context"), given.get("command_config"))
    bootstrap = context.params.get("bootstrap") or DEFAULT_BOOTSTRAP
    timeout_ms = int(SECONDS_MAX * 1000)

    async def run() -> list[str]:
        factory = client_factory(bootstrap, request_timeout_ms=timeout_ms)
        async with (
            asyncio.timeout(SECONDS_MAX),
            factory.make(Admin, timeout_ms=timeout_ms) as admin,
        ):
            return await ask(admin)

    try:
        names = asyncio.run(run())
    except (TidelogError, OSError, TimeoutError):
        return []
    return [name for name in names if name.startswith(incomplete)]
