"""Indexes of chains: the slices of many objects in one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from tidelog_core.diskless.chain.index import (
    ChainIndex,
    Covered,
    IndexedSlice,
    build_index,
    parse_index,
    rows_of,
)
from tidelog_core.diskless.chain.store import PARSED_HERE_BYTES_MAX, ChainStore, ListedObject
from tidelog_core.diskless.wal.build import BuiltObject, Snapshot
from tidelog_core.diskless.wal.committed_slices import CommittedSlice, committed_slices
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.footer import parse_object
from tidelog_core.diskless.wal.keys import WalKey, checkpoint_key
from tidelog_core.diskless.wal.rows import ReferenceRow
from tidelog_core.errors import CorruptObject
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.objects.memory import MemoryObjectStore

from tests.support.wal_objects import (
    CHAIN,
    CLUSTER,
    GATEWAY,
    TOPIC_ID,
    checkpoint,
    data_object,
)

NAME = WalKey(CLUSTER, CHAIN, 14, is_checkpoint=True)


def index_of(*sequences: int, snapshots: Sequence[Snapshot] = ()) -> BuiltObject:
    objects = [(n, rows_of(parse_object(data_object(n).data, key="data"))) for n in sequences]
    return build_index(CHAIN, CLUSTER, objects, created_ms=0, snapshots=snapshots)


def referenced(row: ReferenceRow) -> CommittedSlice:
    return CommittedSlice(
        PartitionName.of_row(row),
        row.leader_epoch,
        row.base_offset,
        row.end_offset,
        ChainName(row.broker_id, UUID(bytes=row.chain_id)),
        row.sequence,
        row.position,
        row.size_bytes,
        row.crc32c,
        0,
        (),
    )


def test_an_index_has_every_slice_that_its_objects_give_offsets() -> None:
    index = parse_index(index_of(11, 12, 13).data, NAME, key="index")
    assert index is not None
    assert (index.chain, index.start, index.end) == (CHAIN, 11, 14)
    found = [(n, referenced(row)) for n, row in index.slices()]
    wanted = [
        (n, one._replace(created_ms=0, batches=()))
        for n in (11, 12, 13)
        for one in committed_slices(parse_object(data_object(n).data, key="data"))
    ]
    assert sorted(found) == sorted(wanted)
    assert any(one.chain == GATEWAY for _, one in found)  # a reference keeps its object


def slice_of(index: ChainIndex, fields: tuple[Any, ...]) -> IndexedSlice:
    return IndexedSlice(index.sequence_of(fields), ReferenceRow(*fields)._replace(reserved=0))


def test_the_slices_of_some_partitions_are_theirs_among_all() -> None:
    index = parse_index(index_of(11, 12, 13).data, NAME, key="index")
    assert index is not None
    every = list(index.slices())
    names = {(row.topic_id, row.partition) for _, row in every}
    assert len(names) > 1
    for name in names:
        wanted = [one for one in every if (one.row.topic_id, one.row.partition) == name]
        for cut in range(len(every) + 1):
            parts = (*index.fields_of({name}, 0, cut), *index.fields_of({name}, cut, len(every)))
            assert [slice_of(index, fields) for fields in parts] == wanted
    found = index.fields_of(names, 0, len(every))
    assert [slice_of(index, fields) for fields in found] == every
    assert list(index.fields_of((), 0, len(every))) == []


def test_an_index_has_the_producers_of_some_partitions() -> None:
    snapshots = (Snapshot(TOPIC_ID, 0, 13, b"producers", 3), Snapshot(TOPIC_ID, 4, 101, b""))
    built = index_of(11, 12, 13, snapshots=snapshots)
    index = parse_index(built.data, NAME, key="index")
    assert index is not None
    assert index.snapshots == snapshots
    without = parse_index(index_of(11, 12, 13).data, NAME, key="index")
    assert without is not None
    assert (list(index.slices()), without.snapshots) == (list(without.slices()), ())
    damaged = bytearray(built.data)
    damaged[built.data.index(b"producers")] ^= 1
    with pytest.raises(CorruptObject, match="CRC"):
        parse_index(bytes(damaged), NAME, key="index")


@pytest.mark.parametrize("least", [0, 11, 12, 14])
def test_the_leader_epochs_are_those_of_the_slices(least: int) -> None:
    index = parse_index(index_of(11, 12, 13).data, NAME, key="index")
    assert index is not None
    wanted = [
        ((row.topic_id, row.partition), row.leader_epoch)
        for sequence, row in index.slices()
        if sequence >= least
    ]
    for cut in range(len(index.rows) + 1):
        parts = (
            *index.leader_epochs(0, cut, from_sequence=least),
            *index.leader_epochs(cut, len(index.rows), from_sequence=least),
        )
        assert list(parts) == wanted


def test_objects_must_follow_each_other() -> None:
    with pytest.raises(ValueError, match=r"objects \[11, 14\)"):
        index_of(11, 13)


def test_another_kind_of_checkpoint_is_none() -> None:
    built = checkpoint()
    name = WalKey(CLUSTER, CHAIN, built.header.sequence, is_checkpoint=True)
    assert parse_index(built.data, name, key="checkpoint") is None


async def test_what_is_not_this_index_is_as_if_it_was_missing() -> None:
    store, built = MemoryObjectStore(), index_of(11, 12, 13)
    chains, key = ChainStore(store, CLUSTER), checkpoint_key(CLUSTER, CHAIN, 14)
    listed = ListedObject(14, len(built.data))
    assert await chains.index(CHAIN, listed) is None
    await store.put(key, built.data)
    assert (await chains.index(CHAIN, listed)) is not None
    for at in range(0, len(built.data), 97):
        damaged = bytearray(built.data)
        damaged[at] ^= 0x10
        await store.replace(key, bytes(damaged))
        assert await chains.index(CHAIN, listed) is None
        await store.replace(key, built.data[:at])
        assert await chains.index(CHAIN, ListedObject(14, at)) is None
    await store.replace(checkpoint_key(CLUSTER, GATEWAY, 14), built.data)
    assert await chains.index(GATEWAY, listed) is None  # another chain's
    await store.replace(checkpoint_key(CLUSTER, CHAIN, 15), built.data)
    assert await chains.index(CHAIN, ListedObject(15, len(built.data))) is None
    assert await chains.index(CHAIN, ListedObject(14, 1 << 30)) is None


async def test_a_large_index_does_not_hold_up_the_event_loop() -> None:
    rows = rows_of(parse_object(data_object().data, key="data"))
    count = PARSED_HERE_BYTES_MAX // len(rows) + 1
    built = build_index(CHAIN, CLUSTER, [(n, rows) for n in range(count)], created_ms=0)
    store = MemoryObjectStore()
    await store.put(checkpoint_key(CLUSTER, CHAIN, count), built.data)
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    others = asyncio.create_task(take_turns())
    index = await ChainStore(store, CLUSTER).index(CHAIN, ListedObject(count, len(built.data)))
    others.cancel()
    assert index is not None
    assert (index.start, index.end) == (0, count)
    assert turns > 0  # It was parsed on another thread.


def test_a_slice_of_an_object_that_it_does_not_have_is_damage() -> None:
    index = index_of(11, 12, 13)
    with pytest.raises(CorruptObject, match="sequence"):
        parse_index(index.data, NAME._replace(sequence=13), key="index")


def test_what_indexes_cover() -> None:
    covered = Covered()
    covered.add(20, 30)
    covered.add(5, 10)
    covered.add(10, 20)
    assert covered._ranges == [(5, 30)]
    covered.add(40, 41)
    assert [n for n in range(50) if covered.has(n)] == [*range(5, 30), 40]
    for start in range(45):
        for end in range(start + 1, 45):
            assert covered.has_any(start, end) == any(map(covered.has, range(start, end)))
