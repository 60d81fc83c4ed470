"""``EncodedRecords``: a batch that the caller has encoded and compressed."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog_core.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from tidelog_core.records.batch import HEADER_SIZE, BatchHeader, CompressionType
from tidelog_core.records.header import MAGIC, TRANSACTIONAL_BIT, pack_batch


@dataclass(frozen=True, slots=True)
class EncodedRecords:
    """The records section of a batch, and the fields of its header that describe it.

    For programs that build batches from columns, with ``Producer.send_encoded``.
    """

    body: bytes  # compressed with ``compression``
    compression: CompressionType
    record_count: int  # at offset deltas from 0 on, without a gap
    base_timestamp_ms: int
    max_timestamp_ms: int

    @property
    def size_bytes(self) -> int:
        """Return the size of the whole batch."""
        return HEADER_SIZE + len(self.body)

    def batch(
        self,
        *,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        is_transactional: bool = False,
    ) -> bytes:
        """Return the batch with these numbers, ready to send."""
        header = BatchHeader(
            base_offset=0,
            batch_length=0,
            partition_leader_epoch=-1,
            magic=MAGIC,
            crc=0,
            attributes=int(self.compression) | (TRANSACTIONAL_BIT if is_transactional else 0),
            last_offset_delta=self.record_count - 1,
            base_timestamp_ms=self.base_timestamp_ms,
            max_timestamp_ms=self.max_timestamp_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=self.record_count,
        )
        return pack_batch(header, self.body)
