"""Views and copies: a batch of Arrow keeps at most three times its own bytes in memory.

A column that is a view of a buffer keeps all of it. What is a small part of its buffer is copied.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

# Of a buffer of 8 MiB two runs of 4 MiB are decoded: each may have views of it.
VIEW_PART: Final = 3

Number = TypeVar("Number", bound=np.generic)
Rows = TypeVar("Rows", pa.Array, pa.RecordBatch)


def may_be_view(used: int, kept: int) -> bool:
    """Whether a view that uses so much may keep so much."""
    return used * VIEW_PART >= kept


def first_items(array: NDArray[Number], count: int) -> NDArray[Number]:
    """Return the first items of each row: a view, or a copy if a view would keep too much."""
    items = array[..., :count]
    return items if may_be_view(count, array.shape[-1]) else copied(items)


def copied(array: NDArray[Number]) -> NDArray[Number]:
    """Return a copy that has no more memory than it needs."""
    kept = room(array.size, array.dtype.type).reshape(array.shape)
    kept[...] = array
    return kept


def room(count: int, dtype: type[Number]) -> NDArray[Number]:
    """Return a writable array in memory of Arrow's pool, which reuses freed memory."""
    return np.frombuffer(pa.allocate_buffer(count * np.dtype(dtype).itemsize), dtype)


def part_of(rows: Rows, start: int, count: int) -> Rows:
    """Return some rows: a copy unless it is all of them, because a slice would keep the rest."""
    if count == len(rows):
        return rows
    return rows.take(numbers(np.arange(start, start + count), pa.int64()))


def numbers(items: NDArray[Any], type: pa.DataType) -> pa.Array:
    """Return the numbers as a column. ``pa.array`` would load pandas, in a third of a second."""
    return pa.Array.from_buffers(type, len(items), [None, pa.py_buffer(items)])
