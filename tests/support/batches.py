"""Record batches as clients send them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from tidelog_core.records.batch import Record, build_batch

from tests.support.clock import NOW_MS

NO_PRODUCER = (-1, -1, -1)  # id, epoch and sequence


def batch(
    count: int = 1,
    *,
    value_size_bytes: int = 10,
    timestamps: Sequence[int] | None = None,
    key: bytes | None = None,
    **fields: Any,
) -> bytearray:
    """Return a batch of random values, which a log may write its offsets into."""
    times = timestamps or [NOW_MS] * count
    records = [Record(0, each, key, os.urandom(value_size_bytes)) for each in times]
    return bytearray(build_batch(records, **fields))


def batch_of(
    *values: bytes | None,
    key: bytes | None = None,
    timestamp_ms: int | None = None,
    producer: tuple[int, int, int] = NO_PRODUCER,
    **fields: Any,
) -> bytes:
    """Return a batch of these values, a millisecond apart, the first one now or at that time."""
    first_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
    records = [Record(0, first_ms + index, key, value) for index, value in enumerate(values)]
    producer_id, producer_epoch, base_sequence = producer
    content = build_batch(
        records,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        **fields,
    )
    return bytes(content)
