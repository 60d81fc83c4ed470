"""A leader's log in the simulation, and the tier that it is copied to."""

from __future__ import annotations

from typing import Any

from tidelog_core.diskless.epoch_chains import PartitionName
from tidelog_core.diskless.noted_ranges import NotedRange
from tidelog_core.diskless.replay import header_of, marker_of
from tidelog_core.diskless.takeover import StoredChains
from tidelog_core.diskless.wal_build import batch_rows_of
from tidelog_core.diskless.wal_rows import BatchRow
from tidelog_core.log.producer_snapshot import decode_snapshot, encode_snapshot
from tidelog_core.log.producer_state import ProducerState
from tidelog_core.log.values import AppendOrigin
from tidelog_core.records.header import BatchHeader, pack_batch, patch
from tidelog_core.replication.owed_acks import OwedAcks

from tests.simulation.diskless.checker import Entry, entry_of

EXPIRATION_MS = 10**9


def make_batch(producer_id: int, sequence: int, *, is_transactional: bool) -> bytes:
    """Return a batch of one record, as a client sends it."""
    attributes = 0x10 if is_transactional else 0
    header = BatchHeader(0, 0, -1, 2, 0, attributes, 0, 1, 1, producer_id, 0, sequence, 1)
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
        return decode_snapshot(encode_snapshot(self.state), expiration_ms=EXPIRATION_MS)


class LeaderLog:
    """The records of a partition from where its leader began, or began to read, on."""

    def __init__(
        self, partition: PartitionName, stored: StoredChains, state: ProducerState
    ) -> None:
        self.partition = partition
        self.stored = stored
        self.leader_epoch = stored.chains[-1].leader_epoch
        self.start = self.high_watermark = state.end_offset
        self.state = state
        self.rows: list[BatchRow] = []
        self.data: list[bytes] = []
        self.acks: OwedAcks[tuple[Any, int, Entry]] = OwedAcks()
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
    (row,) = batch_rows_of(data, 0, is_foreign=True)
    return row
