"""The options of batches that are built from columns. It does not load the compiler."""

from __future__ import annotations

from dataclasses import dataclass

from tidelog_core.records.batch import CompressionType


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """The target topic and the format of the record batches."""

    topic: str | None = None  # overrides the rows' own
    include_headers: bool = True  # if the rows have a column of headers
    compression: CompressionType = CompressionType.NONE
    compression_level: int | None = None
    batch_size_bytes: int = 512 * 1024  # before compression; a larger record gets its own batch
    record_size_bytes_max: int = 1024 * 1024  # with the overhead of its batch
