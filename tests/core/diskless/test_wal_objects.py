"""Objects of chains: built, read back, refused when damaged."""

from __future__ import annotations

import random
import struct
from itertools import repeat
from uuid import UUID

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_core.diskless.wal.build import (
    BuiltObject,
    ObjectName,
    WalSlice,
    build_seal,
)
from tidelog_core.diskless.wal.footer import (
    FOOTER_SIZE_BYTES_MAX,
    SUFFIX_SIZE_BYTES,
    missing_footer_range,
    parse_footer,
    parse_object,
)
from tidelog_core.diskless.wal.header import (
    HEADER_SIZE,
    WalKind,
    check_key,
    parse_header,
)
from tidelog_core.diskless.wal.keys import WalKey
from tidelog_core.diskless.wal.rows import LAYOUTS, EpochRow, WalSection
from tidelog_core.errors import CorruptObject, CorruptRecordBatch
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.records.header import iter_headers

from tests.support.data_objects import build_data_object
from tests.support.wal_objects import (
    CHAIN,
    CLUSTER,
    CREATED_MS,
    GATEWAY,
    HEIR,
    TOPIC_ID,
    batch,
    checkpoint,
    data_object,
    foreign_slice,
    name,
    seal,
)

KINDS = {"data": data_object, "seal": seal, "checkpoint": checkpoint}


def test_no_object_is_built_whose_footer_no_reader_takes() -> None:
    row = EpochRow(TOPIC_ID.bytes, 0, 7, 10, HEIR.chain_id.bytes, HEIR.broker_id, 0, 41)
    count = FOOTER_SIZE_BYTES_MAX // LAYOUTS[WalSection.EPOCHS].struct.size
    with pytest.raises(ValueError, match="a footer of"):
        build_data_object(name(1), [], epochs=repeat(row, count))


def test_an_object_says_everything_about_its_slices() -> None:
    built = data_object()
    footer = parse_object(built.data, key="x")
    header = footer.header
    assert header == built.header
    assert (header.kind, header.chain, header.sequence) == (WalKind.DATA, CHAIN, 11)
    assert (header.committed_end, header.previous_crc, header.created_ms) == (9, 77, CREATED_MS)
    assert header.size_bytes == len(built.data)
    assert [
        (row.partition, row.leader_epoch, row.base_offset, row.end_offset) for row in footer.slices
    ] == [
        (0, 7, 10, 13),
        (4, 8, 100, 101),
        (2, -1, -1, 4),
    ]
    assert [row.is_foreign for row in footer.slices] == [False, False, True]
    assert {UUID(bytes=row.topic_id) for row in footer.slices} == {TOPIC_ID}
    for row in footer.slices:
        data = built.data[row.position : row.position + row.size_bytes]
        assert crc32c(data) == row.crc32c
        assert len(list(iter_headers(data))) == row.batch_count
    assert not footer.is_seal
    assert parse_header(built.data[:HEADER_SIZE], key="x") == header


def test_producers_and_transactions_can_be_told_from_the_batches() -> None:
    footer = parse_object(data_object().data, key="x")
    data, marker, *_ = footer.batches
    assert (data.base_offset, data.last_offset_delta, data.record_count) == (10, 1, 2)
    assert (data.producer_id, data.producer_epoch, data.base_sequence) == (9, 1, 3)
    assert (data.marker, data.coordinator_epoch) == (-1, -1)
    assert (data.base_timestamp_ms, data.max_timestamp_ms) == (CREATED_MS, CREATED_MS + 1)
    assert (marker.base_offset, marker.marker, marker.coordinator_epoch) == (12, 0, 6)
    assert marker.attributes & 0x30 == 0x30


def test_a_reference_names_a_gateways_slice_and_its_offsets() -> None:
    footer = parse_object(data_object().data, key="x")
    (reference,) = footer.references
    given_slice = foreign_slice()
    assert ChainName(reference.broker_id, UUID(bytes=reference.chain_id)) == GATEWAY
    assert (reference.sequence, reference.partition, reference.leader_epoch) == (2, 1, 7)
    assert (reference.base_offset, reference.end_offset) == (20, 24)
    assert reference.crc32c == given_slice.row.crc32c
    rows = list(footer.batches)[-reference.batch_count :]
    assert [(row.base_offset, row.producer_id, row.base_sequence) for row in rows] == [
        (20, 9, 5),
        (23, -1, -1),
    ]
    assert rows[0].position == given_slice.batches[0].position


def test_a_seal_says_who_sealed_and_when() -> None:
    built = seal()
    footer = parse_object(built.data, key="x")
    assert footer.is_seal
    assert footer.header.committed_end == footer.header.sequence == 12
    (row,) = footer.seals
    assert ChainName(row.heir_broker_id, UUID(bytes=row.heir_chain_id)) == HEIR
    assert row.sealed_ms == CREATED_MS
    assert len(built.data) < 400


def test_a_checkpoint_has_snapshots_and_names_untiered_slices() -> None:
    built = checkpoint()
    footer = parse_object(built.data, key="x")
    assert footer.header.kind is WalKind.CHECKPOINT
    contents = [
        built.data[row.position : row.position + row.size_bytes] for row in footer.snapshots
    ]
    assert contents == [b"producers", b"more"]
    assert [(row.partition, row.end_offset) for row in footer.snapshots] == [(0, 13), (4, 101)]
    assert [row.sequence for row in footer.references] == [2]
    assert footer.epochs[0].previous_sequence == 41
    assert (footer.marks[0].log_start_offset, footer.marks[0].tiered_end_offset) == (3, 8)


@pytest.mark.parametrize("kind", KINDS)
def test_every_flipped_byte_and_every_cut_is_noticed(kind: str) -> None:
    data = KINDS[kind]().data
    random.seed(7)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << random.randrange(8)
        with pytest.raises(CorruptObject, match=r"^object 'x\.wal' is corrupt: "):
            parse_object(damaged, key="x.wal")
    for size in range(len(data)):
        with pytest.raises(CorruptObject, match=r"x\.wal"):
            parse_object(data[:size], key="x.wal")
        with pytest.raises(CorruptObject, match=r"x\.wal"):
            parse_object(data[size + 1 :], key="x.wal")


def test_a_header_alone_is_checked() -> None:
    data = seal().data
    for position in range(HEADER_SIZE):
        damaged = bytearray(data[:HEADER_SIZE])
        damaged[position] ^= 0x40
        with pytest.raises(CorruptObject, match=r"x\.wal"):
            parse_header(damaged, key="x.wal")
        with pytest.raises(CorruptObject, match="less than a header takes"):
            parse_header(data[:position], key="x.wal")


def test_one_read_of_the_end_has_all_but_the_data() -> None:
    slices = [WalSlice(TOPIC_ID, n, 0, batch(0, 1, compression=0) * 1) for n in range(3)]
    slices.append(WalSlice(TOPIC_ID, 9, 0, big_batch(200_000)))
    built = build_data_object(name(0), slices)
    size = len(built.data)
    suffix = built.data[-SUFFIX_SIZE_BYTES:]
    assert missing_footer_range(suffix, object_size=size, key="x") is None
    assert parse_footer(suffix, object_size=size, key="x").header == built.header


def big_batch(size_bytes: int) -> bytes:
    from tidelog_core.records.batch import Record, build_batch

    return build_batch([Record(0, CREATED_MS, None, bytes(size_bytes), ())], base_offset=0)


def test_a_footer_longer_than_the_first_read_is_read_by_a_second() -> None:
    slices = [WalSlice(TOPIC_ID, n, 0, batch(0, 1)) for n in range(800)]
    built = build_data_object(name(0), slices)
    size = len(built.data)
    suffix = built.data[-SUFFIX_SIZE_BYTES:]
    missing = missing_footer_range(suffix, object_size=size, key="x")
    assert missing == (built.header.footer_position, size - SUFFIX_SIZE_BYTES)
    with pytest.raises(CorruptObject, match="its footer begins at"):
        parse_footer(suffix, object_size=size, key="x")
    whole = built.data[slice(*missing)] + suffix
    assert len(parse_footer(whole, object_size=size, key="x").slices) == 800
    with pytest.raises(CorruptObject, match="trailer"):
        missing_footer_range(suffix[:-1], object_size=size, key="x")


def test_numpy_reads_every_table_as_it_is() -> None:
    footer = parse_object(data_object().data, key="x")
    for table in (footer.slices, footer.batches, footer.references, footer.epochs, footer.marks):
        rows = np.frombuffer(table.buffer, np.dtype(table.layout.fields))
        assert rows.dtype.itemsize == table.layout.struct.size
        # numpy gives raw bytes as void scalars.
        assert [
            tuple(bytes(v) if isinstance(v, bytes) else v for v in row.tolist()) for row in rows
        ] == [tuple(row) for row in table]
    assert np.frombuffer(footer.slices.buffer, footer.slices.layout.fields)[
        "end_offset"
    ].tolist() == [13, 101, 4]


def test_the_layout_is_the_documented_one() -> None:
    """A reader of ``docs/format.md`` that knows nothing of our code finds the slices."""
    data = data_object().data
    assert data[:8] == b"TLWAL\0\0\0"
    assert struct.unpack_from("<HHI", data, 8) == (1, 1, 5)
    assert struct.unpack_from("<qqQQqI", data, 56) == (
        11, 9, len(data), struct.unpack_from("<Q", data, len(data) - 16)[0], CREATED_MS, 77,
    )  # fmt: skip
    assert crc32c(data[:108]) == struct.unpack_from("<I", data, 108)[0]
    footer = struct.unpack_from("<Q", data, len(data) - 16)[0]
    assert data[footer : footer + 112] == data[:112]
    kind, flags, position, size, row_size, crc = struct.unpack_from("<IIQQII", data, footer + 112)
    assert (kind, flags, size, row_size) == (1, 1, 3 * 72, 72)
    assert crc32c(data[position : position + size]) == crc
    assert struct.unpack_from("<16siiqq", data, position) == (TOPIC_ID.bytes, 0, 7, 10, 13)
    assert data[-8:-4] == b"TLWE"
    sizes = {kind.name: layout.struct.size for kind, layout in LAYOUTS.items()}
    assert sizes == {
        "SLICES": 72, "BATCHES": 64, "REFERENCES": 96, "EPOCHS": 64, "MARKS": 40, "SEAL": 32,
        "SNAPSHOTS": 48,
    }  # fmt: skip


def test_a_header_must_be_that_of_its_key() -> None:
    header = data_object().header
    right = WalKey(CLUSTER, CHAIN, 11, is_checkpoint=False)
    check_key(header, right, key="x")
    for wrong in (
        right._replace(cluster_id="cluster-2"),
        right._replace(chain=GATEWAY),
        right._replace(sequence=12),
        right._replace(is_checkpoint=True),
    ):
        with pytest.raises(CorruptObject, match="its header says of"):
            check_key(header, wrong, key="x")


def test_objects_with_the_same_header_are_the_same() -> None:
    one = build_data_object(name(3), [WalSlice(TOPIC_ID, 0, 1, batch(0))])
    again = build_data_object(name(3), [WalSlice(TOPIC_ID, 0, 1, batch(0))])
    other = build_data_object(
        name(3),
        [WalSlice(TOPIC_ID, 0, 1, batch(0, 2, producer_id=1, producer_epoch=0, base_sequence=0))],
    )
    assert one == again
    assert one.header != other.header


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(CorruptRecordBatch):
        build_data_object(name(0), [WalSlice(TOPIC_ID, 0, 1, batch(0)[:-1])])
    with pytest.raises(CorruptRecordBatch):
        build_data_object(name(0), [WalSlice(TOPIC_ID, 0, 1, batch(0) + batch(2)[:20])])
    with pytest.raises(ValueError, match="no batch"):
        build_data_object(name(0), [WalSlice(TOPIC_ID, 0, 1, b"")])


def patched(built: BuiltObject, section: WalSection, at: int, new: bytes) -> bytes:
    """Return the object with bytes of a section's first row changed and every CRC right again."""
    data = bytearray(built.data)
    footer, count = built.header.footer_position, built.header.section_count
    table_end = footer + HEADER_SIZE + 32 * count
    for entry in range(footer + HEADER_SIZE, table_end, 32):
        kind, _, position, size, _, _ = struct.unpack_from("<IIQQII", data, entry)
        if kind == section:
            data[position + at : position + at + len(new)] = new
            struct.pack_into("<I", data, entry + 28, crc32c(data[position : position + size]))
    struct.pack_into("<I", data, footer + 52, crc32c(data[footer + HEADER_SIZE : table_end]))
    struct.pack_into("<I", data, footer + 108, crc32c(data[footer : footer + 108]))
    data[:HEADER_SIZE] = data[footer : footer + HEADER_SIZE]
    struct.pack_into("<I", data, table_end, crc32c(data[footer:table_end]))
    return bytes(data)


@pytest.mark.parametrize(
    ("section", "at", "new", "problem"),
    [
        (WalSection.SLICES, 16, struct.pack("<i", -1), "partition -1"),
        (WalSection.SLICES, 32, struct.pack("<q", 10), "offsets"),
        (WalSection.SLICES, 24, struct.pack("<q", -1), "offsets"),
        (WalSection.SLICES, 48, struct.pack("<I", 113), "a slice begins at 113"),
        (WalSection.SLICES, 52, struct.pack("<I", 2**32 - 1), "instead of 4294967407"),
        (WalSection.SLICES, 56, struct.pack("<I", 9), "batches instead of"),
        (WalSection.SLICES, 64, struct.pack("<I", 2), "offsets"),
        (WalSection.REFERENCES, 64, struct.pack("<q", 0), "a reference"),
    ],
)
def test_rows_that_contradict_each_other_are_refused(
    section: WalSection, at: int, new: bytes, problem: str
) -> None:
    """Right CRCs prove that the writer wrote it, not that it makes sense."""
    built = data_object()
    assert patched(built, section, 0, b"") == built.data
    with pytest.raises(CorruptObject, match=problem):
        parse_object(patched(built, section, at, new), key="x")


def test_a_seal_that_leaves_objects_out_is_refused() -> None:
    built = build_seal(name(4, committed_end=3), HEIR)
    with pytest.raises(CorruptObject, match="missing before it"):
        parse_object(built.data, key="x")


runs = st.lists(
    st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1), st.integers(0, 2**40), st.integers(1, 5), st.booleans()),
    min_size=0,
    max_size=6,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(runs, st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**31 - 1))
def test_what_is_built_is_read_back(
    parts: list[tuple[int, int, int, int, bool]], sequence: int, previous_crc: int, broker_id: int
) -> None:
    chain = ChainName(broker_id, UUID(int=previous_crc))
    slices = [
        WalSlice(UUID(int=n), partition, epoch, batch(base, count), is_foreign)
        for n, (partition, epoch, base, count, is_foreign) in enumerate(parts)
    ]
    place = ObjectName(CLUSTER, chain, sequence, sequence // 2, previous_crc, CREATED_MS)
    built = build_data_object(place, slices)
    footer = parse_object(built.data, key="x")
    assert footer.header == built.header
    assert (footer.header.chain, footer.header.sequence) == (chain, sequence)
    read = [
        WalSlice(
            UUID(bytes=row.topic_id),
            row.partition,
            row.leader_epoch,
            built.data[row.position : row.position + row.size_bytes],
            row.is_foreign,
        )
        for row in footer.slices
    ]
    assert read == slices


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=600), st.integers(0, 900))
def test_hostile_bytes_give_a_typed_error(junk: bytes, at: int) -> None:
    data = bytearray(data_object().data)
    data[at : at + len(junk)] = junk
    if bytes(data) == data_object().data:
        return
    for suffix in (bytes(data), junk):
        with pytest.raises(CorruptObject):
            parse_object(suffix, key="x")
