"""Encodes and decodes the producers' state at an offset.

Layout, big-endian: magic ``TLPS`` (4 bytes), version 1 or 2 (2), CRC-32C (4) of all
that follows, end offset (8), producer count (4), then for each producer: id (8),
epoch (2), coordinator epoch (4), last seen (8, milliseconds), first offset of its
open transaction or -1 (8), batch count (1), and for each batch: last sequence (4),
last offset (8), offset delta (4), timestamp (8).

Version 2 appends the transactions that had ended above the high watermark: their
count (4), then for each its first offset (8) and its marker's (8). If there are none,
version 1 is written, which older nodes also read.

Kafka stores only a producer's last batch in its snapshot, and no ended transactions. Here
all five batches are stored, so that requests in flight during a restart are still
recognized as duplicates. Ended transactions are stored so that a restarted leader hides a
transaction whose marker may still be lost.
"""

from __future__ import annotations

from itertools import chain
from struct import Struct
from struct import error as StructError

from crc32c import crc32c

from tidelog_core.log.producers.producer_state import (
    RETAINED_BATCH_COUNT,
    ProducerEntry,
    ProducerState,
    RetainedBatch,
)

_MAGIC = b"TLPS"
_VERSION = 1
_UNREPLICATED_VERSION = 2
_PREFIX = Struct(">4sHI")
_HEAD = Struct(">qI")
_PRODUCER = Struct(">qhiqqB")
_BATCH = Struct(">iqiq")
# A producer with all of its batches, by their number: a log may have 100,000 producers, and is not
# appended to while they are encoded.
_PRODUCERS = tuple(Struct(_PRODUCER.format + "iqiq" * n) for n in range(RETAINED_BATCH_COUNT + 1))
_COUNT = Struct(">I")
_TRANSACTION = Struct(">qq")


class CorruptSnapshot(Exception):
    """The snapshot's bytes contradict its CRC or its layout."""


def encode_snapshot(state: ProducerState) -> bytes:
    """Return the snapshot file of ``state``."""
    parts = [_HEAD.pack(state.end_offset, len(state))]
    for producer_id, entry in state.items():
        batches = entry.batches
        parts.append(
            _PRODUCERS[len(batches)].pack(
                producer_id,
                entry.epoch,
                entry.coordinator_epoch,
                entry.last_seen_ms,
                entry.transaction_first_offset,
                len(batches),
                *chain.from_iterable(batches),
            )
        )
    version = _VERSION
    if unreplicated := list(state.unreplicated()):
        version = _UNREPLICATED_VERSION
        parts.append(_COUNT.pack(len(unreplicated)))
        parts.extend(_TRANSACTION.pack(*transaction) for transaction in unreplicated)
    body = b"".join(parts)
    return _PREFIX.pack(_MAGIC, version, crc32c(body)) + body


def decode_snapshot(content: bytes, *, expiration_ms: int) -> ProducerState:
    """Return the state in a snapshot file. Raises ``CorruptSnapshot``."""
    try:
        magic, version, crc = _PREFIX.unpack_from(content)
        if magic != _MAGIC or version not in (_VERSION, _UNREPLICATED_VERSION):
            raise CorruptSnapshot(f"magic {magic!r} version {version}")
        if crc32c(content[_PREFIX.size :]) != crc:
            raise CorruptSnapshot("the CRC does not match")
        state, position = _decode_producers(content, expiration_ms=expiration_ms)
        if version == _UNREPLICATED_VERSION:
            position = _decode_unreplicated(content, position, state)
    except StructError as error:
        raise CorruptSnapshot(str(error)) from error
    if position != len(content):
        raise CorruptSnapshot(f"{len(content) - position} bytes too many")
    return state


def _decode_producers(content: bytes, *, expiration_ms: int) -> tuple[ProducerState, int]:
    end_offset, producer_count = _HEAD.unpack_from(content, _PREFIX.size)
    position = _PREFIX.size + _HEAD.size
    state = ProducerState(end_offset=end_offset, expiration_ms=expiration_ms)
    for _ in range(producer_count):
        producer_id, epoch, coordinator_epoch, last_seen_ms, first_offset, batch_count = (
            _PRODUCER.unpack_from(content, position)
        )
        position += _PRODUCER.size
        if batch_count > RETAINED_BATCH_COUNT:
            raise CorruptSnapshot(f"producer {producer_id} has {batch_count} batches")
        entry = ProducerEntry(
            epoch=epoch,
            coordinator_epoch=coordinator_epoch,
            last_seen_ms=last_seen_ms,
            transaction_first_offset=first_offset,
        )
        for _ in range(batch_count):
            entry.batches.append(RetainedBatch(*_BATCH.unpack_from(content, position)))
            position += _BATCH.size
        state.load(producer_id, entry)
    return state, position


def _decode_unreplicated(content: bytes, position: int, state: ProducerState) -> int:
    (count,) = _COUNT.unpack_from(content, position)
    position += _COUNT.size
    for _ in range(count):
        state.load_unreplicated(*_TRANSACTION.unpack_from(content, position))
        position += _TRANSACTION.size
    return position
