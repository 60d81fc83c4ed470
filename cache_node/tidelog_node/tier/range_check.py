"""Whether what a store gave for a range is what was put there.

Records go from the cache to clients without being looked at again, and many clients do
not check them either: what is wrong must not get into the cache.
"""

from __future__ import annotations

from tidelog_core.errors import CorruptObject, CorruptRecordBatch, UnsupportedMagic
from tidelog_core.records.batch import check_crc, iter_headers
from tidelog_core.tier.index_file import IndexFile
from tidelog_core.tier.keys import LOG_SUFFIX

from tidelog_node.tier.protocol import ByteRange


def check_range_bytes(wanted: ByteRange, data: bytes) -> None:
    """Check lengths, CRCs and order of whole record batches, or a whole index object.

    The order is looked at because no CRC covers a batch's base offset.
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
    next_offset = 0
    try:
        for position, header in iter_headers(data):
            check_crc(data, position, header)
            if header.base_offset < next_offset:
                raise CorruptRecordBatch(
                    f"batch at {position} begins with offset {header.base_offset}, "
                    f"after one that ends before {next_offset}"
                )
            next_offset = header.next_offset
    except (CorruptRecordBatch, UnsupportedMagic) as error:
        raise CorruptObject(wanted.key, f"from byte {wanted.start} on: {error}") from error
