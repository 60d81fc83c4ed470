"""The header of a WAL object, 112 bytes, and its trailer, 16 bytes.

    header | body | footer: the header again, table of sections, sections | trailer

The header's CRC covers the CRC of the table, which has those of the sections, and the section
of slices has those of the body: two objects with equal headers are equal. The CRC of the
previous object's header makes a chain of them.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from crc32c import crc32c

from tidelog_core.errors import CorruptObject
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.records.header import Buffer
from tidelog_core.tier.sections import ALIGNMENT, SECTION_COUNT_MAX

if TYPE_CHECKING:
    from tidelog_core.diskless.wal.keys import WalKey

MAGIC = b"TLWAL\0\0\0"
END_MAGIC = b"TLWE"
VERSION = 1
HEADER_SIZE = 112
TRAILER_SIZE = 16
# Positions in the body are unsigned 32-bit numbers; nodes write objects of a few MiB.
OBJECT_SIZE_BYTES_MAX = 2**31
NO_HEADER_CRC = 0  # of the header before the first object's

_FIELDS = Struct("<8sHHI16s16siIqqQQqIQ")
_CRC = Struct("<I")
_TRAILER = Struct("<Q4s")
assert _FIELDS.size + _CRC.size == HEADER_SIZE
assert _TRAILER.size + _CRC.size == TRAILER_SIZE


class WalKind(IntEnum):
    """The purpose of an object of a chain."""

    DATA = 1
    SEAL = 2
    CHECKPOINT = 3


class WalHeader(NamedTuple):
    """The fields of a header."""

    kind: WalKind
    section_count: int
    cluster_digest: bytes
    chain: ChainName
    table_crc: int
    sequence: int
    committed_end: int  # every lower sequence was known to exist when the object was built
    size_bytes: int  # of the whole object
    footer_position: int
    created_ms: int  # Unix time, by the writer's clock
    previous_crc: int  # ``crc`` of the object with the sequence before; 0 of the first
    crc: int  # of the header's other bytes

    def pack(self) -> bytes:
        """Return the bytes; ``crc`` is computed."""
        fixed = _FIELDS.pack(
            MAGIC,
            VERSION,
            self.kind,
            self.section_count,
            self.cluster_digest,
            self.chain.chain_id.bytes,
            self.chain.broker_id,
            self.table_crc,
            self.sequence,
            self.committed_end,
            self.size_bytes,
            self.footer_position,
            self.created_ms,
            self.previous_crc,
            0,
        )
        return fixed + _CRC.pack(crc32c(fixed))


def cluster_digest(cluster_id: str) -> bytes:
    """Return the 16 bytes by which headers name the cluster."""
    return hashlib.sha256(cluster_id.encode()).digest()[:16]


def parse_header(data: Buffer, *, key: str) -> WalHeader:
    """Return the header at the start of ``data``. Raises ``CorruptObject`` with ``key``."""
    try:
        return read_header(memoryview(data), 0)
    except ValueError as error:
        raise CorruptObject(key, str(error)) from None


def check_key(header: WalHeader, name: WalKey, *, key: str) -> None:
    """Raise ``CorruptObject`` unless the header is of the object that the key names."""
    for what, there, wanted in (
        ("cluster", header.cluster_digest.hex(), cluster_digest(name.cluster_id).hex()),
        ("chain", str(header.chain), str(name.chain)),
        ("sequence", header.sequence, name.sequence),
        ("being a checkpoint", header.kind is WalKind.CHECKPOINT, name.is_checkpoint),
    ):
        if there != wanted:
            raise CorruptObject(key, f"its header says of {what} {there} instead of {wanted}")


def read_header(data: memoryview, position: int) -> WalHeader:
    """Return the header at the position. Raises ``ValueError`` with the first damage."""
    head = data[position : position + HEADER_SIZE]
    if len(head) < HEADER_SIZE:
        raise ValueError(f"it has {len(head)} bytes at {position}, less than a header takes")
    magic, version, kind, section_count, cluster, chain_id, broker_id, *rest = _FIELDS.unpack_from(
        head
    )
    if magic != MAGIC:
        raise ValueError(f"its header starts with {magic!r} instead of {MAGIC!r}")
    if version != VERSION:
        raise ValueError(f"its version is {version}; {VERSION} is known")
    (crc,) = _CRC.unpack_from(head, _FIELDS.size)
    if crc32c(head[: _FIELDS.size]) != crc:
        raise ValueError("the CRC of its header does not match")
    table_crc, sequence, committed_end, size, footer_position, created_ms, previous_crc, zero = rest
    if kind not in WalKind._value2member_map_:
        raise ValueError(f"its kind is {kind}; 1 to 3 are known")
    if zero or broker_id < 0 or not 0 <= committed_end <= sequence:
        raise ValueError(
            f"its header has broker {broker_id}, sequence {sequence} and committed end"
            f" {committed_end}, which no writer gives it"
        )
    if section_count > SECTION_COUNT_MAX or size > OBJECT_SIZE_BYTES_MAX:
        raise ValueError(f"it has {section_count} sections and {size} bytes, more than allowed")
    if footer_position < HEADER_SIZE or footer_position % ALIGNMENT:
        raise ValueError(f"its footer is at {footer_position}")
    return WalHeader(
        WalKind(kind),
        section_count,
        cluster,
        ChainName(broker_id, UUID(bytes=chain_id)),
        table_crc,
        sequence,
        committed_end,
        size,
        footer_position,
        created_ms,
        previous_crc,
        crc,
    )


def pack_trailer(footer_position: int) -> bytes:
    """Return an object's last 16 bytes."""
    fixed = _TRAILER.pack(footer_position, END_MAGIC)
    return fixed + _CRC.pack(crc32c(fixed))


def read_trailer(end: memoryview) -> int:
    """Return the footer's position from an object's last bytes. Raises ``ValueError``."""
    if len(end) < TRAILER_SIZE:
        raise ValueError(f"it has {len(end)} bytes, less than a trailer takes")
    trailer = end[-TRAILER_SIZE:]
    footer_position, magic = _TRAILER.unpack_from(trailer)
    if (
        magic != END_MAGIC
        or crc32c(trailer[: _TRAILER.size]) != _CRC.unpack_from(trailer, _TRAILER.size)[0]
    ):
        raise ValueError("it does not end with a trailer: it is cut or damaged")
    return int(footer_position)
