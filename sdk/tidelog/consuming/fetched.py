"""Decodes fetched bytes into records, one batch at a time. No I/O.

A chunk holds the batches that one fetch returned for a partition: the first batch may
start before the requested offset, and the last may be truncated. With ``read_committed``
the node lists the aborted transactions in the range; a transaction's records are those
of its producer from its first offset up to the abort marker.
Source: KIP-98, the consumer's view of transactions.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence

from tidelog_core.errors import CorruptRecordBatch
from tidelog_core.model import INT64_MAX, TopicPartition
from tidelog_core.records.batch import (
    BatchHeader,
    check_crc,
    decode_batch,
    decode_batch_as,
    parse_header,
)
from tidelog_core.records.control import ControlType, parse_control_type
from tidelog_core.records.header import HEADER_SIZE, LOG_OVERHEAD, MAGIC, Buffer

from tidelog.consuming.records import ConsumerRecord

_ROOM_BYTES_MIN = 64 * 1024  # Less is copied to new memory.
_PLACE = struct.Struct(">qi4xb6xi")  # the base offset, the length, the magic, the last delta
_REST_PART = 8  # of the size of a run: a rest that is as small belongs to the run before it


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
        Raises ``CorruptRecordBatch`` if no batch is complete. One that begins before the end of the
        batch before it is handed out as that error, behind those.
        """
        self.partition = partition
        self.check_crcs = check_crcs
        self._data = data
        self._read_committed = read_committed
        # Of the batches, and the end of the last; the offsets, if one behind them goes back.
        self._places, self._back = _places(data)
        self._index = 0
        if len(self._places) == 1:
            if len(data) >= HEADER_SIZE:
                parse_header(data)  # It names what is wrong with the first.
            raise CorruptRecordBatch(f"{partition}: {len(data)} bytes hold no whole batch")
        self._aborted = deque(sorted(aborted))
        self._aborting: set[int] = set()  # producers inside an aborted transaction
        self.size_bytes = len(data)
        last = parse_header(data, self._places[-2])
        self.next_offset = last.next_offset
        self.last_epoch = last.partition_leader_epoch

    def __bool__(self) -> bool:
        """Whether a batch is left, or the error of one that goes back."""
        return self._back is not None or self._index + 1 < len(self._places)

    @property
    def has_aborted(self) -> bool:
        """Whether records of aborted transactions are among those that are left."""
        return self._read_committed and bool(self._aborted or self._aborting)

    def next_batch(self, from_offset: int) -> tuple[list[ConsumerRecord], int, int]:
        """Return the next batch's records from the offset on, its end offset and its epoch.

        The list is empty for batches that consumers do not see (markers, aborted
        transactions). Raises ``CorruptRecordBatch``, also if called again.
        """
        self._require_batch()
        position = self._places[self._index]
        header = parse_header(self._data, position)
        if self.check_crcs:
            check_crc(self._data, position, header)
        if header.base_offset < 0:
            raise malformed_header(self.partition, header)
        records: list[ConsumerRecord] = []
        if self.is_visible(self._data, position, header):
            records = decode_batch_as(
                ConsumerRecord,
                self._data,
                position,
                header,
                before=tuple(self.partition),
                after=(header.is_log_append_time,),
            )
            if records and records[-1].offset >= header.next_offset:
                raise CorruptRecordBatch(
                    f"{self.partition}: the batch at offset {header.base_offset} has a record at"
                    f" offset {records[-1].offset}, and ends at offset {header.next_offset}"
                )
            if header.base_offset < from_offset:
                records = [record for record in records if record.offset >= from_offset]
        self._index += 1
        return records, header.next_offset, header.partition_leader_epoch

    def next_batches(self, size_bytes_max: int) -> tuple[memoryview, int]:
        """Return the bytes of the next batches, about so many at most, and how many batches.

        At least one; they are passed by ``pass_batches``. Raises ``CorruptRecordBatch`` as
        ``next_batch`` does for one that goes back.
        """
        self._require_batch()
        places, index = self._places, self._index
        start, last = places[index], len(places) - 1
        if places[last] - start > size_bytes_max + size_bytes_max // _REST_PART:
            last = max(bisect_right(places, start + size_bytes_max) - 1, index + 1)
        return memoryview(self._data)[start : places[last]], last - index

    def pass_batches(self, count: int) -> None:
        """Go on behind so many batches."""
        self._index += count

    def _require_batch(self) -> None:
        if self._back is not None and self._index + 1 == len(self._places):
            base_offset, end_offset = self._back
            raise CorruptRecordBatch(
                f"{self.partition}: base offset {base_offset} is below offset {end_offset}, where"
                " the batch before it ends"
            )

    def is_visible(self, data: Buffer, position: int, header: BatchHeader) -> bool:
        """Whether consumers see the records of a batch.

        While the chunk ``has_aborted`` it is to be asked once for each, in their order.
        """
        if self._read_committed and header.has_producer_id:
            while self._aborted and self._aborted[0][0] <= header.last_offset:
                self._aborting.add(self._aborted.popleft()[1])
        if header.is_control:
            if self._read_committed and header.producer_id in self._aborting:
                for record in decode_batch(data, position, header)[:1]:
                    if parse_control_type(record.key) is ControlType.ABORT:
                        self._aborting.discard(header.producer_id)
            return False
        return not (header.is_transactional and header.producer_id in self._aborting)


def malformed_header(partition: TopicPartition, header: BatchHeader) -> CorruptRecordBatch:
    """Return the error of a header whose fields cannot be. No CRC covers the base offset."""
    return CorruptRecordBatch(
        f"{partition}: the header of the batch at offset {header.base_offset} is malformed"
    )


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


def _places(data: Buffer) -> tuple[list[int], tuple[int, int] | None]:
    """Return where whole batches start, and where the last one ends.

    A batch of another format, of an impossible size, or with offsets beyond 64 bits, ends the list.
    So does one that begins below the end of the batch before it: then its base offset and that end
    come with the list. A consumer would read the same records again, or never end reading them.
    """
    places = [0]
    position, limit, end_offset = 0, len(data), None
    while position + HEADER_SIZE <= limit:
        base_offset, length, magic, last_delta = _PLACE.unpack_from(data, position)
        position += LOG_OVERHEAD + length
        if magic != MAGIC or length < HEADER_SIZE - LOG_OVERHEAD or position > limit:
            break
        if base_offset + last_delta >= INT64_MAX:
            break  # No request could name the offset behind it.
        if end_offset is not None and 0 <= base_offset < end_offset:
            return places, (base_offset, end_offset)
        places.append(position)
        end_offset = base_offset + last_delta + 1
    return places, None
