"""Downloads an object into a file, because it may be larger than memory."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import IO

from tidelog_core.objects.store import ObjectStore

CHUNK_SIZE_BYTES = 8 << 20
READS_AT_ONCE_MAX = 4


async def download(
    objects: ObjectStore,
    key: str,
    size_bytes: int,
    file: IO[bytes],
    *,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> None:
    """Write the object's first ``size_bytes`` to the file; fewer only if it is shorter.

    Raises the errors of ``get_range``.
    """
    starts = iter(range(0, size_bytes, CHUNK_SIZE_BYTES))
    while some := list(itertools.islice(starts, READS_AT_ONCE_MAX)):
        chunks = await asyncio.gather(
            *(
                objects.get_range(key, start, min(start + CHUNK_SIZE_BYTES, size_bytes))
                for start in some
            )
        )
        for chunk in chunks:
            file.write(chunk)
            on_bytes(len(chunk))
    file.flush()
