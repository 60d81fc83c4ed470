"""The store of an export's own state, beside the table's files.

    <location>/_tidelog/commits/…     of a Parquet folder: ``parquet_table``
    <location>/_tidelog/erasures/…    receipts: ``erasure_receipts``

Programs that list a table's folder, or clean it up, ignore names that start with ``_``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidelog_core.errors import StoreUnavailable
from tidelog_core.objects.location import opened_object_store
from tidelog_core.objects.store import ObjectStore

from tidelog_spark.jobs.table_access import named_permission
from tidelog_spark.jobs.table_places import plain_url, table_url

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
