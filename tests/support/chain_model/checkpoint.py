"""Checkpoints that have a whole partition: what heirs of the simulation continue from.

A checkpoint has the partitions of a chain as they are in all objects below a sequence. It is never
wrong, only old: committed records stay committed, also if the chain was sealed since. Nodes write
indexes instead (``tidelog_core.diskless.chain.index``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

from tidelog_core.diskless.wal.build import BuiltObject, ObjectName, Snapshot, build_checkpoint
from tidelog_core.diskless.wal.committed_slices import CommittedSlice, referenced_slice
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import parse_object
from tidelog_core.diskless.wal.header import WalKind
from tidelog_core.diskless.wal.rows import EpochRow, MarkRow, ReferenceRow
from tidelog_core.errors import CorruptObject
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.model import NO_TIMESTAMP
from tidelog_core.records.header import Buffer

from tests.support.chain_model.stored_checkpoints import CheckpointMark


class CheckpointedPartition(NamedTuple):
    """A partition at the end of its committed records."""

    log_start_offset: int
    tiered_end_offset: int
    end_offset: int
    producers: bytes  # at the end, as ``log.producer_snapshot`` encodes them
    # Above the end of the tier and the log start, whichever chain has them; without batches.
    slices: tuple[CommittedSlice, ...]


class Checkpoint(NamedTuple):
    """A checkpoint that was read."""

    chain: ChainName
    sequence: int  # it has all objects with lower ones
    partitions: Mapping[PartitionName, CheckpointedPartition]

    def marks(self) -> dict[PartitionName, CheckpointMark]:
        """Return the marks for ``StoredCheckpoints.add``."""
        return {
            name: CheckpointMark(one.log_start_offset, one.end_offset)
            for name, one in self.partitions.items()
        }


def pack_checkpoint(
    name: ObjectName,
    partitions: Mapping[PartitionName, CheckpointedPartition],
    *,
    epochs: Iterable[EpochRow] = (),
) -> BuiltObject:
    """Return the checkpoint of the partitions that are in the chain.

    Everything below ``name.sequence`` must be committed. Raises ``ValueError`` if there are more
    slices than a footer has room for: then there is no checkpoint until the tier has caught up.
    """
    if name.committed_end != name.sequence:
        raise ValueError(f"{name.sequence} is not where the chain is committed to")
    items = sorted(partitions.items())
    return build_checkpoint(
        name,
        untiered=[_row_of(one) for _, partition in items for one in partition.slices],
        snapshots=[Snapshot(*key, one.end_offset, one.producers) for key, one in items],
        epochs=epochs,
        marks=[
            MarkRow(
                key.topic_id.bytes, key.partition, 0, one.log_start_offset, one.tiered_end_offset
            )
            for key, one in items
        ],
    )


def parse_checkpoint(data: Buffer, *, key: str) -> Checkpoint:
    """Return the checkpoint in the bytes of its object. Raises ``CorruptObject`` with ``key``."""
    footer = parse_object(data, key=key)
    header = footer.header
    if header.kind is not WalKind.CHECKPOINT:
        raise CorruptObject(key, f"it is a {header.kind.name.lower()} object and no checkpoint")
    slices: dict[PartitionName, list[CommittedSlice]] = {}
    for row in footer.references:
        name = _name(row.topic_id, row.partition)
        one = referenced_slice(row, name, header.created_ms, ())
        slices.setdefault(name, []).append(one)
    marks = {_name(row.topic_id, row.partition): row for row in footer.marks}
    view = memoryview(data)
    partitions: dict[PartitionName, CheckpointedPartition] = {}
    for snapshot in footer.snapshots:
        name = _name(snapshot.topic_id, snapshot.partition)
        mark = marks.get(name)
        if mark is None or not 0 <= mark.log_start_offset <= snapshot.end_offset:
            raise CorruptObject(key, f"partition {name.partition} has no log start below its end")
        partitions[name] = CheckpointedPartition(
            mark.log_start_offset,
            mark.tiered_end_offset,
            snapshot.end_offset,
            bytes(view[snapshot.position : snapshot.position + snapshot.size_bytes]),
            tuple(slices.get(name, ())),
        )
    return Checkpoint(header.chain, header.sequence, partitions)


def _name(topic_id: bytes, partition: int) -> PartitionName:
    return PartitionName(UUID(bytes=topic_id), partition)


def _row_of(one: CommittedSlice) -> ReferenceRow:
    return ReferenceRow(
        topic_id=one.partition.topic_id.bytes,
        chain_id=one.chain.chain_id.bytes,
        broker_id=one.chain.broker_id,
        partition=one.partition.partition,
        leader_epoch=one.leader_epoch,
        batch_count=0,
        sequence=one.sequence,
        base_offset=one.base_offset,
        end_offset=one.end_offset,
        max_timestamp_ms=NO_TIMESTAMP,
        position=one.position,
        size_bytes=one.size_bytes,
        crc32c=one.crc32c,
    )
