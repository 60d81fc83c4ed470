"""The arguments and results of log operations. Offset ranges are ``[start, end)``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from tidelog_core.errors import ErrorCode, StorageError, TidelogError
from tidelog_core.model import FileSlice


class AppendOrigin(Enum):
    """The source of the batches, which decides the checks."""

    CLIENT = "client"  # everything is checked
    COORDINATOR = "coordinator"  # transaction markers: producer epochs, but no sequences
    REPLICATION = "replication"  # the leader has checked them


class CorruptLog(StorageError):
    """Bytes that were already flushed are damaged or gone; nothing was changed.

    The partition stays offline on this node. Its directory can be removed once
    another replica, or the object store, is known to hold the records.
    """


class UnexpectedAppendOffset(TidelogError):
    """A follower got batches that are below the end of its log, or out of order."""

    code = ErrorCode.unknown_server_error


class TransactionCoordinatorFenced(TidelogError):
    """A transaction marker comes from a coordinator that has since been replaced."""

    code = ErrorCode.transaction_coordinator_fenced


class AppendInfo(NamedTuple):
    """The offsets of the appended batches, or of the earlier ones if they are duplicates."""

    base_offset: int
    last_offset: int  # inclusive
    log_append_time_ms: int  # -1 unless the topic stamps records on arrival
    log_start_offset: int
    size_bytes: int  # bytes written, 0 for a duplicate
    is_duplicate: bool
    batch_count: int  # batches written


class AppendLimit(NamedTuple):
    """The limits of an append of a leader's batches: it ends with the batch that reaches one."""

    batch_count: int
    size_bytes: int


# Compiled code compares integers below 2**62 without calling the interpreter.
WITHOUT_LIMIT = AppendLimit(1 << 60, 1 << 60)


class AbortedTransaction(NamedTuple):
    """The offsets that an aborted transaction touched."""

    producer_id: int
    first_offset: int
    last_offset: int  # of the abort marker, inclusive
    last_stable_offset: int  # when the marker was written


class LogRead(NamedTuple):
    """Bytes to send and the offsets that go with them."""

    slice: FileSlice | None  # None: nothing to read
    start_offset: int  # base offset of the first batch, or the requested offset
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    log_end_offset: int
    aborted_transactions: tuple[AbortedTransaction, ...] = ()
    # Behind the last whole batch of the slice. If the slice is cut at its size limit it may be the
    # end of an earlier batch, by up to index.interval.bytes. 0 without a slice.
    end_offset: int = 0


@dataclass(frozen=True, slots=True)
class SealedSegment:
    """A segment that will never be appended to again, with all its files on disk."""

    base_offset: int
    end_offset: int  # exclusive: the next segment's base offset
    size_bytes: int
    max_timestamp_ms: int  # -1 if no record has a timestamp
    path: Path
    offset_index: Path
    time_index: Path
    txn_index: Path  # is not there if no transaction was aborted in the segment
    producer_snapshot: Path  # the producers' state at end_offset
    leader_epochs: tuple[tuple[int, int], ...]  # (epoch, start offset) within the segment
    last_modified_ms: int
