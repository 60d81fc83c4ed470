"""``docs/read_segments.py`` against objects of chains that our writer made."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from uuid import UUID

import pytest
from tidelog_core.diskless.wal.build import (
    BuiltObject,
    ForeignSlice,
    ObjectName,
    WalSlice,
    build_seal,
)
from tidelog_core.diskless.wal.footer import parse_object
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.records.batch import CompressionType, Record, build_batch
from tidelog_core.records.control import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_marker,
)
from tidelog_core.tier.keys import topic_manifest_key
from tidelog_core.tier.manifest import TopicManifest

from tests.support.data_objects import build_data_object
from tests.support.docs_reader import reader, run
from tests.support.wal_objects import CHAIN, CLUSTER, CREATED_MS, GATEWAY, HEIR, TOPIC_ID


class Bucket:
    """A folder with chains, written as nodes would."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.crcs: dict[tuple[ChainName, int], int] = {}
        manifest = TopicManifest(
            name="t",
            topic_id=TOPIC_ID,
            partition_count=1,
            created_ms=0,
            configs={},
            replication_factor=1,
        )
        self.write(topic_manifest_key(CLUSTER, "t", TOPIC_ID), manifest.to_bytes())

    def write(self, key: str, data: bytes) -> None:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def name(self, chain: ChainName, sequence: int, committed_end: int | None) -> ObjectName:
        end = sequence if committed_end is None else committed_end
        previous_crc = self.crcs.get((chain, sequence - 1), 0)
        return ObjectName(CLUSTER, chain, sequence, end, previous_crc, CREATED_MS)

    def put(self, built: BuiltObject) -> BuiltObject:
        header = built.header
        self.crcs[header.chain, header.sequence] = header.crc
        self.write(wal_key(CLUSTER, header.chain, header.sequence), built.data)
        return built

    def data(
        self,
        chain: ChainName,
        sequence: int,
        *slices: bytes,
        epoch: int = 0,
        committed_end: int | None = None,
        references: tuple[ForeignSlice, ...] = (),
        is_foreign: bool = False,
    ) -> BuiltObject:
        return self.put(
            build_data_object(
                self.name(chain, sequence, committed_end),
                [WalSlice(TOPIC_ID, 0, epoch, data, is_foreign) for data in slices],
                references=references,
            )
        )

    def seal(self, chain: ChainName, sequence: int) -> None:
        self.put(build_seal(self.name(chain, sequence, None), HEIR))

    def read(self) -> tuple[list[tuple[int, bytes]], list[str]]:
        problems: list[str] = []
        found, get = reader.open_bucket(str(self.root))
        tails = reader.read_tails(reader.read_chains(found, get, problems.append), problems.append)
        records: list[tuple[int, bytes]] = []
        try:
            for tail in tails.values():
                records += [(r.offset, r.value) for r in reader.read_tail(tail, get)]
        except reader.Corrupt as error:
            problems.append(str(error))
        return records, problems


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return Bucket(tmp_path)


def batch(base: int, count: int = 1, **kwargs: object) -> bytes:
    records = [Record(base + n, CREATED_MS, None, b"%d" % (base + n), ()) for n in range(count)]
    return build_batch(records, base_offset=base, **kwargs)  # type: ignore[arg-type]


def rows(*offsets: int) -> list[tuple[int, bytes]]:
    return [(offset, b"%d" % offset) for offset in offsets]


def test_it_reads_a_chain_and_the_one_after_it(bucket: Bucket) -> None:
    bucket.data(CHAIN, 0, batch(0, 2), committed_end=0)
    bucket.data(CHAIN, 1, batch(2, 3, compression=CompressionType.ZSTD), committed_end=0)
    bucket.seal(CHAIN, 2)
    bucket.data(HEIR, 0, batch(5, 1), epoch=1)
    assert bucket.read() == (rows(0, 1, 2, 3, 4, 5), [])


def test_what_is_behind_a_gap_or_a_seal_is_garbage(bucket: Bucket) -> None:
    bucket.data(CHAIN, 0, batch(0))
    bucket.seal(CHAIN, 1)
    bucket.data(CHAIN, 2, batch(2), committed_end=1)
    bucket.data(HEIR, 0, batch(1), epoch=1)
    bucket.data(HEIR, 2, batch(3), epoch=1, committed_end=1)
    assert bucket.read() == (rows(0, 1), [])


def test_an_object_may_have_no_records(bucket: Bucket) -> None:
    """An idle chain goes on by one, so that the object before can be collected."""
    bucket.data(CHAIN, 0, batch(0))
    bucket.data(CHAIN, 1)
    bucket.data(CHAIN, 2, batch(1), committed_end=1)
    assert bucket.read() == (rows(0, 1), [])


def test_a_seal_below_the_committed_end_ends_nothing(bucket: Bucket) -> None:
    """It was put where an object had been collected already."""
    bucket.data(CHAIN, 6, batch(0), committed_end=5)
    bucket.data(CHAIN, 7, batch(1), committed_end=6)
    bucket.seal(CHAIN, 3)
    assert bucket.read() == (rows(0, 1), [])


def test_a_reference_has_the_offsets_that_the_leader_gave(bucket: Bucket) -> None:
    foreign = bucket.data(GATEWAY, 0, batch(0, 2), is_foreign=True, epoch=-1)
    footer = parse_object(foreign.data, key="x")
    reference = ForeignSlice(GATEWAY, 0, 0, 1, footer.slices[0], list(footer.batches))
    bucket.data(CHAIN, 0, batch(0), references=(reference,))
    assert bucket.read() == ([(0, b"0"), (1, b"0"), (2, b"1")], [])
    (bucket.root / wal_key(CLUSTER, GATEWAY, 0)).unlink()
    records, problems = bucket.read()
    assert records == rows(0)
    assert [problem.rpartition(": ")[2] for problem in problems] == [
        f"object 0 of {GATEWAY.chain_id} is missing"
    ]


def test_aborted_and_open_transactions_are_not_read(bucket: Bucket) -> None:
    def in_transaction(base: int, producer_id: int, sequence: int) -> bytes:
        return batch(
            base,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )

    def marker(base: int, producer_id: int, kind: ControlType) -> bytes:
        return build_end_transaction_marker(
            EndTransactionMarker(kind, 0),
            producer_id=producer_id,
            producer_epoch=0,
            timestamp_ms=CREATED_MS,
            base_offset=base,
        )

    bucket.data(CHAIN, 0, in_transaction(0, 1, 0) + in_transaction(1, 2, 0) + batch(2))
    bucket.data(CHAIN, 1, marker(3, 1, ControlType.ABORT) + marker(4, 2, ControlType.COMMIT))
    bucket.data(CHAIN, 2, in_transaction(5, 1, 1) + batch(6))
    assert bucket.read() == (rows(1, 2), [])


def test_an_object_is_got_once_for_all_of_its_batches(bucket: Bucket) -> None:
    bucket.data(CHAIN, 0, batch(0) + batch(1), batch(2))
    found, get = reader.open_bucket(str(bucket.root))
    chains = reader.read_chains(found, get, pytest.fail)
    (tail,) = reader.read_tails(chains, pytest.fail).values()
    asked: list[str] = []

    def counted(key: str) -> bytes:
        asked.append(key)
        data: bytes = get(key)
        return data

    assert [record.offset for record in reader.read_tail(tail, counted)] == [0, 1, 2]
    assert asked == [wal_key(CLUSTER, CHAIN, 0)]


def test_missing_offsets_and_broken_links_are_reported(bucket: Bucket) -> None:
    bucket.data(CHAIN, 0, batch(0))
    bucket.crcs.clear()
    bucket.data(CHAIN, 1, batch(2))
    records, problems = bucket.read()
    assert records == []
    assert [problem.partition(".wal: ")[2] for problem in problems] == [
        "it does not follow the object before it",
        "offsets [1, 2) are missing before it",
    ]


def test_every_flipped_byte_and_every_cut_is_reported(bucket: Bucket) -> None:
    built = bucket.data(CHAIN, 0, batch(0, 2), batch(2))
    key = wal_key(CLUSTER, CHAIN, 0)
    assert reader.parse_wal(key, built.data).kind == 1
    for position in range(len(built.data)):
        damaged = bytearray(built.data)
        damaged[position] ^= 4
        for broken in (bytes(damaged), built.data[:position]):
            problems: list[str] = []
            read = reader.read_chains({key: len(broken)}, {key: broken}.get, problems.append)
            if problems:
                assert problems[0].startswith(key)
            else:  # Only bytes between sections may go unnoticed.
                assert read[f"{CHAIN.broker_id:010}", str(CHAIN.chain_id)][0] == [
                    reader.parse_wal(key, built.data)
                ]


def test_it_lists_chains_and_prints_their_records(bucket: Bucket) -> None:
    bucket.data(CHAIN, 0, batch(0, 2))
    bucket.seal(CHAIN, 1)
    done = run(bucket.root)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"chain {CHAIN.chain_id} of broker 3 ends at 1: 1 slices here",
        f"t-0 [0, 2) {wal_key(CLUSTER, CHAIN, 0)}",
    ]
    done = run(bucket.root, "t")
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["offset"], base64.b64decode(row["value"])) for row in printed] == rows(0, 1)
    assert UUID(str(CHAIN.chain_id)) == CHAIN.chain_id
