"""Logs and batches for the tests of this package."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from struct import pack_into
from typing import Any

from crc32c import crc32c
from tidelog_core.config import TopicConfig
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.producers.producer_state import ProducerState
from tidelog_core.log.unfilled_range import Unfilled
from tidelog_core.log.values import AppendInfo, AppendOrigin
from tidelog_core.model import TopicPartition
from tidelog_core.records.batch import BatchHeader, iter_headers, patch
from tidelog_core.records.control import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_marker,
)
from tidelog_core.records.header import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    HEADER_SIZE,
    LOG_OVERHEAD,
)

from tests.support.batches import batch
from tests.support.clock import NOW_MS, Clock

PARTITION = TopicPartition("topic", 0)
BATCH_LENGTH_POSITION = 8
RECORD_COUNT_POSITION = 57


def open_log(directory: Path, clock: Clock | None = None, **options: Any) -> LocalLog:
    """Open a log; options are the topic's settings, or those of ``LocalLog.open``."""
    names = ("log_start_offset", "is_clean", "producer_id_expiration_ms", "open_files")
    how = {name: options.pop(name) for name in names if name in options}
    config = TopicConfig(**options)
    return LocalLog.open(directory, PARTITION, config=config, clock_ms=clock or Clock(), **how)


def start_unfilled(
    log: LocalLog,
    end_offset: int,
    *,
    leader_epochs: Sequence[tuple[int, int]],
    producers: ProducerState,
) -> Unfilled:
    """Have the log go on at an offset above its end."""
    mark = log.mark_unfilled(end_offset)
    try:
        mark.run()
        return log.start_unfilled(mark, leader_epochs=leader_epochs, producers=producers)
    finally:
        mark.close()


def fill(log: LocalLog, side: LocalLog) -> None:
    """Put the segments of a log that has what is missing in front of those of the log."""
    pending = log.begin_fill(side)
    while not pending.is_done:
        pending.run()
        log.go_on_filling(pending)


def marker(
    *, is_commit: bool, producer_id: int, epoch: int, coordinator_epoch: int = 0
) -> bytearray:
    """Return the batch that ends a transaction."""
    kind = ControlType.COMMIT if is_commit else ControlType.ABORT
    return bytearray(
        build_end_transaction_marker(
            EndTransactionMarker(kind, coordinator_epoch),
            producer_id=producer_id,
            producer_epoch=epoch,
            timestamp_ms=NOW_MS,
        )
    )


def without_records(content: bytearray) -> bytearray:
    """Return the batch's header without records, as compaction keeps it."""
    header = content[:HEADER_SIZE]
    pack_into(">i", header, BATCH_LENGTH_POSITION, HEADER_SIZE - LOG_OVERHEAD)
    pack_into(">i", header, RECORD_COUNT_POSITION, 0)
    pack_into(">I", header, CRC_POSITION, crc32c(header[ATTRIBUTES_POSITION:]))
    return header


def placed(content: bytearray, base_offset: int, leader_epoch: int = 0) -> bytearray:
    """Return a batch as a leader has it: with its offset and epoch."""
    patch(content, 0, base_offset=base_offset, leader_epoch=leader_epoch)
    return content


def append(log: LocalLog, content: bytearray, *, epoch: int = 0) -> AppendInfo:
    """Append as the only replica: the high watermark follows."""
    info = log.append_as_leader(content, leader_epoch=epoch)
    log.advance_high_watermark(log.log_end_offset)
    return info


def end_transaction(log: LocalLog, **options: Any) -> AppendInfo:
    """Append a marker, as a coordinator does."""
    info = log.append_as_leader(
        marker(**options), leader_epoch=max(0, log.leader_epoch), origin=AppendOrigin.COORDINATOR
    )
    log.advance_high_watermark(log.log_end_offset)
    return info


def send(
    log: LocalLog, sequence: int, *, count: int = 1, epoch: int = 0, **more: Any
) -> AppendInfo:
    """Append a batch of an idempotent producer: number 5, unless ``more`` says which."""
    more = {"producer_id": 5, **more}
    return append(log, batch(count, producer_epoch=epoch, base_sequence=sequence, **more))


def transact(
    log: LocalLog, producer_id: int, sequence: int = 0, *, epoch: int = 0, count: int = 1
) -> AppendInfo:
    """Append a batch of a producer's transaction."""
    return send(
        log, sequence, producer_id=producer_id, epoch=epoch, count=count, is_transactional=True
    )


def snapshot_offsets(directory: Path) -> list[int]:
    """Return the offsets that have a producer snapshot, ascending."""
    return sorted(int(path.stem) for path in directory.glob("*.snapshot"))


def aborted_in(log: LocalLog, start_offset: int, up_to: int | None = None) -> list[tuple[int, int]]:
    """Return producer and first offset of each aborted transaction that one read names."""
    up_to = log.last_stable_offset if up_to is None else up_to
    read = log.read(start_offset, max_bytes=2**30, up_to=up_to, include_aborted=True)
    return [(t.producer_id, t.first_offset) for t in read.aborted_transactions]


def read_bytes(log: LocalLog, offset: int, *, up_to: int | None = None, **options: Any) -> bytes:
    """Return the bytes that one read gives."""
    up_to = log.log_end_offset if up_to is None else up_to
    found = log.read(offset, max_bytes=options.pop("max_bytes", 2**30), up_to=up_to, **options)
    if found.slice is None:
        return b""
    part = found.slice
    return os.pread(part.file.fileno(), part.size_bytes, part.position)


def content_of(log: LocalLog) -> bytes:
    """Return all the local log's bytes, read from start to end as a consumer would."""
    content = b""
    offset = log.local_log_start_offset
    while chunk := read_bytes(log, offset):
        content += chunk
        offset = headers_of(chunk)[-1].next_offset
    return content


def headers_of(content: bytes) -> list[BatchHeader]:
    """Return the headers of whole batches."""
    return [header for _, header in iter_headers(content)]


def copy_of(directory: Path, target: Path) -> Path:
    """Copy a partition's directory as a crash of the process would leave it."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(directory, target)
    return target
