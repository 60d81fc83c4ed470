"""Reads groups from the store: their records, and the pages with their members.

A record and its pages are several items, and a coordinator may write between two readings.
A group of several pages therefore counts as read once two listings show its pages at the same
versions: between the two listings all of them were current. A record and a single page may still
be from two moments. A coordinator makes sure when it claims the group; all other readers only
display it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Sequence

from tidelog_core.errors import CoordinatorNotAvailable, CorruptItem
from tidelog_core.metadata.coordination.groups import group_collection, group_key
from tidelog_core.metadata.coordination.member_pages import (
    Inconsistent,
    MemberPage,
    StoredGroup,
    assemble,
    group_of_page,
    member_collection,
    page_prefix,
)
from tidelog_core.metadata.store import Item, ItemKey, MetadataStore

READ_ATTEMPTS_MAX = 10
PAGES_UNPACKED_AT_ONCE = 8  # takes some milliseconds; then other tasks may run


async def list_pages(store: MetadataStore, shard: int, group_id: str) -> list[Item]:
    """Return the items of the group's pages."""
    items = await store.list(member_collection(shard), prefix=page_prefix(group_id))
    return [item for item in items if group_of_page(item.id) == group_id]


async def read_group(store: MetadataStore, shard: int, group_id: str) -> StoredGroup | None:
    """Return the stored group, or ``None`` if it does not exist.

    Raises ``CorruptItem``, and ``CoordinatorNotAvailable`` if it keeps changing.
    """
    key = group_key(shard, group_id)
    for _ in range(READ_ATTEMPTS_MAX):
        item = await store.get(key)
        if item is None:
            return None
        pages = await list_pages(store, shard, group_id)
        if len(pages) > 1 and _versions(pages) != _versions(
            await list_pages(store, shard, group_id)
        ):
            continue
        with contextlib.suppress(Inconsistent):
            return assemble(item, await _unpacked(pages))
    raise CoordinatorNotAvailable(f"group {group_id!r} keeps changing")


async def read_groups(
    store: MetadataStore, shard: int
) -> dict[str, StoredGroup | CorruptItem | CoordinatorNotAvailable]:
    """Return the shard's groups by id, each with its record or the reason that it is unreadable."""
    records, pages = await asyncio.gather(
        store.list(group_collection(shard)), store.list(member_collection(shard))
    )
    pages_of: dict[str, list[Item]] = defaultdict(list)
    for page in pages:
        pages_of[group_of_page(page.id)].append(page)
    found: dict[str, StoredGroup | CorruptItem | CoordinatorNotAvailable] = {}
    for item in records:
        group_id, some = item.id.key, pages_of[item.id.key]
        try:
            group = None
            if len(some) <= 1:
                with contextlib.suppress(Inconsistent):
                    group = assemble(item, await _unpacked(some))
            if group is None:
                group = await read_group(store, shard, group_id)
            if group is not None:
                found[group_id] = group
        except (CorruptItem, CoordinatorNotAvailable) as error:
            # One broken group must not hide the others.
            found[group_id] = error
    return found


async def _unpacked(items: Sequence[Item]) -> list[MemberPage]:
    """Return the pages. Raises ``CorruptItem``."""
    pages = []
    for count, item in enumerate(items, 1):
        pages.append(MemberPage.from_item(item))
        if count % PAGES_UNPACKED_AT_ONCE == 0:
            await asyncio.sleep(0)
    return pages


def _versions(pages: Sequence[Item]) -> dict[ItemKey, int]:
    return {page.id: page.version for page in pages}
