"""One read from options to rows: what the data source and ``scan`` share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyarrow as pa
from tidelog_core.metadata.location import open_metadata_store
from tidelog_core.objects.location import open_object_store

from tidelog_spark.catalog import make_plan
from tidelog_spark.options import ReadOptions
from tidelog_spark.planning import Plan, Split
from tidelog_spark.reading import read_split


def plan_read(options: ReadOptions) -> Plan:
    """Return the splits of the read. Waits for the stores.

    In a thread of its own: a notebook's driver already runs an event loop in this one.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="plan") as executor:
        return executor.submit(asyncio.run, _plan(options)).result()


def read_rows(options: ReadOptions, split: Split) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one split of the read."""
    return read_split(
        split,
        partial(open_object_store, options.objects),
        include_headers=options.include_headers,
        fail_on_data_loss=options.fail_on_data_loss,
    )


async def _plan(options: ReadOptions) -> Plan:
    metadata = open_metadata_store(options.metadata)
    try:
        objects = open_object_store(options.objects)
        try:
            return await make_plan(options, metadata, objects)
        finally:
            await objects.close()
    finally:
        await metadata.close()
