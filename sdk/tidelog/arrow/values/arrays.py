"""Arrow's arrays out of numpy's, and out of spans of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Longs = NDArray[np.int64]
GATHERED_BYTES_MAX = 1 << 20  # at a time: each takes 24 bytes more meanwhile


def numbers(found: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Return the numbers as a column. ``pa.array`` would load pandas, in a third of a second."""
    return pa.Array.from_buffers(
        kind, len(found), [None, pa.py_buffer(np.ascontiguousarray(found))]
    )


def gathered(data: NDArray[np.uint8], starts: Longs, sizes: Longs) -> pa.Array:
    """Return the spans of bytes as a binary column."""
    ends = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    content = np.empty(ends[-1], np.uint8)
    first = 0
    while first < len(starts):
        limit = ends[first] + GATHERED_BYTES_MAX
        end = max(int(np.searchsorted(ends, limit, side="right")) - 1, first + 1)
        begin, stop = ends[first], ends[end]
        if end == first + 1:
            content[begin:stop] = data[starts[first] : starts[first] + sizes[first]]
        else:
            shifts = np.repeat(starts[first:end] - ends[first:end], sizes[first:end])
            content[begin:stop] = data[np.arange(begin, stop) + shifts]
        first = end
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(content)]
    return pa.Array.from_buffers(pa.binary(), len(starts), buffers)


def spread(found: pa.Array, is_there: NDArray[np.bool_]) -> pa.Array:
    """Return the values at the places where they are, and null at the others."""
    places = np.cumsum(is_there) - 1
    validity = pa.py_buffer(np.packbits(is_there, bitorder="little"))
    indexes = pa.Array.from_buffers(
        pa.int64(), len(places), [validity, pa.py_buffer(places.astype(np.int64))]
    )
    return found.take(indexes)
