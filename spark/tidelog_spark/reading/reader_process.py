"""Settings of Spark's Python processes for reading many splits in a row.

Spark gives a process one task after another (``spark.python.worker.reuse``), and each
reads gigabytes. Garbage collection, returning memory to the system, and new connections
per task would take half of its time.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from functools import cache, lru_cache

import pyarrow as pa
from tidelog_core.objects.location import open_object_store
from tidelog_core.objects.store import ObjectStore

# Source: mallopt(3). Both in bytes.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
FREED_BYTES_KEPT = 128 << 20  # of each thread's heap
MAPPED_BYTES_MIN = 32 << 20
STORES_KEPT_MAX = 4


@lru_cache(maxsize=STORES_KEPT_MAX)
def kept_store(location: str) -> ObjectStore:
    """Return the store shared by all tasks of this process; it stays open."""
    return open_object_store(location)


def settled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches, and configure the process for reading more.

    Only for a process started by Spark: the settings apply to everything in it.
    """
    _keep_memory()
    for batch in batches:
        _freeze()  # Only now: the compiled functions are loaded with the first batch.
        yield batch


@cache
def _keep_memory() -> None:
    """Make glibc keep freed memory: the system would zero it for the next piece."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
        mallopt(_M_TRIM_THRESHOLD, FREED_BYTES_KEPT)


@cache
def _freeze() -> None:
    """Exclude existing objects, mainly the compiler's, from garbage collection.

    Spark collects after every task.
    """
    gc.freeze()
