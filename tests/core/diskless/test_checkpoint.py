"""What a checkpoint must have to be one."""

from __future__ import annotations

import pytest
from tidelog_core.diskless.wal.build import Snapshot, build_checkpoint
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.rows import MarkRow
from tidelog_core.errors import CorruptObject

from tests.support.chain_model.checkpoint import (
    CheckpointedPartition,
    pack_checkpoint,
    parse_checkpoint,
)
from tests.support.chain_model.stored_checkpoints import CheckpointMark
from tests.support.wal_objects import TOPIC_ID, data_object, name

P0, P4 = PartitionName(TOPIC_ID, 0), PartitionName(TOPIC_ID, 4)


def test_it_names_log_starts_and_ends() -> None:
    partitions = {
        P4: CheckpointedPartition(7, 5, 9, b"four", ()),
        P0: CheckpointedPartition(0, 0, 3, b"zero", ()),
    }
    built = pack_checkpoint(name(6, committed_end=6), partitions)
    read = parse_checkpoint(built.data, key="x")
    assert read.partitions == partitions
    assert read.marks() == {P0: CheckpointMark(0, 3), P4: CheckpointMark(7, 9)}


def test_it_is_of_what_is_committed() -> None:
    with pytest.raises(ValueError, match="6 is not where the chain is committed to"):
        pack_checkpoint(name(6, committed_end=5), {})


def test_a_data_object_is_none() -> None:
    with pytest.raises(CorruptObject, match="is a data object"):
        parse_checkpoint(data_object().data, key="x")


@pytest.mark.parametrize("log_start", [None, -1, 4])
def test_every_partition_has_a_log_start_up_to_its_end(log_start: int | None) -> None:
    marks = [] if log_start is None else [MarkRow(TOPIC_ID.bytes, 0, 0, log_start, 0)]
    built = build_checkpoint(
        name(6, committed_end=6),
        untiered=[],
        snapshots=[Snapshot(TOPIC_ID, 0, 3, b"zero")],
        epochs=[],
        marks=marks,
    )
    with pytest.raises(CorruptObject, match="partition 0 has no log start below its end"):
        parse_checkpoint(built.data, key="x")
