"""The bytes of a slice, checked and with the offsets that its leader gave them."""

from __future__ import annotations

from crc32c import crc32c

from tidelog_core.errors import CorruptObject, CorruptRecordBatch
from tidelog_core.model import NO_LEADER_EPOCH
from tidelog_core.records.header import Buffer, iter_headers, patch


def check_slice_bytes(data: Buffer, crc: int, *, key: str, position: int) -> None:
    """Raise ``CorruptObject`` unless the bytes at the position of the object have this CRC-32C."""
    if crc32c(data) != crc:
        raise CorruptObject(
            key, f"the CRC of the {len(data)} bytes of its slice at {position} does not match"
        )


def placed_batches(
    data: Buffer,
    base_offset: int,
    *,
    key: str,
    position: int,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytearray:
    """Return a gateway's batches with offsets from ``base_offset`` on, one after the other.

    They get the leader epoch. Their CRCs cover neither. Raises ``CorruptObject`` if a batch is cut.
    """
    placed = bytearray(data)
    try:
        for at, header in iter_headers(data):
            patch(placed, at, base_offset=base_offset, leader_epoch=leader_epoch)
            base_offset += header.last_offset_delta + 1
    except CorruptRecordBatch as error:
        raise CorruptObject(key, f"its slice at {position}: {error}") from None
    return placed


def foreign_batches(data: Buffer) -> bytearray:
    """Return batches as a gateway's slice has them: offsets from 0 on, and no leader epoch.

    It undoes ``placed_batches``, so that a log can be compared with a slice. Raises
    ``CorruptRecordBatch`` if a batch is cut.
    """
    foreign = bytearray(data)
    base_offset = 0
    for at, header in iter_headers(data):
        patch(foreign, at, base_offset=base_offset, leader_epoch=NO_LEADER_EPOCH)
        base_offset += header.last_offset_delta + 1
    return foreign
