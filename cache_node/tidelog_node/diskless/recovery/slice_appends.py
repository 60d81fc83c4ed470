"""Appends slices that were read from chains to logs, many in one append to save time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.slice_bytes import placed_batches
from tidelog_core.errors import StorageError
from tidelog_core.records.header import Buffer, iter_headers
from tidelog_core.turns import Turn

from tidelog_node.diskless.recovery.chain_slices import StoredSlice
from tidelog_node.diskless.recovery.log_tail import RefillTarget

# Of one append: a megabyte of the smallest batches takes the loop some 10 ms.
APPENDED_BYTES_MAX = 1 << 20


def append_slice(replica: RefillTarget, data: bytearray) -> None:
    """Append the batches that have records at or above the log's end.

    Raises ``StorageError`` if the log ends before they begin.
    """
    log = replica.log
    found = _first_batch(data, log.log_end_offset)
    if found is None:
        return  # The log had these.
    position, base_offset = found
    if base_offset > log.log_end_offset:  # It was truncated or replaced since.
        raise StorageError(f"{replica.partition} lacks the offsets before {base_offset}")
    is_empty = log.log_end_offset == log.local_log_start_offset
    if base_offset < log.log_end_offset and is_empty:
        # The log start is within a batch: the log has to begin with all of it.
        log.truncate_fully_and_start_at(base_offset, leader_epochs=log.leader_epochs)
    replica.append_as_follower(memoryview(data)[position:])


def placed(data: Buffer, stored: StoredSlice, *, key: str) -> bytearray:
    """Return a gateway's slice with the offsets and the leader epoch of its reference."""
    return placed_batches(
        data,
        stored.base_offset,
        key=key,
        position=stored.position,
        leader_epoch=stored.leader_epoch,
    )


class GatheredSlices:
    """Slices that were read and are not appended yet: many go into one append."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.turn = Turn()  # What was read ahead does not suspend the task that gathers.
        self._parts: dict[PartitionName, list[bytearray]] = {}

    def add(self, name: PartitionName, data: bytearray) -> None:
        """Add the partition's next batches."""
        self._parts.setdefault(name, []).append(data)
        self.size_bytes += len(data)

    def take(self) -> Iterator[tuple[PartitionName, bytearray]]:
        """Yield all partitions with their batches, some at a time, and forget them."""
        parts, self._parts, self.size_bytes = self._parts, {}, 0
        for name, some in parts.items():
            for run in _runs(some):
                yield name, run


def _runs(slices: Sequence[bytearray]) -> Iterator[bytearray]:
    """Yield whole batches of ``APPENDED_BYTES_MAX`` at most, or one larger batch."""
    run: list[bytearray] = []
    size_bytes = 0
    for piece in (piece for data in slices for piece in _pieces(data)):
        if run and size_bytes + len(piece) > APPENDED_BYTES_MAX:
            yield run[0] if len(run) == 1 else bytearray().join(run)
            run, size_bytes = [], 0
        run.append(piece)
        size_bytes += len(piece)
    if run:
        yield run[0] if len(run) == 1 else bytearray().join(run)


def _pieces(data: bytearray) -> Iterator[bytearray]:
    """Yield the batches of a slice in pieces that are no larger than they have to be."""
    if len(data) <= APPENDED_BYTES_MAX:
        yield data
        return
    start = end = 0
    for position, _ in iter_headers(data):
        # The batch before ends where this one begins.
        if position - start > APPENDED_BYTES_MAX and end > start:
            yield data[start:end]
            start = end
        end = position
    if end > start and len(data) - start > APPENDED_BYTES_MAX:
        yield data[start:end]
        start = end
    yield data[start:]


def _first_batch(data: bytearray, offset: int) -> tuple[int, int] | None:
    """Return position and base offset of the first batch with records at or above the offset."""
    for position, header in iter_headers(data):
        if header.base_offset + header.last_offset_delta >= offset:
            return position, header.base_offset
    return None
