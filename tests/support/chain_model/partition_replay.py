"""A partition's end and producers from the footers of a chain, without the data.

An heir of the simulation begins with a snapshot (of the tier, or of a checkpoint) and applies the
committed slices and references of the epoch in order of sequence. Records that the tier has are
skipped. A gap is an error: the missing records were acknowledged.
"""

from __future__ import annotations

from tidelog_core.diskless.wal.committed_slices import CommittedSlice, header_of, marker_of
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.rows import BatchRow
from tidelog_core.errors import CorruptObject
from tidelog_core.log.producers.producer_state import ProducerState
from tidelog_core.log.values import AbortedTransaction, AppendOrigin


class PartitionReplay:
    """The state of a partition at the end of the applied slices."""

    def __init__(self, partition: PartitionName, leader_epoch: int, state: ProducerState) -> None:
        """``state`` are the producers at the end of the tier, of a checkpoint or of an epoch."""
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.state = state
        self.slices: list[CommittedSlice] = []  # that the state did not have, without batches
        self.aborted: list[AbortedTransaction] = []

    def begin_epoch(self, leader_epoch: int, first_offset: int) -> None:
        """Begin the next epoch; later slices of the previous one are not part of the log.

        Raises ``ValueError`` if the one before was not applied up to there.
        """
        if first_offset > self.end_offset:
            raise ValueError(
                f"epoch {leader_epoch} of {self.partition} begins at {first_offset}, the one"
                f" before was found up to {self.end_offset}"
            )
        self.leader_epoch = leader_epoch

    @property
    def end_offset(self) -> int:
        """The offset behind the last committed batch."""
        return self.state.end_offset

    def apply(self, one: CommittedSlice, *, key: str) -> None:
        """Apply the next slice, if it is one of this partition and epoch.

        Raises ``CorruptObject`` with the key of its object if offsets are missing before it.
        """
        if (one.partition, one.leader_epoch) != (self.partition, self.leader_epoch):
            return
        if one.end_offset <= self.end_offset:
            return
        if one.base_offset > self.end_offset:
            raise CorruptObject(
                key,
                f"offsets [{self.end_offset}, {one.base_offset}) of {self.partition} are missing"
                " before it",
            )
        for row in one.batches:
            if row.base_offset >= self.end_offset:
                self._apply_batch(row, one.created_ms)
        # Only where the bytes are: an hour of batches is more than memory has room for.
        self.slices.append(one._replace(batches=()))

    def _apply_batch(self, row: BatchRow, created_ms: int) -> None:
        end_offset = row.base_offset + row.last_offset_delta + 1
        # Clients choose the batch's timestamps: by those, a producer of old records would expire
        # at once, and its retry would be taken for something new.
        draft = self.state.stage(AppendOrigin.REPLICATION, now_ms=created_ms)
        if row.producer_id >= 0:
            draft.add(header_of(row, self.leader_epoch), row.base_offset, marker_of(row))
        self.aborted += self.state.commit(draft, end_offset=end_offset)
        self.state.advance_high_watermark(end_offset)
