"""Decodes fetched bytes into records, one batch at a time. No I/O.

A chunk holds the batches that one fetch returned for a partition: the first batch may
start before the requested offset, and the last may be truncated. With ``read_committed``
the node lists the aborted transactions in the range; a transaction's records are those
of its producer from its first offset up to the abort marker.
Source: KIP-98, the consumer's view of transactions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidelog_core.errors import CorruptRecordBatch
from tidelog_core.model import TopicPartition
from tidelog_core.records.batch import (
    BatchHeader,
    check_crc,
    decode_batch,
    decode_batch_as,
    parse_header,
)
from tidelog_core.records.control import ControlType, parse_control_type
from tidelog_core.records.header import HEADER_SIZE, Buffer

from tidelog.consuming.records import ConsumerRecord

_ROOM_BYTES_MIN = 64 * 1024  # Less is copied to new memory.


class BatchRun(NamedTuple):
    """Whole batches of a chunk, one after the other."""

    data: memoryview
    are_visible: list[bool]  # by batch: whether consumers see its records
    next_offset: int
    last_epoch: int  # the leader epoch of the last batch


class Chunk:
    """The batches of one fetch that are not yet decoded."""

    def __init__(
        self,
        partition: TopicPartition,
        data: Buffer,
        *,
        aborted: Sequence[tuple[int, int]] = (),
        read_committed: bool = False,
        check_crcs: bool = True,
    ) -> None:
        """Find the batches; ``aborted`` holds (first offset, producer id).

        ``data`` must not change. If it is writable it is the chunk's: runs may be decoded in place.
        Raises ``CorruptRecordBatch`` if no batch is complete.
        """
        self._partition = partition
        self._data = data
        self._read_committed = read_committed
        self._check_crcs = check_crcs
        self._batches = deque(_whole_batches(data))
        if not self._batches:
            raise CorruptRecordBatch(f"{partition}: {len(data)} bytes hold no whole batch")
        self._aborted = deque(sorted(aborted))
        self._aborting: set[int] = set()  # producers inside an aborted transaction
        self.size_bytes = len(data)
        self.next_offset = self._batches[-1][1].next_offset
        self.last_epoch = self._batches[-1][1].partition_leader_epoch

    def __bool__(self) -> bool:
        """Whether a batch is left."""
        return bool(self._batches)

    def next_batch(self, from_offset: int) -> tuple[list[ConsumerRecord], int, int]:
        """Return the next batch's records from the offset on, its end offset and its epoch.

        The list is empty for batches that consumers do not see (markers, aborted
        transactions). Raises ``CorruptRecordBatch``, also if called again.
        """
        position, header = self._batches[0]
        if self._check_crcs:
            check_crc(self._data, position, header)
        records: list[ConsumerRecord] = []
        if self._is_visible(position, header):
            records = decode_batch_as(
                ConsumerRecord,
                self._data,
                position,
                header,
                before=tuple(self._partition),
                after=(header.is_log_append_time,),
            )
            if header.base_offset < from_offset:
                records = [record for record in records if record.offset >= from_offset]
        self._batches.popleft()
        return records, header.next_offset, header.partition_leader_epoch

    def next_run(self, size_bytes_max: int) -> BatchRun:
        """Return the next batches: no more than these bytes, or one batch.

        A batch with a wrong CRC ends the run before it. Raises ``CorruptRecordBatch`` if it is
        the first one, also if called again.
        """
        start = end = self._batches[0][0]
        next_offset = last_epoch = -1
        are_visible: list[bool] = []
        while self._batches:
            position, header = self._batches[0]
            if are_visible and position + header.size_bytes - start > size_bytes_max:
                break
            if self._check_crcs:
                try:
                    check_crc(self._data, position, header)
                except CorruptRecordBatch:
                    if not are_visible:
                        raise
                    break
            are_visible.append(self._is_visible(position, header))
            end = position + header.size_bytes
            next_offset, last_epoch = header.next_offset, header.partition_leader_epoch
            self._batches.popleft()
        return BatchRun(memoryview(self._data)[start:end], are_visible, next_offset, last_epoch)

    def _is_visible(self, position: int, header: BatchHeader) -> bool:
        if self._read_committed and header.has_producer_id:
            while self._aborted and self._aborted[0][0] <= header.last_offset:
                self._aborting.add(self._aborted.popleft()[1])
        if header.is_control:
            if self._read_committed and header.producer_id in self._aborting:
                for record in decode_batch(self._data, position, header)[:1]:
                    if parse_control_type(record.key) is ControlType.ABORT:
                        self._aborting.discard(header.producer_id)
            return False
        return not (header.is_transactional and header.producer_id in self._aborting)


def kept_records(
    records: bytes | memoryview, room: Callable[[int], memoryview]
) -> bytes | memoryview:
    """Return the records, copied if they would keep much more of their answer in memory.

    ``room`` returns memory of the client's for so many bytes.
    """
    if isinstance(records, bytes) or len(records) * 2 >= memoryview(records.obj).nbytes:
        return records
    if len(records) < _ROOM_BYTES_MIN:
        return bytes(records)
    kept = room(len(records))
    kept[:] = records
    return kept


def _whole_batches(data: Buffer) -> list[tuple[int, BatchHeader]]:
    batches = []
    position = 0
    while position + HEADER_SIZE <= len(data):
        header = parse_header(data, position)
        if position + header.size_bytes > len(data):
            break
        batches.append((position, header))
        position += header.size_bytes
    return batches
