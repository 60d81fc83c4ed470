"""Control records: the markers that end a transaction.

A marker is a transactional control batch of one record. Its key is version (int16)
and type (int16: 0 abort, 1 commit), its value version (int16) and the epoch of the
coordinator that wrote it (int32). Later versions only add fields behind these.
Source: KIP-98.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from tidelog_core.errors import CorruptRecordBatch
from tidelog_core.records.encode import build_batch
from tidelog_core.records.record import Record

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = 0


class ControlType(IntEnum):
    """The type of a control record. Other types exist in Kafka's own metadata log only."""

    ABORT = 0
    COMMIT = 1


@dataclass(frozen=True, slots=True)
class EndTransactionMarker:
    """The outcome of a producer's transaction."""

    type: ControlType
    coordinator_epoch: int

    @property
    def is_commit(self) -> bool:
        """Whether the transaction was committed."""
        return self.type is ControlType.COMMIT


def build_end_transaction_marker(
    marker: EndTransactionMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytes:
    """Return the control batch that ends the producer's transaction in one partition."""
    key = _KEY.pack(_VERSION, marker.type)
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    return build_batch(
        [Record(base_offset, timestamp_ms, key, value)],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        leader_epoch=leader_epoch,
        is_transactional=True,
        is_control=True,
    )


def parse_control_type(key: bytes | None) -> ControlType | None:
    """Return the type in a control record's key, None for a type that readers skip.

    Raises ``CorruptRecordBatch`` if the key is too short or its version negative.
    """
    if key is None or len(key) < _KEY.size:
        raise CorruptRecordBatch(f"a control record's key is {key!r}, too short")
    version, number = _KEY.unpack_from(key)
    if version < 0:
        raise CorruptRecordBatch(f"a control record's key has version {version}")
    try:
        return ControlType(number)
    except ValueError:
        return None


def parse_end_transaction_marker(record: Record) -> EndTransactionMarker | None:
    """Return the marker in a control record, None for a type that readers skip.

    Raises ``CorruptRecordBatch`` if key or value are too short or of a negative version.
    """
    control_type = parse_control_type(record.key)
    if control_type is None:
        return None
    value = record.value
    if value is None or len(value) < _VALUE.size:
        raise CorruptRecordBatch(f"an end-transaction marker's value is {value!r}, too short")
    version, coordinator_epoch = _VALUE.unpack_from(value)
    if version < 0:
        raise CorruptRecordBatch(f"an end-transaction marker has version {version}")
    return EndTransactionMarker(control_type, coordinator_epoch)
