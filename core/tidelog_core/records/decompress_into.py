"""Decompresses into memory that the caller has used before.

New memory of a batch's size costs more than to decompress it: the system has to find each page.
What the codecs' libraries write without a surprise is written here; of everything else, and for
the errors, ``decompress`` is to be asked.

An LZ4 frame is: magic (4) | flags | block size | content size (8), if it has one | dictionary (4),
if it has one | checksum of these | blocks | end mark (4 zeros) | content checksum (4), if there is
one. A block is: size (4, its highest bit is set if it is stored as it is) | content | checksum (4),
if blocks have one. Source: the LZ4 frame format 1.6.
"""

from __future__ import annotations

import struct

import cramjam

from tidelog_core.records.codecs import CompressionType
from tidelog_core.records.zstd_frame import decompressed_size_bound

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_BLOCK_CHECKSUM, _CONTENT_SIZE, _CONTENT_CHECKSUM, _DICTIONARY = 0x10, 0x08, 0x04, 0x01
_LZ4_BLOCK_SIZES = {4: 64 * 1024, 5: 256 * 1024, 6: 1024 * 1024, 7: 4 * 1024 * 1024}
_SIZE = struct.Struct("<I")
_STORED = 0x8000_0000


def decompress_into(codec: CompressionType, data: memoryview, room: memoryview) -> int | None:
    """Write the data decompressed to the start of ``room``, and return its size.

    ``None``: there may be too little room, or the data is damaged, or of another form or codec.
    """
    try:
        if codec is CompressionType.LZ4:
            bound = lz4_size_bound(data, len(room))
            into = cramjam.lz4.decompress_into
        elif codec is CompressionType.ZSTD:
            bound = decompressed_size_bound(data)
            into = cramjam.zstd.decompress_into
        else:
            return None
        if bound is None or bound > len(room):
            return None
        size: int = into(data, room[:bound])
    except (ValueError, struct.error, IndexError, cramjam.DecompressionError):
        return None
    return size


def lz4_size_bound(data: memoryview, size_bytes_max: int) -> int | None:
    """Return how many bytes one whole frame has at most.

    ``None`` if the data is none, or if that is more than ``size_bytes_max``. Raises
    ``struct.error`` and ``IndexError`` if it is cut.
    """
    if data[:4] != _LZ4_MAGIC:
        return None
    flags, size_code = data[4], data[5] >> 4 & 0x7
    block_size = _LZ4_BLOCK_SIZES.get(size_code)
    if block_size is None or flags & _DICTIONARY:
        return None
    at = 7 + (8 if flags & _CONTENT_SIZE else 0)
    behind = 4 if flags & _BLOCK_CHECKSUM else 0
    bound = 0
    while (size := _SIZE.unpack_from(data, at)[0]) != 0:
        at += _SIZE.size + (size & ~_STORED) + behind
        bound += block_size
        if bound > size_bytes_max:  # A frame may have a million empty blocks.
            return None
    end = at + _SIZE.size + (4 if flags & _CONTENT_CHECKSUM else 0)
    return bound if end == len(data) else None
