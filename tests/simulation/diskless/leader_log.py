"""A leader's log in the simulation, and the tier that it is copied to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tidelog_core.diskless.chain.noted_ranges import NotedRange
from tidelog_core.diskless.takeover.takeover import StoredChains
from tidelog_core.diskless.wal.committed_slices import CommittedSlice, header_of, marker_of
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.rows import BatchRow, RowTable, WalSection
from tidelog_core.diskless.wal.scan import scan_slice
from tidelog_core.log.producers.producer_snapshot import decode_snapshot, encode_snapshot
from tidelog_core.log.producers.producer_state import ProducerState
from tidelog_core.log.values import AppendOrigin
from tidelog_core.records.header import BatchHeader, pack_batch, patch
from tidelog_core.replication.leader.pending_acks import PendingAcks

from tests.simulation.diskless.checker import Entry, entry_of
from tests.support.chain_model.checkpoint import CheckpointedPartition

EXPIRATION_MS = 10**9


class Recovered(NamedTuple):
    """A partition as an heir goes on with it."""

    state: ProducerState
    start: int  # offset of the first row
    rows: list[BatchRow]
    slices: tuple[CommittedSlice, ...]  # that have the rows
    log_start_offset: int


def make_batch(producer_id: int, epoch: int, sequence: int, *, is_transactional: bool) -> bytes:
    """Return a batch of one record, as a client sends it."""
    attributes = 0x10 if is_transactional else 0
    header = BatchHeader(0, 0, -1, 2, 0, attributes, 0, 1, 1, producer_id, epoch, sequence, 1)
    return pack_batch(header, b"\0\0\0\0\0\0\0")


class SimTier:
    """The tiered prefix of a partition."""

    def __init__(self) -> None:
        self.state = ProducerState(expiration_ms=EXPIRATION_MS)

    @property
    def end(self) -> int:
        return self.state.end_offset

    def copy_state(self) -> ProducerState:
        """Return the producers as they are at the end, by way of their snapshot."""
        return copied(self.state)


def copied(state: ProducerState) -> ProducerState:
    """Return a state of its own, by way of a snapshot."""
    return decode_snapshot(encode_snapshot(state), expiration_ms=EXPIRATION_MS)


def apply_committed(state: ProducerState, rows: Sequence[BatchRow]) -> None:
    """Let the producers' state go on with committed batches of one record."""
    for row in rows:
        draft = state.stage(AppendOrigin.REPLICATION, now_ms=0)
        draft.add(header_of(row, 0), row.base_offset, marker_of(row))
        state.commit(draft, end_offset=row.base_offset + 1)
    state.advance_high_watermark(state.end_offset)


class LeaderLog:
    """The records of a partition above the tier, or above the log start."""

    def __init__(
        self, partition: PartitionName, stored: StoredChains, recovered: Recovered
    ) -> None:
        state = recovered.state
        self.partition = partition
        self.stored = stored
        self.leader_epoch = stored.chains[-1].leader_epoch
        self.start, self.high_watermark = recovered.start, state.end_offset
        self.state = state
        self.committed = copied(state)  # the producers as of the high watermark
        self.rows = list(recovered.rows)
        self.data = [b""] * len(self.rows)  # of those that were appended here, but references
        self.slices = list(recovered.slices)
        self.log_start = max(stored.log_start_offset, recovered.log_start_offset)
        self.acks: PendingAcks[tuple[Any, int, Entry]] = PendingAcks()
        self.is_leaving = False

    @property
    def end(self) -> int:
        return self.start + len(self.rows)

    def append(self, data: bytes, row: BatchRow, origin: AppendOrigin) -> NotedRange:
        """Append a batch of one record. Raises what the producers' state raises."""
        base = self.end
        row = row._replace(base_offset=base)
        draft = self.state.stage(origin, now_ms=0)
        draft.add(header_of(row, self.leader_epoch), base, marker_of(row))
        self.state.commit(draft, end_offset=base + 1)
        if data:
            patched = bytearray(data)
            patch(patched, 0, base_offset=base, leader_epoch=self.leader_epoch)
            data = bytes(patched)
        self.rows.append(row)
        self.data.append(data)
        return NotedRange(self.partition, self.leader_epoch, base, base + 1, len(data))

    def commit(self, end: int, slices: Iterable[CommittedSlice]) -> None:
        """Move the high watermark; the slices were committed by that."""
        apply_committed(
            self.committed, self.rows[self.high_watermark - self.start : end - self.start]
        )
        self.slices += slices
        self.high_watermark = end
        self.state.advance_high_watermark(end)

    def checkpointed(self, tier_end: int) -> CheckpointedPartition:
        """Return what a checkpoint has of it."""
        above = max(tier_end, self.log_start)
        self.slices = [one for one in self.slices if one.end_offset > above]
        return CheckpointedPartition(
            self.log_start,
            tier_end,
            self.committed.end_offset,
            encode_snapshot(self.committed),
            tuple(self.slices),
        )

    def bytes_of(self, base: int, end: int) -> bytes:
        """Return the batches in ``[base, end)``, which are not references."""
        return b"".join(self.data[base - self.start : end - self.start])

    def own_end(self, end: int) -> int:
        """Return the end of the batches from there on that are not references."""
        while end < self.end and self.data[end - self.start]:
            end += 1
        return end

    def entries(self, base: int, end: int) -> list[Entry]:
        """Return the entries in ``[base, end)``."""
        return [entry_of(row) for row in self.rows[base - self.start : end - self.start]]

    @property
    def stable_end(self) -> int:
        """The last stable offset."""
        first = self.state.first_unstable_offset
        return self.high_watermark if first is None else min(first, self.high_watermark)


def row_of(data: bytes) -> BatchRow:
    """Return the row of a client's batch."""
    scan = scan_slice(data, 0, is_foreign=True)
    (row,) = RowTable(BatchRow, WalSection.BATCHES, memoryview(scan.rows))
    return row
