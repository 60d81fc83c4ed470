"""Checks that the bytes of a ranged read are those that were stored.

Records go from the cache to clients without another check, and many clients do not check them
either. So damaged bytes must not get into the cache.
"""

from __future__ import annotations

import struct

from crc32c import crc32c
from tidelog_core.errors import CorruptObject, CorruptRecordBatch, UnsupportedMagic
from tidelog_core.records.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC, check_crc, parse_header
from tidelog_core.records.header import ATTRIBUTES_POSITION
from tidelog_core.tier.index_file import IndexFile
from tidelog_core.tier.keys import LOG_SUFFIX

from tidelog_node.tier.protocol import ByteRange

# Base offset, batch length, leader epoch, magic, CRC, attributes, last offset delta.
_CHECKED = struct.Struct(">qiibIhi")


def check_range_bytes(wanted: ByteRange, data: bytes | memoryview) -> None:
    """Check lengths, CRCs and order of whole record batches, or a whole index object.

    The order is checked because no CRC covers a batch's base offset.
    Raises ``CorruptObject``.
    """
    size_bytes = wanted.end - wanted.start
    if len(data) != size_bytes:
        raise CorruptObject(
            wanted.key, f"it ends at {wanted.start + len(data)}, before {wanted.end}"
        )
    if not wanted.key.endswith(LOG_SUFFIX):
        IndexFile.parse(data, key=wanted.key)
        return
    try:
        _check_batches(memoryview(data))
    except (CorruptRecordBatch, UnsupportedMagic) as error:
        raise CorruptObject(wanted.key, f"from byte {wanted.start} on: {error}") from error


def _check_batches(data: memoryview) -> None:
    """Check one batch after another with as few steps as possible.

    A range can have ten thousand small batches. A damaged one is passed to the shared functions,
    which raise the precise error.
    """
    unpack, crc_of, size_bytes = _CHECKED.unpack_from, crc32c, len(data)
    position = next_offset = 0
    while position < size_bytes:
        if size_bytes - position < HEADER_SIZE:
            parse_header(data, position)  # raises
        base_offset, length, _, magic, crc, _, last_offset_delta = unpack(data, position)
        end = position + LOG_OVERHEAD + length
        if (
            magic != MAGIC
            or length < HEADER_SIZE - LOG_OVERHEAD
            or end > size_bytes
            or crc_of(data[position + ATTRIBUTES_POSITION : end]) != crc
        ):
            check_crc(data, position, parse_header(data, position))  # raises
        if base_offset < next_offset:
            raise CorruptRecordBatch(
                f"batch at {position} begins with offset {base_offset}, "
                f"after one that ends before {next_offset}"
            )
        next_offset = base_offset + last_offset_delta + 1
        position = end
