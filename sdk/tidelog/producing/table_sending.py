"""Sends the rows of a table. It is imported at the first ``send_table``: it loads numba."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from tidelog_core.clock import wall_clock_ms

from tidelog.arrow.send_columns import ArrowStreamable, Table, columns_to_send
from tidelog.producing.arrow_batches import BatchBuilder
from tidelog.producing.batch import Delivery
from tidelog.producing.batch_options import BatchOptions
from tidelog.producing.encoded import EncodedRecords

Send = Callable[[tuple[str, int], EncodedRecords], Awaitable[Delivery]]


async def send_rows(
    table: Table | ArrowStreamable,
    options: BatchOptions,
    send: Send,
    *,
    partition_count: int,
    key: str | None,
    value: str,
) -> int:
    """Send every row and wait for its acknowledgement; return the number of rows.

    After the first batch that fails no more are sent. The caller's buffer limits what waits.
    """
    builder = BatchBuilder(options, lambda _topic: partition_count, clock_ms=wall_clock_ms)
    pending: deque[Delivery] = deque()
    for partition, encoded in builder.build(columns_to_send(table, key=key, value=value)):
        pending.append(await send(partition, encoded))
        while pending and pending[0].done():
            pending.popleft().result()
        await asyncio.sleep(0)  # Building a batch takes a millisecond or so.
    while pending:
        await pending.popleft()
    return builder.row_count
