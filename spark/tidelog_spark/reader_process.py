"""What a Python process of Spark's keeps, to read one split after the other cheaply.

Spark gives the process task after task (``spark.python.worker.reuse``), and it reads by
the gigabyte. Garbage collection, memory given back, and new connections for each task
would take half of its time.
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
    """Return the store for every task of this process. It is not closed: connections stay."""
    return open_object_store(location)


def settled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches, and set the process up for more of them.

    Only for a process that Spark has started: the settings are for all that runs in it.
    """
    _keep_memory()
    for batch in batches:
        _freeze()  # Not before: the compiled functions are loaded with the first batch.
        yield batch


@cache
def _keep_memory() -> None:
    """Let glibc keep what is freed: the system would zero it for the next piece."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
        mallopt(_M_TRIM_THRESHOLD, FREED_BYTES_KEPT)


@cache
def _freeze() -> None:
    """Leave out of garbage collections what is there now: all that the compiler has brought.

    Spark collects after every task.
    """
    gc.freeze()
