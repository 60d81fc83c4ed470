"""Objects of chains with a little of everything."""

from __future__ import annotations

from uuid import UUID

from tidelog_core.diskless.wal.build import (
    BuiltObject,
    ForeignSlice,
    ObjectName,
    Snapshot,
    WalSlice,
    build_checkpoint,
    build_seal,
)
from tidelog_core.diskless.wal.footer import parse_object
from tidelog_core.diskless.wal.rows import EpochRow, MarkRow
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.records.batch import Record, build_batch
from tidelog_core.records.control import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_marker,
)

from tests.support.data_objects import build_data_object

CLUSTER = "cluster-1"
TOPIC_ID = UUID("5f6dc6a4-35d9-4f1c-9d6c-1f0a3d3a9d11")
CHAIN = ChainName(3, UUID("0a3b7b4e-6f8e-4a53-93f1-0d8a8d2f7c22"))
GATEWAY = ChainName(4, UUID("1b3b7b4e-6f8e-4a53-93f1-0d8a8d2f7c33"))
HEIR = ChainName(5, UUID("2c3b7b4e-6f8e-4a53-93f1-0d8a8d2f7c44"))
CREATED_MS = 1_700_000_000_000


def name(
    sequence: int, *, committed_end: int = 0, previous_crc: int = 0, chain: ChainName = CHAIN
) -> ObjectName:
    """Return the place of an object in a chain."""
    return ObjectName(CLUSTER, chain, sequence, committed_end, previous_crc, CREATED_MS)


def batch(base_offset: int, count: int = 2, **kwargs: object) -> bytes:
    """Return a batch with these offsets."""
    records = [
        Record(base_offset + n, CREATED_MS + n, b"k%d" % n, b"value %d" % (base_offset + n), ())
        for n in range(count)
    ]
    return build_batch(records, base_offset=base_offset, leader_epoch=7, **kwargs)  # type: ignore[arg-type]


def foreign_slice(sequence: int = 2, base_offset: int = 20) -> ForeignSlice:
    """Return a slice of a gateway's object with the offsets that a leader gave it."""
    data = batch(0, 3, producer_id=9, producer_epoch=0, base_sequence=5) + batch(0, 1)
    built = build_data_object(
        name(sequence, chain=GATEWAY), [WalSlice(TOPIC_ID, 1, -1, data, is_foreign=True)]
    )
    footer = parse_object(built.data, key="gateway")
    return ForeignSlice(GATEWAY, sequence, 7, base_offset, footer.slices[0], list(footer.batches))


def data_object(sequence: int = 11, previous_crc: int = 77) -> BuiltObject:
    """Return an object with every section that data has."""
    marker = build_end_transaction_marker(
        EndTransactionMarker(ControlType.ABORT, 6),
        producer_id=9,
        producer_epoch=1,
        timestamp_ms=CREATED_MS,
        base_offset=12,
        leader_epoch=7,
    )
    transactional = batch(
        10, 2, producer_id=9, producer_epoch=1, base_sequence=3, is_transactional=True
    )
    return build_data_object(
        name(sequence, committed_end=sequence - 2, previous_crc=previous_crc),
        [
            WalSlice(TOPIC_ID, 0, 7, transactional + marker),
            WalSlice(TOPIC_ID, 4, 8, batch(100, 1)),
            WalSlice(TOPIC_ID, 2, -1, batch(0, 3) + batch(0, 1), is_foreign=True),
        ],
        references=[foreign_slice()],
        epochs=[EpochRow(TOPIC_ID.bytes, 0, 7, 10, HEIR.chain_id.bytes, HEIR.broker_id, 0, 41)],
        marks=[MarkRow(TOPIC_ID.bytes, 0, 0, 3, 8)],
    )


def seal(sequence: int = 12, previous_crc: int = 78) -> BuiltObject:
    """Return the seal of a chain."""
    return build_seal(name(sequence, committed_end=sequence, previous_crc=previous_crc), HEIR)


def checkpoint() -> BuiltObject:
    """Return a checkpoint with two snapshots."""
    footer = parse_object(data_object().data, key="data")
    return build_checkpoint(
        name(12, committed_end=12, previous_crc=78),
        untiered=footer.references,
        snapshots=[Snapshot(TOPIC_ID, 0, 13, b"producers"), Snapshot(TOPIC_ID, 4, 101, b"more")],
        epochs=footer.epochs,
        marks=footer.marks,
    )
