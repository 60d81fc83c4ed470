"""Decompresses into memory that the caller has used before.

New memory of a batch's size costs more than to decompress it: the system has to find each page.
What the codecs' libraries write without a surprise is written here; of everything else, and for
the errors, ``decompress`` is to be asked.

An LZ4 frame is: magic (4) | flags | block size | content size (8), if it has one | dictionary (4),
if it has one | checksum of these | blocks | end mark (4 zeros) | content checksum (4), if there is
one. A block is: size (4, its highest bit is set if it is stored as it is) | content | checksum (4),
if blocks have one. Source: the LZ4 frame format 1.6.

A member of gzip ends with the size of its content modulo 2^32 (4, little-endian). Source: RFC 1952.
"""

from __future__ import annotations

import struct

import cramjam

from tidelog_core.records.codecs import XERIAL_HEADER_SIZE, XERIAL_MAGIC, CompressionType
from tidelog_core.records.zstd_frame import decompressed_size_bound

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_BLOCK_CHECKSUM, _CONTENT_SIZE, _CONTENT_CHECKSUM, _DICTIONARY = 0x10, 0x08, 0x04, 0x01
_VERSION, _INDEPENDENT = 0x40, 0x20
_FLAGS_MASK = 0xFF & ~_CONTENT_SIZE
_PLAIN_FLAGS = _VERSION | _INDEPENDENT
_CONTENT_SIZE_FIELD = struct.Struct("<Q")
_LZ4_BLOCK_SIZES = {4: 64 * 1024, 5: 256 * 1024, 6: 1024 * 1024, 7: 4 * 1024 * 1024}
_SIZE = struct.Struct("<I")
_BLOCK_SIZE = struct.Struct(">I")  # before a block of snappy-java
_STORED = 0x8000_0000
_SNAPPY_BLOCKS_MAX = 4096  # each has 32 KiB


def decompress_into(codec: CompressionType, data: memoryview, room: memoryview) -> int | None:
    """Write the data decompressed to the start of ``room``, and return its size.

    ``None``: there may be too little room, or the data is damaged, or of another form or codec.
    """
    try:
        match codec:
            case CompressionType.LZ4:
                if data[:4] == _LZ4_MAGIC and data[4] & _FLAGS_MASK == _PLAIN_FLAGS:
                    return _lz4_into(data, room)
                bound = lz4_size_bound(data, len(room))
                into = cramjam.lz4.decompress_into
            case CompressionType.ZSTD:
                bound = decompressed_size_bound(data)
                into = cramjam.zstd.decompress_into
            case CompressionType.GZIP:
                # Of one member, as clients write it; several do not fit.
                (bound,) = _SIZE.unpack(data[-_SIZE.size :])
                into = cramjam.gzip.decompress_into
            case CompressionType.SNAPPY:
                return _snappy_into(data, room)
            case _:
                return None
        if bound is None or bound > len(room):
            return None
        size: int = into(data, room[:bound])
    except (ValueError, struct.error, IndexError, OverflowError, cramjam.DecompressionError):
        return None
    return size


def _snappy_into(data: memoryview, room: memoryview) -> int | None:
    """Write the blocks of one stream of snappy-java, or one block without a frame."""
    into = cramjam.snappy.decompress_raw_into
    if data[: len(XERIAL_MAGIC)] != XERIAL_MAGIC:
        size: int = into(data, room)
        return size
    position, at = XERIAL_HEADER_SIZE, 0
    for _ in range(_SNAPPY_BLOCKS_MAX):  # A batch may have a million empty ones.
        if position >= len(data):
            break
        start = position + _BLOCK_SIZE.size
        position = start + _BLOCK_SIZE.unpack_from(data, position)[0]
        if position > len(data):
            return None
        at += into(data[start:position], room[at:])
    return at if position == len(data) else None


def _lz4_into(data: memoryview, room: memoryview) -> int | None:
    """Write the blocks of a frame without checksums, each of which stands for itself.

    That is what clients write. It takes a fifth of the time of a reader of any frame.
    """
    has_size = data[4] & _CONTENT_SIZE
    block_size = _LZ4_BLOCK_SIZES.get(data[5] >> 4 & 0x7)
    if block_size is None:
        return None
    position, at, blocks_left = 7 + (8 if has_size else 0), 0, len(room) // block_size
    while (size := _SIZE.unpack_from(data, position)[0]) != 0:
        blocks_left -= 1
        if blocks_left < 0:  # A frame may have a million empty blocks.
            return None
        start = position + _SIZE.size
        position = start + (size & ~_STORED)
        if size & _STORED:
            made = position - start
            if made > block_size:
                return None
            room[at : at + made] = data[start:position]
        else:
            made = cramjam.lz4.decompress_block_into(
                data[start:position], room[at : at + block_size], output_len=block_size
            )
        at += made
    if has_size and at != _CONTENT_SIZE_FIELD.unpack_from(data, 6)[0]:
        return None
    return at if position + _SIZE.size == len(data) else None


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
