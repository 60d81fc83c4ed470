"""Record batches of message format 2: the public names of this package.

``header`` has the layout of a batch, ``decode`` the layout of records.
"""

from __future__ import annotations

from tidelog_core.records.codecs import DECOMPRESSED_SIZE_BYTES_MAX, CompressionType
from tidelog_core.records.decode import (
    RECORD_SIZE_BYTES_MIN,
    decode_batch,
    decode_batch_as,
    decode_records,
)
from tidelog_core.records.encode import (
    build_batch,
    build_empty_batch,
    convert_compression,
    rebuild_batch,
)
from tidelog_core.records.header import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
    Buffer,
    WritableBuffer,
    check_crc,
    iter_headers,
    parse_header,
    patch,
    set_log_append_time,
    set_max_timestamp,
)
from tidelog_core.records.record import Headers, Record, record_size_bytes_max
from tidelog_core.records.validation import (
    validate_fields,
    validate_produced,
    validate_records,
    validate_timestamps,
)
from tidelog_core.records.walk import (
    InspectionBudget,
    InspectionBudgetExceeded,
    find_record,
)

__all__ = [
    "DECOMPRESSED_SIZE_BYTES_MAX",
    "HEADER_SIZE",
    "LOG_OVERHEAD",
    "MAGIC",
    "RECORD_SIZE_BYTES_MIN",
    "BatchHeader",
    "Buffer",
    "CompressionType",
    "Headers",
    "InspectionBudget",
    "InspectionBudgetExceeded",
    "Record",
    "WritableBuffer",
    "build_batch",
    "build_empty_batch",
    "check_crc",
    "convert_compression",
    "decode_batch",
    "decode_batch_as",
    "decode_records",
    "find_record",
    "iter_headers",
    "parse_header",
    "patch",
    "rebuild_batch",
    "record_size_bytes_max",
    "set_log_append_time",
    "set_max_timestamp",
    "validate_fields",
    "validate_produced",
    "validate_records",
    "validate_timestamps",
]
