"""The compiled loops of ``decode_kernels``, called by their machine code.

The functions check no bounds that follow from their arguments' sizes: the caller gives arrays with
enough room. They release the interpreter lock.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidelog.arrow.native.kernel_values import (
    ATTRIBUTES,
    BAD_HEADER,
    BAD_HEADERS,
    BAD_KEY,
    BAD_LENGTH,
    BAD_OFFSET,
    BAD_VALUE,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    COLUMN_COUNT,
    CRC,
    HEADER_SIZE,
    LAST_OFFSET,
    MAX_TIMESTAMP,
    OK,
    POSITION,
    PRODUCER_ID,
    RECORD_COUNT,
    RECORD_SIZE_MIN,
    SIZE,
    TIMESTAMP_MS_MAX,
    TIMESTAMP_MS_MIN,
    TRAILING_BYTES,
    Bytes,
    Ints,
    Longs,
)
from tidelog.arrow.native.stored_code import machine_code

__all__ = [
    "ATTRIBUTES",
    "BAD_HEADER",
    "BAD_HEADERS",
    "BAD_KEY",
    "BAD_LENGTH",
    "BAD_OFFSET",
    "BAD_VALUE",
    "BASE_OFFSET",
    "BASE_TIMESTAMP",
    "COLUMN_COUNT",
    "CRC",
    "HEADER_SIZE",
    "LAST_OFFSET",
    "MAX_TIMESTAMP",
    "OK",
    "POSITION",
    "PRODUCER_ID",
    "RECORD_COUNT",
    "RECORD_SIZE_MIN",
    "SIZE",
    "TIMESTAMP_MS_MAX",
    "TIMESTAMP_MS_MIN",
    "TRAILING_BYTES",
    "Bytes",
    "Ints",
    "Longs",
    "batch_table",
    "decode_headers",
    "decode_records",
    "scan_batches",
]


def batch_table(batch_count: int) -> Longs:
    """Return room for the headers of so many batches."""
    return np.empty((batch_count, COLUMN_COUNT), np.int64)


def scan_batches(data: Bytes, table: Longs) -> tuple[int, int, int]:
    """Fill ``table`` with the header of every whole batch from the start of ``data``.

    Returns the number of batches, their size in bytes, and ``OK`` or ``BAD_HEADER`` for the
    bytes after them. A truncated last batch is ignored.
    """
    found = np.empty(3, np.int64)
    machine_code().scan_batches(
        _address(data), len(data), _address(table), len(table), _address(found)
    )
    count, consumed, problem = found.tolist()
    return count, consumed, problem


def decode_records(  # noqa: PLR0917
    data: Bytes,
    sections: Longs,
    offsets_from: int,
    offsets_to: int,
    longs: Longs,
    header_starts: Longs,
    timestamp_types: Ints,
    key_ends: Ints,
    keys: Bytes,
    key_valid: Bytes,
    value_ends: Ints,
    values: Bytes,
    value_valid: Bytes,
) -> tuple[int, int, int, int, int, int]:
    """Write the records of every section with offsets in ``[offsets_from, offsets_to)``.

    A row of ``sections`` is: start and end of the records in ``data``, base offset, last
    offset, base timestamp, max timestamp, 1 if the broker set the batch's timestamp, record
    count. ``longs`` gets two rows: offset, and timestamp in microseconds. ``header_starts`` are
    places in ``data``. ``*_ends[0]`` must be 0. There is room for all records and all bytes of the
    sections. ``values`` may be ``data`` from the first section on.

    Returns the numbers of records and headers, the sizes of header keys and header values,
    the problem, and the problem's section. With a problem the records are those of the sections
    before.
    """
    found = np.empty(6, np.int64)
    machine_code().decode_records(
        _address(data),
        len(data),
        _address(sections),
        len(sections),
        offsets_from,
        offsets_to,
        _address(longs),
        longs.shape[1],
        _address(header_starts),
        _address(timestamp_types),
        _address(key_ends),
        _address(keys),
        _address(key_valid),
        _address(value_ends),
        _address(values),
        _address(value_valid),
        _address(found),
    )
    rows, headers, key_size_bytes, value_size_bytes, problem, section = found.tolist()
    return rows, headers, key_size_bytes, value_size_bytes, problem, section


def decode_headers(  # noqa: PLR0917
    data: Bytes,
    starts: Longs,
    list_ends: Ints,
    list_valid: Bytes,
    key_ends: Ints,
    keys: Bytes,
    value_ends: Ints,
    values: Bytes,
    value_valid: Bytes,
) -> None:
    """Write the headers at ``starts``. ``decode_records`` has checked every length.

    A record without headers gets a null, not an empty list, as in Spark's Kafka source.
    """
    machine_code().decode_headers(
        _address(data),
        len(data),
        _address(starts),
        len(starts),
        _address(list_ends),
        _address(list_valid),
        _address(key_ends),
        _address(keys),
        _address(value_ends),
        _address(values),
        _address(value_valid),
    )


def _address(array: NDArray[Any]) -> int:
    assert array.flags.c_contiguous
    address: int = array.__array_interface__["data"][0]
    return address
