"""The work that a diskless topic cannot do without beside receiving its batches, in bare loops.

What was appended to a log is read back, checked and put into a bucket, an object of 4 MiB at a
time, with a few of them in flight. Their memory is used again, as the nodes do. Nothing else is
done: no rows, no header, no messages between processes. Together with the first replica's loop of
``sustained.bare_loops`` it is what a diskless topic costs at least, as both loops there are for a
replicated one.

    python -m bench.bare_puts <bucket> <objects>

prints the CPU seconds per GB of all threads of this process. The bucket is at the endpoint that the
environment names.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

import obstore
from crc32c import crc32c
from obstore.store import S3Store

OBJECT_BYTES = 4 << 20
CHUNK_BYTES = 1 << 20
READ_BYTES = 256 * 1024  # stays in the processor's cache for its CRC
IN_FLIGHT = 3


def measure(bucket: str, object_count: int, environment: Mapping[str, str]) -> float:
    """Return the CPU seconds per GB, measured in another process with this environment."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, bucket, str(object_count)],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )
    return float(done.stdout)


async def _put_all(store: S3Store, path: Path, object_count: int) -> float:
    """Return the CPU seconds, without those of the first object, which starts obstore's threads."""
    memory: asyncio.Queue[bytearray] = asyncio.Queue()
    for _ in range(IN_FLIGHT):
        memory.put_nowait(bytearray(OBJECT_BYTES))
    run = uuid4()

    async def put(number: int, data: bytearray) -> None:
        view = memoryview(data)
        chunks = [view[at : at + CHUNK_BYTES] for at in range(0, OBJECT_BYTES, CHUNK_BYTES)]
        try:
            await obstore.put_async(
                store, f"bare/{run}/{number}", chunks, mode="create", use_multipart=False
            )
        finally:
            memory.put_nowait(data)

    await put(object_count, await memory.get())
    before = time.process_time()
    with path.open("rb", buffering=0) as log:
        async with asyncio.TaskGroup() as puts:
            for number in range(object_count):
                data = await memory.get()
                for at in range(0, OBJECT_BYTES, READ_BYTES):
                    piece = memoryview(data)[at : at + READ_BYTES]
                    log.readinto(piece)
                    crc32c(piece)
                puts.create_task(put(number, data))
    return time.process_time() - before


def _main() -> None:
    bucket, object_count = sys.argv[1], int(sys.argv[2])
    store = S3Store(bucket, client_options={"allow_http": True})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(os.urandom(OBJECT_BYTES) * object_count)
        used = asyncio.run(_put_all(store, path, object_count))
    print(used / (object_count * OBJECT_BYTES) * 1e9)


if __name__ == "__main__":
    _main()
