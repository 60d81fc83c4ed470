"""The bucket of a run that has S3 instead of a folder, and how long S3 takes.

Nodes reach it through a proxy each. When all is over its objects are copied into the folder where
those of other runs are from the beginning.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import boto3
from tidelog_core.objects.s3 import S3ObjectStore

from tests.support.chain_latency import StoreLatency

NAME = "chaos"
COPIES_AT_ONCE = 8
# Milliseconds, median and 99th percentile, of objects up to 1 MB.
# Source: docs/internals/diskless-tests.md
_PUT_MS = 70.0, 140.0
_OTHER_MS = 27.0, 113.0


class S3Pace:
    """The seconds that each request takes, as S3 would take them."""

    def __init__(self, chance: random.Random) -> None:
        self._puts = StoreLatency(chance, *_PUT_MS)
        self._others = StoreLatency(chance, *_OTHER_MS)

    def draw_s(self, method: str) -> float:
        """Return the seconds of a request."""
        latency = self._puts if method == "PUT" else self._others
        return latency.draw() / 1000


def make_bucket(endpoint: str, *, region: str) -> None:
    """Make the bucket of a server that is new."""
    s3 = boto3.client("s3", endpoint_url=endpoint, region_name=region)
    try:
        s3.create_bucket(Bucket=NAME)
    finally:
        s3.close()


async def copy_bucket(endpoint: str, folder: Path) -> None:
    """Copy all objects into the folder, by their keys."""
    store = S3ObjectStore(NAME, endpoint=endpoint)
    turns = asyncio.Semaphore(COPIES_AT_ONCE)

    async def copy(key: str) -> None:
        async with turns:
            content = await store.get(key)
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(path.write_bytes, content)

    try:
        async with asyncio.TaskGroup() as tasks:
            async for found in store.list(""):
                tasks.create_task(copy(found.key))
    finally:
        await store.close()
