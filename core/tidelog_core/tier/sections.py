"""The table of sections that index objects and WAL objects share.

A table has one row of 32 bytes per section: kind, flags, position in the object, size, size
of a row, CRC-32C. It follows a fixed header; a CRC-32C of both and 4 zero bytes follow it.
Sections begin at multiples of 8 bytes. ``docs/format.md`` has the layout in words.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from struct import Struct
from typing import TypeVar

from crc32c import crc32c

from tidelog_core.records.header import Buffer

Kind = TypeVar("Kind", bound=int)

ALIGNMENT = 8
SECTION_COUNT_MAX = 64
REQUIRED_FLAG = 1  # a reader that does not know the section must refuse the object

SECTION = Struct("<IIQQII")
HEADER_CRC = Struct("<II")  # the CRC, and 4 bytes of zeros


def pack_sections(
    sections: Mapping[Kind, bytes],
    start: int,
    *,
    row_sizes: Mapping[int, int],
    required: Collection[int],
) -> tuple[bytes, list[bytes]]:
    """Return the table of these sections and their padded bytes, which begin at ``start``."""
    table, body = bytearray(), []
    position = start
    for kind, data in sections.items():
        flags = REQUIRED_FLAG if kind in required else 0
        table += SECTION.pack(kind, flags, position, len(data), row_sizes[kind], crc32c(data))
        padding = -len(data) % ALIGNMENT
        body += [data, bytes(padding)]
        position += len(data) + padding
    return bytes(table), body


def check_header_crc(data: Buffer, table_end: int) -> None:
    """Raise ``ValueError`` unless the CRC behind the table matches everything before it."""
    if HEADER_CRC.unpack_from(data, table_end)[0] != crc32c(memoryview(data)[:table_end]):
        raise ValueError("the CRC of its header does not match")


def parse_sections(
    data: memoryview,
    table_position: int,
    section_count: int,
    *,
    first: int,
    row_sizes: Mapping[int, int],
    data_position: int = 0,
) -> dict[int, memoryview]:
    """Return the known sections by kind, as views of the data. Raises ``ValueError``.

    ``first`` is the position in the object where the first section may begin, ``data_position``
    the one where ``data`` begins; ``table_position`` counts from there.
    """
    sections: dict[int, memoryview] = {}
    for number in range(section_count):
        kind, flags, position, size, row_size, crc = SECTION.unpack_from(
            data, table_position + SECTION.size * number
        )
        start = position - data_position
        if position < first or position % ALIGNMENT or start + size > len(data):
            raise ValueError(f"section {kind} is outside the file")
        if kind not in row_sizes:
            if flags & REQUIRED_FLAG:
                raise ValueError(f"section {kind} is required and unknown")
            continue
        if kind in sections:
            raise ValueError(f"section {kind} is there twice")
        if row_size != row_sizes[kind] or size % row_size:
            raise ValueError(f"section {kind} has {size} bytes in rows of {row_size}")
        section = data[start : start + size]
        if crc32c(section) != crc:
            raise ValueError(f"the CRC of section {kind} does not match")
        sections[kind] = section
    return sections


def aligned(position: int) -> int:
    """Return the first multiple of 8 that is not below the position."""
    return position + -position % ALIGNMENT
