"""Groups: how far behind they are, in records and in seconds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import islice

from aiohttp import web
from tidelog.admin import Admin
from tidelog.administering.results import GroupDescription, GroupMember, PartitionLag
from tidelog_core.errors import TidelogError
from tidelog_core.model import TopicPartition

from tidelog_console.web_context import page, visitor_of

PAGE_GROUPS = 50
AT_ONCE_MAX = 4
FILTER_LENGTH_MAX = 255
PARTITIONS_SHOWN_MAX = 500
SHARE = "share"


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A group and its lag; ``problem`` says why that is not known."""

    group: GroupDescription | None
    group_id: str
    state: str
    type: str
    lags: dict[TopicPartition, PartitionLag]
    problem: str = ""

    @property
    def lag(self) -> int | None:
        """The sum over its partitions; None if none is known."""
        known = [one.lag for one in self.lags.values() if one.lag is not None]
        return sum(known) if known else None

    @property
    def lag_seconds(self) -> float | None:
        """The most of its partitions."""
        known = [one.lag_seconds for one in self.lags.values() if one.lag_seconds is not None]
        return max(known) if known else None


async def list_(request: web.Request) -> web.Response:
    """List the groups that the visitor may describe, a page of them."""
    admin = visitor_of(request).admin
    wanted = request.query.get("filter", "")[:FILTER_LENGTH_MAX].strip()
    after = request.query.get("after", "")[:FILTER_LENGTH_MAX]
    found = (
        one
        for one in await admin.list_groups()
        if wanted.lower() in one.group_id.lower() and one.group_id > after
    )
    rows = list(islice(found, PAGE_GROUPS + 1))
    limit = asyncio.Semaphore(AT_ONCE_MAX)

    async def look(group_id: str, state: str, kind: str) -> GroupLag:
        async with limit:
            return await _lag(admin, group_id, state, kind)

    groups = await asyncio.gather(
        *(look(one.group_id, one.state, one.type) for one in rows[:PAGE_GROUPS])
    )
    return page(
        request,
        "groups.html",
        title="Groups",
        groups=groups,
        next_after=rows[PAGE_GROUPS - 1].group_id if len(rows) > PAGE_GROUPS else None,
        filter=wanted,
    )


async def describe(request: web.Request) -> web.Response:
    """Show a group: its partitions, and who reads them."""
    admin = visitor_of(request).admin
    group_id = request.query.get("id", "")
    group = (await admin.describe_groups([group_id]))[group_id]
    found = await _with_lag(admin, group)
    readers: dict[TopicPartition, list[GroupMember]] = {}
    for member in group.members:
        for partition in member.assignment:
            readers.setdefault(partition, []).append(member)
    rows = [(name, lag, readers.get(name, [])) for name, lag in found.lags.items()]
    return page(
        request,
        "group.html",
        title=group_id,
        group=group,
        found=found,
        rows=rows[:PARTITIONS_SHOWN_MAX],
        left_out=max(0, len(rows) - PARTITIONS_SHOWN_MAX),
    )


async def _lag(admin: Admin, group_id: str, state: str, kind: str) -> GroupLag:
    """Return a group's lag, or why it is not known: one group must not hide the others."""
    try:
        return await _with_lag(admin, (await admin.describe_groups([group_id]))[group_id])
    except TidelogError as error:
        return GroupLag(None, group_id, state, kind, {}, str(error))


async def _with_lag(admin: Admin, group: GroupDescription) -> GroupLag:
    assigned = [partition for member in group.members for partition in member.assignment]
    if group.type == SHARE:
        lags = await admin.share_group_lag(group.group_id, assigned)
    else:
        lags = await admin.group_lag(group.group_id, assigned)
    return GroupLag(group, group.group_id, group.state, group.type, lags)


ROUTES = [web.get("/groups", list_), web.get("/group", describe)]
