"""The store of an export's own state, beside the table's files.

    <location>/_tidelog/commits/…     of a Parquet folder: ``parquet_table``
    <location>/_tidelog/erasures/…    receipts: ``erasure_receipts``, ``followed_runs``

Programs that list a table's folder, or clean it up, ignore names that start with ``_``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidelog_core.errors import InvalidConfig, StoreUnavailable
from tidelog_core.objects.location import opened_object_store
from tidelog_core.objects.store import ObjectStore

from tidelog_spark.jobs.tables.table_access import TableAccessDenied, named_permission
from tidelog_spark.jobs.tables.table_places import encoded_locations, plain_url, table_url

STATE_FOLDER = "_tidelog"

T = TypeVar("T")


def with_state(location: str, call: Callable[[ObjectStore], Awaitable[T]]) -> T:
    """Return the call's result on the store of a table's state. Blocks; not for a loop's thread.

    Raises ``TableAccessDenied``. A folder is made by the first write.
    """

    async def run() -> T:
        # A catalog may give its tables paths of this machine as locations.
        url = f"{table_url(plain_url(location))}/{STATE_FOLDER}"
        async with opened_object_store(url, may_be_new=True) as store:
            return await call(store)

    with named_permission(location, "write", StoreUnavailable):
        return asyncio.run(run())


def check_state_is_here(location: str) -> None:
    """Raise ``InvalidConfig`` if an earlier version has put this table's state elsewhere.

    Call it where the location has none: a table that began here would have every record again.
    """
    for earlier in encoded_locations(location):
        try:
            is_there = with_state(earlier, _has_objects)
        except TableAccessDenied:
            continue  # Then no job with these rights has written there.
        if is_there:
            raise InvalidConfig(
                [
                    f"an earlier version has put the state of the table at {location} below"
                    f" {earlier}/{STATE_FOLDER}: move that folder to {location}/{STATE_FOLDER}"
                    " first; without it the table would have every record again"
                ]
            )


async def _has_objects(store: ObjectStore) -> bool:
    return await anext(aiter(store.list("")), None) is not None
