"""Takes many batches of a chunk at once, as a table of their headers: for Arrow.

A batch has mostly 16 to 64 KiB. Python's work for each would take as long as to decode its records.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tidelog_core.errors import CorruptRecordBatch
from tidelog_core.model import TopicPartition
from tidelog_core.records.header import CONTROL_BIT, check_crc, parse_header

from tidelog.arrow.batch_crcs import intact_count
from tidelog.arrow.native import kernels
from tidelog.arrow.native.kernels import Longs
from tidelog.consuming.fetched import Chunk, malformed_header


class BatchRun(NamedTuple):
    """Whole batches of a chunk, one after the other."""

    data: memoryview
    table: Longs  # the headers, as of ``scan_batches``, of the batches that consumers see
    next_offset: int
    last_epoch: int  # the leader epoch of the last batch


def next_run(chunk: Chunk, size_bytes_max: int) -> BatchRun:
    """Return the next batches: about so many bytes at most, or one batch.

    A batch that is damaged, by its CRC or its header, ends the run before it. Raises
    ``CorruptRecordBatch`` if it is the first one, also if called again.
    """
    data, count = chunk.next_batches(size_bytes_max)
    table = kernels.batch_table(count)
    found, _, _ = kernels.scan_batches(np.frombuffer(data, np.uint8), table)
    if chunk.check_crcs:
        found = intact_count(data, table[:found])
    if not found:
        raise _damage(chunk.partition, data, has_crc=chunk.check_crcs)
    table = table[:found]
    are_visible = _are_visible(chunk, data, table)
    chunk.pass_batches(found)
    last = table[-1]
    position = int(last[kernels.POSITION])
    return BatchRun(
        data[: position + int(last[kernels.SIZE])],
        table[are_visible],
        int(last[kernels.LAST_OFFSET]) + 1,
        parse_header(data, position).partition_leader_epoch,
    )


def _are_visible(chunk: Chunk, data: memoryview, table: Longs) -> NDArray[np.bool_]:
    if not chunk.has_aborted:
        are_seen: NDArray[np.bool_] = table[:, kernels.ATTRIBUTES] & CONTROL_BIT == 0
        return are_seen
    places = table[:, kernels.POSITION].tolist()
    return np.array([chunk.is_visible(data, place, parse_header(data, place)) for place in places])


def _damage(partition: TopicPartition, data: memoryview, *, has_crc: bool) -> CorruptRecordBatch:
    """Return the problem of the first batch."""
    header = parse_header(data)
    if has_crc:
        try:
            check_crc(data, 0, header)
        except CorruptRecordBatch as error:
            return error.with_traceback(None)  # Its frames have views of the data.
    return malformed_header(partition, header)
