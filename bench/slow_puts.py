"""A server in front of an S3 emulator whose PUTs take as long as S3's, and that counts requests.

The times are drawn as ``tests.support.chain_latency`` draws them: lognormal through a median and a
99th percentile, and now and then a second more. It runs in a process of its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import multiprocessing
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

import boto3

from tests.support.chain_latency import StoreLatency
from tests.support.store_proxy import S3, STORE_PASSES, StoreBehaviour, StoreProxy
from tools import ministack

MEDIAN_MS, P99_MS = 70.0, 140.0  # of PUTs of objects up to 1 MB, published times of 2025
BUCKET = "tidelog-diskless"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
}
# What nodes do by themselves with S3's own endpoints: ``tidelog_core.objects.s3_checksums``.
CHECKSUMS = {"AWS_CHECKSUM_ALGORITHM": "crc64nvme", "AWS_UNSIGNED_PAYLOAD": "true"}


class SlowPuts:
    """The running server, as its parent process uses it."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self.url: str = pipe.recv()

    @property
    def environment(self) -> dict[str, str]:
        """Return what a node needs to find the bucket here."""
        return {**CREDENTIALS, **CHECKSUMS, "AWS_ENDPOINT_URL": self.url}

    def take_counts(self) -> Counter[str]:
        """Return the number of requests by method since the last call."""
        self._pipe.send(None)
        found = self._pipe.recv()
        assert isinstance(found, Counter)
        return found


@contextmanager
def bucket() -> Iterator[SlowPuts]:
    """Serve an empty bucket ``BUCKET`` at S3's pace until the block ends."""
    with (
        tempfile.TemporaryDirectory() as folder,
        ministack.serve(Path(folder)) as endpoint,
        serve(endpoint, MEDIAN_MS, P99_MS) as store,
    ):
        s3 = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name=CREDENTIALS["AWS_REGION"],
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        )
        s3.create_bucket(Bucket=BUCKET)
        yield store


@contextmanager
def serve(upstream: str, median_ms: float, p99_ms: float) -> Iterator[SlowPuts]:
    """Relay to ``upstream`` until the block ends."""
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    process = spawning.Process(target=_run, args=(upstream, median_ms, p99_ms, theirs))
    process.start()
    theirs.close()  # If the process ends, waiting for its URL does, too.
    try:
        yield SlowPuts(ours)
    finally:
        ours.close()
        process.terminate()
        process.join()


class _Proxy(StoreProxy):
    def __init__(self, upstream: str, latency: StoreLatency) -> None:
        super().__init__(upstream, Random(1), S3)
        self.methods: Counter[str] = Counter()
        self._latency = latency

    def _behaviour_for(self, method: str) -> StoreBehaviour:
        self.methods[method] += 1
        if method != "PUT":
            return STORE_PASSES
        delay_s = self._latency.draw() / 1000
        return dataclasses.replace(STORE_PASSES, delay_s=delay_s, is_unchecked=True)


def _run(upstream: str, median_ms: float, p99_ms: float, pipe: Connection) -> None:
    asyncio.run(_serve(upstream, StoreLatency(Random(7), median_ms, p99_ms), pipe))


async def _serve(upstream: str, latency: StoreLatency, pipe: Connection) -> None:
    async with _Proxy(upstream, latency) as proxy:
        pipe.send(proxy.url)
        asked = asyncio.Event()
        asyncio.get_running_loop().add_reader(pipe.fileno(), asked.set)
        while True:
            await asked.wait()
            asked.clear()
            if not pipe.poll():
                continue  # The loop may notice one message twice.
            try:
                pipe.recv()
            except EOFError:
                return
            counts, proxy.methods = proxy.methods, Counter()
            pipe.send(counts)
