"""Computes the largest size of decompressed zstd data from its frame and block headers.

A decoder needs a buffer of the right size before it starts, and frames made by
streaming encoders do not declare theirs. Every block does declare what it can be:
raw and run-length blocks exactly, compressed ones at most 128 KiB.
Source: RFC 8878, sections 3.1.1 and 3.1.2.
"""

from __future__ import annotations

_MAGIC = 0xFD2FB528
_SKIPPABLE_MAGIC = 0x184D2A50  # the low four bits are free
_BLOCK_SIZE_BYTES_MAX = 128 * 1024
_RUN_LENGTH, _COMPRESSED = 1, 2  # kinds of block; 0 is raw


def decompressed_size_bound(data: bytes | memoryview) -> int:
    """Return a size that the decompressed data cannot exceed, exact if the frames declare it.

    Raises ``ValueError`` if the data is not whole frames.
    """
    bound = position = 0
    while position < len(data):
        magic = _read(data, position, 4)
        if magic == _MAGIC:
            size, position = _frame_bound(data, position + 4)
            bound += size
        elif magic & ~0xF == _SKIPPABLE_MAGIC:
            position += 8 + _read(data, position + 4, 4)
        else:
            raise ValueError(f"no frame begins with {magic:#010x}")
    if position > len(data) or not data:
        raise ValueError("it is cut short")
    return bound


def _frame_bound(data: bytes | memoryview, position: int) -> tuple[int, int]:
    """Return the bound of the frame whose magic ends at ``position``, and the frame's end."""
    descriptor = _read(data, position, 1)
    is_single_segment = descriptor >> 5 & 1
    # The window descriptor is there unless the frame is one segment; then the dictionary id.
    position += 1 + (1 - is_single_segment) + (0, 1, 2, 4)[descriptor & 3]
    field_size = (is_single_segment, 2, 4, 8)[descriptor >> 6]
    declared = _read(data, position, field_size)
    if field_size == 2:
        declared += 256
    position += field_size

    bound = is_last = 0
    while not is_last:
        header = _read(data, position, 3)
        is_last, kind, size = header & 1, header >> 1 & 3, header >> 3
        if size > _BLOCK_SIZE_BYTES_MAX:
            raise ValueError(f"a block of {size} bytes is too large")
        position += 3 + (1 if kind == _RUN_LENGTH else size)
        bound += _BLOCK_SIZE_BYTES_MAX if kind == _COMPRESSED else size
    has_checksum = descriptor >> 2 & 1
    return (min(declared, bound) if field_size else bound), position + 4 * has_checksum


def _read(data: bytes | memoryview, position: int, size: int) -> int:
    """Return a little-endian number. Raises ``ValueError`` if the data ends before it."""
    if position + size > len(data):
        raise ValueError("it is cut short")
    return int.from_bytes(data[position : position + size], "little")
