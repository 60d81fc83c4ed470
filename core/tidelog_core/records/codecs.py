"""The compression codecs of record batches.

Encoders write the formats of the Java client, so that every client can read them:
gzip as one member; snappy in the framing of snappy-java (magic ``82 "SNAPPY" 00``,
two version numbers, then blocks of 32 KiB, each behind its compressed size); LZ4
as one frame of independent 64 KiB blocks without checksums of contents; zstd as
one frame. Decoders accept more: raw snappy, any LZ4 frame, several gzip members
or zstd frames. Decompression never returns more than the caller's limit.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum

import cramjam
import lz4.frame

from tidelog_core.errors import CorruptRecordBatch, InvalidConfig
from tidelog_core.records.zstd_frame import decompressed_size_bound

# Far above an honest batch of ``max.message.bytes``, and a bound on the cost of one request.
DECOMPRESSED_SIZE_BYTES_MAX = 128 * 1024 * 1024

XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = struct.pack(">8sii", XERIAL_MAGIC, 1, 1)
XERIAL_HEADER_SIZE = len(_XERIAL_HEADER)
_XERIAL_BLOCK_SIZE_BYTES = 32 * 1024
_GZIP_RATIO_MAX = 1032  # the most that deflate packs. Source: zlib's technical details
# Of a gzip member behind the first; each further window is twice as large.
_GZIP_WINDOW_BYTES_MIN = 256
# The first buffer for an LZ4 frame; each further one is twice as large.
_LZ4_ROOM_BYTES_MIN = 64 * 1024
_LZ4_ROOM_RATIO = 4


class CompressionType(IntEnum):
    """The codecs, by their number in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


# The levels of a codec, and the value for «no level given».
LEVELS: dict[CompressionType, tuple[range, int]] = {
    CompressionType.GZIP: (range(1, 10), 6),
    CompressionType.LZ4: (range(1, 17), 0),
    CompressionType.ZSTD: (range(-131_072, 23), 3),
}


def compress(codec: CompressionType, data: bytes, level: int | None = None) -> bytes:
    """Return the data compressed. A level that the codec does not know is ``InvalidConfig``."""
    if codec is CompressionType.NONE:
        return data
    chosen = _checked_level(codec, level)
    match codec:
        case CompressionType.GZIP:
            return bytes(cramjam.gzip.compress(data, chosen))
        case CompressionType.SNAPPY:
            return _compress_xerial(data)
        case CompressionType.LZ4:
            # The Java client reads frames of independent blocks only.
            framed: bytes = lz4.frame.compress(
                data,
                compression_level=chosen,
                block_size=lz4.frame.BLOCKSIZE_MAX64KB,
                block_linked=False,
                store_size=False,
            )
            return framed
        case CompressionType.ZSTD:
            return bytes(cramjam.zstd.compress(data, chosen))


def decompress(
    codec: CompressionType,
    data: bytes | memoryview,
    *,
    size_bytes_max: int = DECOMPRESSED_SIZE_BYTES_MAX,
) -> bytes:
    """Return the data decompressed.

    Raises ``CorruptRecordBatch`` if the data is not of the codec, is cut or has bytes
    behind its end, ``DecompressedTooLarge`` if it would grow past ``size_bytes_max``.
    """
    return bytes(decompress_view(codec, data, size_bytes_max=size_bytes_max))


def decompress_view(
    codec: CompressionType,
    data: bytes | memoryview,
    *,
    size_bytes_max: int = DECOMPRESSED_SIZE_BYTES_MAX,
) -> bytes | memoryview:
    """Return the bytes of ``decompress`` as a view of a decoder's buffer. Raises as it does."""
    if codec is CompressionType.NONE:
        return data
    try:
        return _DECOMPRESSORS[codec](data, size_bytes_max)
    except _TooLarge as error:
        raise DecompressedTooLarge(f"{codec.name.lower()} data is too large: {error}") from None
    except _BadData as error:
        raise CorruptRecordBatch(f"{codec.name.lower()} data is corrupt: {error}") from None


class DecompressedTooLarge(CorruptRecordBatch):
    """The data would grow past the caller's limit; where that is the largest, it is no batch."""


class _BadData(Exception):
    """The damage of compressed data, in words."""


class _TooLarge(_BadData):
    """It would grow past the limit."""


def _checked_level(codec: CompressionType, level: int | None) -> int:
    if codec not in LEVELS:
        if level is not None:
            raise InvalidConfig([f"{codec.name.lower()} has no compression levels"])
        return 0
    levels, default = LEVELS[codec]
    if level is None:
        return default
    if level not in levels:
        raise InvalidConfig(
            [f"{codec.name.lower()} level {level} is outside [{levels[0]}, {levels[-1]}]"]
        )
    return level


def _too_large(size_bytes_max: int) -> _TooLarge:
    return _TooLarge(f"it decompresses to more than {size_bytes_max} bytes")


def _decompress_gzip(data: bytes | memoryview, size_bytes_max: int) -> bytes | memoryview:
    whole = _decompress_gzip_member(data, size_bytes_max)
    if whole is not None:
        return whole
    parts: list[bytes] = []
    left = size_bytes_max + 1  # One byte more than allowed tells «too large» from «cut short».
    rest = memoryview(data)
    # A member copies what it was given behind its end. The first is mostly the only one and gets
    # all at once; further ones get little at first, so that each copies little.
    window_bytes = len(rest)
    while True:
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            given = rest[:window_bytes]
            if not given:
                raise _BadData("it is cut short")
            try:
                part = member.decompress(given, left)
            except zlib.error as error:
                raise _BadData(str(error)) from None
            left -= len(part)
            if not left:
                raise _too_large(size_bytes_max)
            if part:
                parts.append(part)
            rest = rest[len(given) - len(member.unused_data) :]
            window_bytes *= 2
        if not rest:
            return parts[0] if len(parts) == 1 else b"".join(parts)
        window_bytes = _GZIP_WINDOW_BYTES_MIN


def _decompress_gzip_member(data: bytes | memoryview, size_bytes_max: int) -> memoryview | None:
    """Return the content of a single member; ``None`` if the data may be something else.

    It ends with the size of its content modulo 2^32. It takes half of zlib's time.
    """
    size = int.from_bytes(data[-4:], "little")
    if not data or size > min(size_bytes_max, _GZIP_RATIO_MAX * len(data)):
        return None
    output = bytearray(size)
    try:
        written: int = cramjam.gzip.decompress_into(data, output)
    except cramjam.DecompressionError:
        return None
    return memoryview(output) if written == size else None


def _compress_xerial(data: bytes) -> bytes:
    parts = [_XERIAL_HEADER]
    view = memoryview(data)
    for start in range(0, len(data), _XERIAL_BLOCK_SIZE_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_SIZE_BYTES]))
        parts.append(len(block).to_bytes(4, "big"))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: bytes | memoryview, size_bytes_max: int) -> bytes | memoryview:
    if data[: len(XERIAL_MAGIC)] != XERIAL_MAGIC:
        return _decompress_snappy_block(data, size_bytes_max, size_bytes_max)
    blocks: list[memoryview] = []
    view = memoryview(data)
    position, left = XERIAL_HEADER_SIZE, size_bytes_max
    if len(view) < position:
        raise _BadData("it is cut short")
    while position < len(view):
        # snappy-java can join streams: another header may come instead of a block.
        if view[position : position + len(XERIAL_MAGIC)] == XERIAL_MAGIC:
            position += XERIAL_HEADER_SIZE
            continue
        start = position + 4
        position = start + int.from_bytes(view[position:start], "big")
        if start > len(view) or position > len(view):
            raise _BadData("it is cut short")
        block = _decompress_snappy_block(view[start:position], left, size_bytes_max)
        left -= len(block)
        blocks.append(block)
    return b"".join(blocks)


def _decompress_snappy_block(
    data: bytes | memoryview, left: int, size_bytes_max: int
) -> memoryview:
    try:
        # The block states its size first; the decoder fails if that is wrong.
        if cramjam.snappy.decompress_raw_len(data) > left:
            raise _too_large(size_bytes_max)
        return memoryview(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise _BadData(str(error)) from None


def _decompress_lz4(data: bytes | memoryview, size_bytes_max: int) -> bytes:
    # A frame need not state its size. A buffer of the limit's size would be allocated and
    # freed for each batch, which costs more than the decompression.
    room_bytes = _LZ4_ROOM_BYTES_MIN + _LZ4_ROOM_RATIO * len(data)
    context = lz4.frame.create_decompression_context()
    parts: list[bytes] = []
    rest = memoryview(data)
    left, is_whole = size_bytes_max + 1, False
    try:
        while left and not is_whole:
            part, consumed, is_whole = lz4.frame.decompress_chunk(
                context, rest, max_length=min(room_bytes, left)
            )
            if not part and not consumed:
                break
            parts.append(part)
            rest = rest[consumed:]
            left -= len(part)
            room_bytes *= 2
    except RuntimeError as error:
        raise _BadData(str(error)) from None
    if not left:
        raise _too_large(size_bytes_max)
    if not is_whole:
        raise _BadData("it is cut short")
    if rest:
        raise _BadData(f"{len(rest)} bytes follow its end")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_zstd(data: bytes | memoryview, size_bytes_max: int) -> memoryview:
    try:
        bound = decompressed_size_bound(data)
        output = bytearray(min(bound, size_bytes_max))
        written: int = cramjam.zstd.decompress_into(data, output)
    except ValueError as error:
        raise _BadData(str(error)) from None
    except cramjam.DecompressionError as error:
        # A decoder reports a full buffer like bad data.
        if bound > size_bytes_max:
            raise _TooLarge(f"{error} (limit {size_bytes_max} bytes)") from None
        raise _BadData(str(error)) from None
    return memoryview(output)[:written]


_DECOMPRESSORS: dict[CompressionType, Callable[[bytes | memoryview, int], bytes | memoryview]] = {
    CompressionType.GZIP: _decompress_gzip,
    CompressionType.SNAPPY: _decompress_snappy,
    CompressionType.LZ4: _decompress_lz4,
    CompressionType.ZSTD: _decompress_zstd,
}
