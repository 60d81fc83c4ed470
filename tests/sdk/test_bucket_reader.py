"""Partitions read from the stores alone: the tier, and the chains of diskless topics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidelog import BucketReader
from tidelog.bucket import bucket_log
from tidelog.errors import (
    ClientClosed,
    InvalidConfig,
    MissingRecords,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from tidelog.reused_memory import thread_memory
from tidelog_core.diskless.wal.build import WalSlice
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.errors import CorruptObject
from tidelog_core.log.values import AbortedTransaction
from tidelog_core.objects.folder import FolderObjectStore

from tests.support.chain_owner import chain_name
from tests.support.diskless_topic import DISKLESS, DisklessTopic, end_marker, numbered
from tests.support.tiered_cluster import CLUSTER_ID, TieredCluster

A, B, GATEWAY = chain_name(0), chain_name(1), chain_name(2)
Rows = list[tuple[int, bytes | None]]


@pytest.fixture
def cluster(tmp_path: Path) -> TieredCluster:
    return TieredCluster(tmp_path)


@pytest.fixture
def diskless(cluster: TieredCluster) -> Iterator[DisklessTopic]:
    topic = cluster.create_topic("t", partition_count=2, configs=DISKLESS)
    made = DisklessTopic(topic, CLUSTER_ID, database=cluster.database, objects=cluster.objects)
    made.enter(A)
    yield made
    made.close()


class Reading:
    """A reader that is open, and lists of what it read."""

    def __init__(
        self,
        cluster: TieredCluster,
        diskless: DisklessTopic,
        *,
        as_arrow: bool = False,
        **given: str,
    ) -> None:
        self._as_arrow = as_arrow
        self.bucket = BucketReader(**cluster.options, **given)  # type: ignore[arg-type]
        self._diskless = diskless
        diskless.run(self.bucket.start())

    def rows(self, start: int | None = None, end: int | None = None, *, partition: int = 0) -> Rows:
        """Return offsets and values."""

        async def read() -> Rows:
            if self._as_arrow:
                columns = self.bucket.read_arrow(
                    ("t", partition), start_offset=start, end_offset=end
                )
                return [
                    (row["offset"], row["value"])
                    async for batch in columns
                    for row in batch.to_pylist()
                ]
            found = self.bucket.read(("t", partition), start_offset=start, end_offset=end)
            return [(record.offset, record.value) async for record in found]

        return self._diskless.run(read())

    def offsets(self) -> tuple[int, int]:
        """Return the offsets that can be read."""
        return tuple(self._diskless.run(self.bucket.offsets(("t", 0))))

    def close(self) -> None:
        self._diskless.run(self.bucket.close())


@pytest.fixture(params=["records", "arrow"])
def as_arrow(request: pytest.FixtureRequest) -> bool:
    return request.param == "arrow"


@pytest.fixture
def reading(cluster: TieredCluster, diskless: DisklessTopic, as_arrow: bool) -> Iterator[Reading]:
    made = Reading(cluster, diskless, as_arrow=as_arrow)
    yield made
    made.close()


@pytest.fixture
def committed(cluster: TieredCluster, diskless: DisklessTopic, as_arrow: bool) -> Iterator[Reading]:
    made = Reading(cluster, diskless, as_arrow=as_arrow, isolation_level="read_committed")
    yield made
    made.close()


def rows(*ranges: tuple[int, int]) -> Rows:
    return [(i, b"v%d" % i) for start, end in ranges for i in range(start, end)]


def test_a_log_goes_on_from_the_tier_into_the_chains(cluster, diskless, reading):
    cluster.add_segment("t", [numbered(0, 10), numbered(10, 20, compression=4)])
    cluster.add_segment("t", [numbered(20, 25)])
    diskless.commit(A, numbered(20, 25), numbered(25, 30))
    diskless.run(diskless.owners[A].seal(B))
    diskless.enter(B, epoch=1, first_offset=30)
    diskless.commit(B, numbered(30, 32), epoch=1)
    assert reading.offsets() == (0, 32)
    assert reading.rows() == rows((0, 32))
    assert reading.rows(13, 28) == rows((13, 28))
    assert reading.rows(32) == []
    assert reading.rows(partition=1) == []
    tiered = Reading(cluster, diskless, diskless_tail=False)  # type: ignore[arg-type]
    assert (tiered.offsets(), tiered.rows(22)) == ((0, 25), rows((22, 25)))
    tiered.close()


def test_what_records_were_decompressed_into_is_given_back_after_a_read(cluster, diskless):
    cluster.add_segment("t", [numbered(0, 10, compression=4)])
    thread_memory().take(100)  # As if a read had been cut off.
    reading = Reading(cluster, diskless, as_arrow=True)
    assert reading.rows() == rows((0, 10))
    reading.close()
    assert thread_memory().kept_bytes == 0


@pytest.mark.parametrize(("idle_s", "kept"), [(600.0, 2), (-1.0, 1)])
def test_a_partition_that_nobody_reads_any_more_is_forgotten(
    diskless, reading, monkeypatch, idle_s, kept
):
    """Its slices would be kept for ever: nothing says that they are tiered."""
    monkeypatch.setattr(bucket_log, "IDLE_SECONDS_MAX", idle_s)
    diskless.enter(A, partition=1)
    diskless.commit(A, numbered(0, 3))
    diskless.commit(A, numbered(0, 4), partition=1)
    for _ in range(2):
        assert reading.rows(partition=0) == rows((0, 3))
        assert reading.rows(partition=1) == rows((0, 4))
        assert len(reading.bucket._loader._tails._tails) == kept
    diskless.commit(A, numbered(3, 5))
    assert reading.rows(partition=0) == rows((0, 5))


def test_a_record_is_read_after_its_acknowledgement_by_one_listing(diskless, reading, monkeypatch):
    counts = {"list": 0, "get_range": 0}
    for method in counts:
        original = getattr(FolderObjectStore, method)

        def counted(self, *args, _method=method, _original=original, **given):
            counts[_method] += 1
            return _original(self, *args, **given)

        monkeypatch.setattr(FolderObjectStore, method, counted)
    for start in range(0, 50, 10):
        diskless.commit(A, numbered(start, start + 10))
    assert reading.rows() == rows((0, 50))
    counts.update(list=0, get_range=0)
    assert reading.rows(50) == []
    assert counts == {"list": 1, "get_range": 0}
    diskless.commit(A, numbered(50, 60))
    assert reading.rows(50) == rows((50, 60))
    assert counts == {"list": 2, "get_range": 2}  # its footer and its bytes


def test_read_committed_waits_for_markers_and_leaves_aborted_transactions_out(
    cluster, diskless, reading, committed
):
    aborted = [AbortedTransaction(7, 2, 6, 6)]
    cluster.add_segment("t", [numbered(0, 2), numbered(2, 4, producer_id=7)], aborted=aborted)
    diskless.commit(A, numbered(4, 6, producer_id=7), end_marker(6, 7, is_commit=False))
    diskless.commit(A, numbered(7, 9), numbered(9, 11, producer_id=8))
    diskless.commit(A, numbered(11, 13, producer_id=7))
    assert committed.offsets() == (0, 9)
    assert committed.rows() == rows((0, 2), (7, 9))
    assert reading.rows() == rows((0, 6), (7, 13))
    diskless.commit(A, end_marker(13, 8, is_commit=True), end_marker(14, 7, is_commit=False))
    assert committed.rows() == rows((0, 2), (7, 11))
    assert committed.rows(10) == rows((10, 11))


def test_slices_of_gateways_have_the_offsets_that_the_leader_gave_them(diskless, reading):
    gateway = diskless.enter(GATEWAY, partition=1)
    data = numbered(0, 3) + numbered(3, 4)
    diskless.run(gateway.commit([WalSlice(*diskless.name(), -1, data, is_foreign=True)]))
    diskless.commit(A, numbered(0, 10))
    diskless.run(diskless.owners[A].commit([], references=[gateway.foreign(0, 0, 10)]))
    assert reading.rows(8) == rows((8, 10)) + [(10 + i, b"v%d" % i) for i in range(4)]


def test_what_is_collected_while_it_is_read_comes_from_the_tier(cluster, diskless, reading):
    for start in range(0, 100, 10):
        diskless.commit(A, numbered(start, start + 10))

    async def read() -> Rows:
        found: Rows = []
        async for record in reading.bucket.read(("t", 0)):
            found.append((record.offset, record.value))
            if record.offset == 15:
                batches = [numbered(start, start + 10) for start in range(0, 90, 10)]
                await asyncio.to_thread(cluster.add_segment, "t", batches)
                await diskless.owners[A].collect(range(9))
        return found

    assert diskless.run(read()) == rows((0, 100))


def test_offsets_that_are_nowhere_are_named_after_what_comes_before_them(diskless, reading):
    for start in range(0, 40, 10):
        diskless.commit(A, numbered(start, start + 10))
    diskless.run(diskless.owners[A].collect([1]))
    seen: list[int] = []

    async def read() -> None:
        async for record in reading.bucket.read(("t", 0)):
            seen.append(record.offset)  # noqa: PERF401  # It is to have what came before the error.

    with pytest.raises(MissingRecords, match=r"offsets \[10, 20\) of t-0 are missing") as caught:
        diskless.run(read())
    assert (caught.value.start, caught.value.end, seen) == (10, 20, list(range(10)))
    assert reading.rows(20) == rows((20, 40))


def test_an_object_that_goes_without_a_replacement_is_a_gap(diskless, reading):
    for start in range(0, 80, 10):
        diskless.commit(A, numbered(start, start + 10))

    async def read() -> None:
        async for record in reading.bucket.read(("t", 0)):
            if record.offset == 5:
                await diskless.owners[A].collect([6])

    with pytest.raises(MissingRecords, match=r"offsets \[60, "):
        diskless.run(read())


def test_a_damaged_slice_is_named(cluster, diskless, reading):
    diskless.commit(A, numbered(0, 10))
    path = cluster.objects / wal_key(CLUSTER_ID, A, 0)
    data = bytearray(path.read_bytes())
    data[112 + 3] ^= 1  # In the base offset, which the batch's own CRC does not cover.
    path.chmod(0o600)
    path.write_bytes(data)
    with pytest.raises(CorruptObject, match="CRC") as caught:
        reading.rows()
    assert wal_key(CLUSTER_ID, A, 0) in str(caught.value)


def test_a_damaged_segment_is_named(cluster, diskless, reading):
    meta = cluster.add_segment("t", [numbered(0, 10)])
    path = cluster.objects / cluster.keys("t", meta).log
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    with pytest.raises(CorruptObject, match="CRC") as caught:
        reading.rows()
    assert cluster.keys("t", meta).log in str(caught.value)


def test_what_is_not_there_is_an_error_that_says_so(cluster, diskless, reading):
    diskless.commit(A, numbered(0, 10))
    with pytest.raises(OffsetOutOfRange, match=r"offset 11 of t-0 is outside \[0, 10\]"):
        reading.rows(11)
    with pytest.raises(UnknownTopicOrPartition, match="there is no partition t-2"):
        reading.rows(partition=2)
    with pytest.raises(InvalidConfig, match="isolation_level is 'committed'"):
        BucketReader(**cluster.options, isolation_level="committed")  # type: ignore[arg-type]
    with pytest.raises(ClientClosed):
        diskless.run(BucketReader(**cluster.options).offsets(("t", 0)))


def test_large_segments_are_read_in_chunks(cluster, diskless, committed):
    """Also through an aborted transaction whose batches are in several chunks."""
    value = b"x" * 300_000

    def large(offset: int, producer_id: int) -> bytes:
        from tidelog_core.records.batch import Record, build_batch

        return build_batch(
            [Record(0, 1, None, value)],
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=offset,
            is_transactional=True,
        )

    batches = [large(offset, offset % 2) for offset in range(40)]
    batches += [end_marker(40, 0, is_commit=False), end_marker(41, 1, is_commit=True)]
    cluster.add_segment("t", batches, aborted=[AbortedTransaction(0, 0, 40, 0)])
    assert [offset for offset, _ in committed.rows()] == list(range(1, 40, 2))
