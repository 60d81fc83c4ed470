"""``tidelog verify`` of diskless topics: bytes of chains, and offsets that are missing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tidelog_core.diskless.chain.index import build_index, rows_of
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.wal.build import WalSlice
from tidelog_core.diskless.wal.footer import parse_object
from tidelog_core.diskless.wal.header import HEADER_SIZE
from tidelog_core.diskless.wal.keys import checkpoint_key, wal_key
from tidelog_core.metadata.epoch_chains import EpochChain, EpochChains
from tidelog_core.metadata.records import Partition, partition_key
from tidelog_core.metadata.store import ANY_VERSION, Write
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.objects.folder import FolderObjectStore

from tests.cli.storage.test_restore_chains import CLUSTER, P0, A, B, build, restore
from tests.support.chain_owner import ChainOwner, chain_name
from tests.support.command import called
from tests.support.tier_segments import TOPIC_ID
from tests.support.wal_objects import batch

GATEWAY = chain_name(3)


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """The bucket of a cluster, and its metadata store beside it."""
    folder = tmp_path / "objects"
    asyncio.run(build(folder))
    restore(folder)
    return folder


def by_bucket(folder: Path, *options: str, status: int = 0) -> Any:
    return called("verify", "--from", f"file://{folder}", "--json", *options, status=status)


def by_metadata(folder: Path, *options: str, status: int = 0) -> Any:
    stores = (f"sqlite://{folder.parent}/metadata.db", f"file://{folder}")
    arguments = ("--metadata", stores[0], "--objects", stores[1], "--json", *options)
    return called("verify", *arguments, status=status)


WAYS = pytest.mark.parametrize("verify", [by_bucket, by_metadata], ids=["bucket", "metadata"])


def spoil(folder: Path, key: str, position: int) -> None:
    path = folder / key
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@WAYS
def test_a_whole_tail_has_no_problem(bucket: Path, verify: Any) -> None:
    found = verify(bucket).document
    assert (found["ok"], found["problems"], found["leftovers"]) == (True, [], [])
    assert (found["segments"], found["chain_objects"]) == (1, 3)
    assert found["chain_bytes"] > 1_000
    assert verify(bucket, "t").document["chain_objects"] == 3


@WAYS
def test_every_byte_of_an_object_is_checked(bucket: Path, verify: Any) -> None:
    key = wal_key(CLUSTER, A, 1)
    spoil(bucket, key, HEADER_SIZE + 5)  # in a slice: no footer shows it
    found = verify(bucket, status=1).document
    assert key in [one["object"] for one in found["problems"]]
    spoil(bucket, key, -1)
    found = verify(bucket, status=1).document
    assert key in [one["object"] for one in found["problems"]]


def index(folder: Path, *sequences: int, leaves_out: int | None = None) -> str:
    """Put a checkpoint of objects of the first chain; return its key."""
    rows = [
        (number, b"" if number == leaves_out else rows_of(parse_object(data, key="data")))
        for number in sequences
        for data in [(folder / wal_key(CLUSTER, A, number)).read_bytes()]
    ]
    key = checkpoint_key(CLUSTER, A, sequences[-1] + 1)
    (folder / key).write_bytes(build_index(A, CLUSTER, rows, created_ms=0).data)
    return key


@WAYS
def test_a_checkpoint_is_compared_with_the_objects(bucket: Path, verify: Any) -> None:
    key = index(bucket, 0, 1)
    assert verify(bucket).document["problems"] == []
    (bucket / key).unlink()
    index(bucket, 0, 1, leaves_out=1)
    (problem,) = verify(bucket, status=1).document["problems"]
    text = "it has other slices of object 1 than the object"
    assert (problem["object"], problem["problem"]) == (key, text)
    (bucket / key).unlink()
    index(bucket, 0, 1)
    spoil(bucket, key, HEADER_SIZE + 150)
    (problem,) = verify(bucket, status=1).document["problems"]
    assert problem["object"] == key


@WAYS
def test_missing_offsets_are_named_with_their_partition(bucket: Path, verify: Any) -> None:
    (bucket / wal_key(CLUSTER, A, 1)).unlink()
    (problem,) = verify(bucket, status=1).document["problems"]
    assert (problem["topic"], problem["partition"]) == ("t", 4)
    assert problem["object"] == wal_key(CLUSTER, B, 0)
    assert problem["problem"] == "offsets [22, 25) are missing before it"


def with_gateway(folder: Path, **other: int) -> str:
    """Have a gateway take records of partition 0, and its leader refer to them.

    ``other`` is what the reference says differently. Returns the key of the gateway's object.
    """

    async def put() -> None:
        owner, store = await build(folder), FolderObjectStore(folder)
        owner.chains = ChainStore(store, CLUSTER)
        gateway = ChainOwner(store, CLUSTER, GATEWAY)
        for count in (2, 3):
            await gateway.commit([WalSlice(*P0, -1, batch(0, count), is_foreign=True)])
        found = gateway.foreign(1, 2, 4)
        await owner.commit([], references=[found._replace(row=found.row._replace(**other))])
        await store.close()

    asyncio.run(put())
    restore(folder)
    return wal_key(CLUSTER, GATEWAY, 1)


@WAYS
def test_records_that_a_gateway_has_are_checked(tmp_path: Path, verify: Any) -> None:
    folder = tmp_path / "objects"
    key = with_gateway(folder)
    found = verify(folder).document
    assert (found["ok"], found["problems"], found["chain_objects"]) == (True, [], 6)
    spoil(folder, key, HEADER_SIZE + 70)
    (problem,) = verify(folder, status=1).document["problems"]
    assert problem["object"] == key
    (folder / key).unlink()
    problems = verify(folder, status=1).document["problems"]
    text = f"it is not there, but {wal_key(CLUSTER, B, 1)} has a reference to it"
    assert (key, text) in [(one["object"], one["problem"]) for one in problems]


@WAYS
@pytest.mark.parametrize("field", ["position", "size_bytes", "crc32c"])
def test_a_reference_to_what_no_gateway_has_put_there_shows(
    tmp_path: Path, verify: Any, field: str
) -> None:
    """No node can read these records, though each object is whole."""
    folder = tmp_path / "objects"
    key = with_gateway(folder, **{field: 130})
    (problem,) = verify(folder, status=1).document["problems"]
    assert (problem["partition"], problem["object"]) == (0, wal_key(CLUSTER, B, 1))
    assert problem["problem"] == f"its reference to {key} names no slice that is there"


def test_the_end_of_a_chain_that_is_gone_shows_by_the_item_of_the_next(bucket: Path) -> None:
    """No later object has the partition: only the item says where its last leader began."""
    (bucket / wal_key(CLUSTER, B, 0)).unlink()
    (bucket / wal_key(CLUSTER, A, 1)).unlink()
    problems = by_metadata(bucket, status=1).document["problems"]
    assert [one["problem"] for one in problems] == ["offsets [22, 25) are in no object of it"]


@pytest.mark.parametrize("other", [(), (EpochChain(6, chain_name(3), 25),)], ids=["old", "forked"])
def test_a_metadata_store_that_was_set_back_shows(bucket: Path, other: EpochChains) -> None:
    """It does not know who has led last, or others have led in the same epoch since."""

    async def set_back() -> None:
        store = SqliteMetadataStore(bucket.parent / "metadata.db")
        item = await store.get(partition_key(TOPIC_ID, 4))
        assert item is not None
        partition = Partition.from_item(item)
        older = replace(partition, wal=(*partition.wal[:1], *other))
        await store.commit([Write(older.item_id, older.to_body(), ANY_VERSION)])
        await store.close()

    assert by_metadata(bucket).document["ok"]
    asyncio.run(set_back())
    (problem,) = by_metadata(bucket, status=1).document["problems"]
    assert (problem["partition"], problem["object"]) == (4, wal_key(CLUSTER, B, 0))
    assert problem["problem"].startswith("it has offsets [25, 30) of leader epoch 6, which the ")


def test_what_is_no_part_of_the_log_is_not_checked(bucket: Path) -> None:
    """Garbage above a seal."""

    async def put() -> None:
        store = FolderObjectStore(bucket)
        chains = ChainStore(store, CLUSTER)
        await chains.put(A, 9, b"garbage")
        await store.close()

    asyncio.run(put())
    assert by_bucket(bucket).document["ok"]


def test_people_read_how_many_objects_were_checked(bucket: Path) -> None:
    outcome = called("verify", "--from", f"file://{bucket}")
    assert " and 3 objects of chains checked: all is well" in outcome.lines[-1]
