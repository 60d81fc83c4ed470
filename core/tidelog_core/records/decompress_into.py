"""Decompresses into memory that the caller has used before.

New memory of a batch's size costs more than to decompress it: the system has to find each page.
What the codecs' libraries write without a surprise is written here; of everything else, and for
the errors, ``decompress`` is to be asked.

An LZ4 frame is: magic (4) | flags | block size | content size (8), if it has one | dictionary (4),
if it has one | checksum of these | blocks | end mark (4 zeros) | content checksum (4), if there is
one. A block is: size (4, its highest bit is set if it is stored as it is) | content | checksum (4),
if blocks have one. Source: the LZ4 frame format 1.6.

The checksum of flags, block size and content size is the second byte of their XXH32. A frame with
another one is damaged, as for Kafka's Java client.

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
_PLAIN_FLAGS = _VERSION | _INDEPENDENT
_PLAIN_HEAD_SIZE, _SIZED_HEAD_SIZE = 7, 15
_CONTENT_SIZE_FIELD = struct.Struct("<Q")
_LZ4_BLOCK_SIZES = {4: 64 * 1024, 5: 256 * 1024, 6: 1024 * 1024, 7: 4 * 1024 * 1024}
_SIZE = struct.Struct("<I")
_BLOCK_SIZE = struct.Struct(">I")  # before a block of snappy-java
_STORED = 0x8000_0000
_SNAPPY_BLOCKS_MAX = 4096  # each has 32 KiB
# The primes of XXH32.
_XXH_1, _XXH_2, _XXH_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_XXH_4, _XXH_5, _MASK_32 = 0x27D4EB2F, 0x165667B1, 0xFFFFFFFF


def decompress_into(codec: CompressionType, data: memoryview, room: memoryview) -> int | None:
    """Write the data decompressed to the start of ``room``, and return its size.

    ``None``: there may be too little room, or the data is damaged, or of another form or codec.
    """
    try:
        match codec:
            case CompressionType.LZ4:
                return _lz4_into(data, room)
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
    """Write the content of one frame."""
    block_size = _PLAIN_HEADS.get(bytes(data[:_PLAIN_HEAD_SIZE]))
    if block_size is not None:
        return _lz4_blocks_into(data, _PLAIN_HEAD_SIZE, block_size, room)
    if data[:4] == _LZ4_MAGIC and data[4] == _PLAIN_FLAGS | _CONTENT_SIZE:
        return _sized_lz4_into(data, room)
    bound = lz4_size_bound(data, len(room))
    if bound is None:
        return None
    size: int = cramjam.lz4.decompress_into(data, room[:bound])
    return size


def _sized_lz4_into(data: memoryview, room: memoryview) -> int | None:
    """Write the content of a frame that states its size, and has no checksums of blocks."""
    block_size = _LZ4_BLOCK_SIZES.get(data[5] >> 4)
    head = bytes(data[4:_SIZED_HEAD_SIZE])
    if block_size is None or head[-1] != _header_checksum(head[:-1]):
        return None
    size = _lz4_blocks_into(data, _SIZED_HEAD_SIZE, block_size, room)
    return size if size == _CONTENT_SIZE_FIELD.unpack_from(head, 2)[0] else None


def _lz4_blocks_into(
    data: memoryview, position: int, block_size: int, room: memoryview
) -> int | None:
    """Write the blocks, from there on, of a frame without checksums of them.

    Each stands for itself. That is what clients write. It takes a fifth of the time of a reader of
    any frame.
    """
    at, blocks_left = 0, len(room) // block_size
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
    return at if position + _SIZE.size == len(data) else None


def _header_checksum(fields: bytes) -> int:
    """Return the checksum of a frame's flags, block size and content size.

    Source: XXH32 of less than 16 bytes, with seed 0.
    """
    state = _XXH_5 + len(fields)
    words = len(fields) // 4 * 4
    for (word,) in struct.iter_unpack("<I", fields[:words]):
        state = _rotated(state + word * _XXH_3, 17) * _XXH_4
    for byte in fields[words:]:
        state = _rotated(state + byte * _XXH_5, 11) * _XXH_1
    state &= _MASK_32
    state = (state ^ state >> 15) * _XXH_2 & _MASK_32
    state = (state ^ state >> 13) * _XXH_3 & _MASK_32
    return (state ^ state >> 16) >> 8 & 0xFF


def _rotated(number: int, bits: int) -> int:
    low = number & _MASK_32
    return (low << bits | low >> 32 - bits) & _MASK_32


def _plain_head(size_code: int) -> bytes:
    fields = bytes((_PLAIN_FLAGS, size_code << 4))
    return _LZ4_MAGIC + fields + bytes((_header_checksum(fields),))


# Block sizes by the first bytes of frames of independent blocks, without checksums of them.
_PLAIN_HEADS = {_plain_head(code): size for code, size in _LZ4_BLOCK_SIZES.items()}


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
