"""Apache Kafka's log cleaner and ours leave the same records of the same log."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from tidelog_core.log.local_log import LocalLog
from tidelog_core.records.batch import decode_records, iter_headers

from tests.support.local_logs import clean
from tests.support.log_building import open_log
from tools import kafka_broker
from tools.places import ToolAbsent

ROUNDS = 4
KEYS = 12  # of one round; the next one writes to half of them, so some keys stay deleted
STEPS = 60  # of one round
SEGMENT_MS = 100
SECONDS_MAX = 60.0
NEVER_MS = "3600000"

Survivor = tuple[int, bytes | None, bytes | None]  # offset, key, value


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Apache Kafka's address, and the folder of its partitions."""
    config = {"log.cleaner.backoff.ms": "100", "log.cleaner.threads": "1"}
    try:
        with kafka_broker.serve(tmp_path / "kafka", config) as port:
            yield f"127.0.0.1:{port}", tmp_path / "kafka" / "data"
    except ToolAbsent as absent:
        pytest.skip(str(absent))


class Writers:
    """Two transactional producers and one without transactions, over a few keys."""

    def __init__(self, address: str, rng: random.Random) -> None:
        self.rng = rng
        self.plain = Producer({"bootstrap.servers": address, "enable.idempotence": True})
        self.transactional = [
            Producer({"bootstrap.servers": address, "transactional.id": f"t{number}"})
            for number in range(2)
        ]
        self.open = [False, False]
        self.first_key = 0
        for producer in self.transactional:
            producer.init_transactions(30)

    def write(self, round_index: int) -> None:
        """Write a round of records, tombstones, commits and aborts; end what is open."""
        self.first_key = round_index * KEYS // 2
        for number in range(STEPS):
            chosen = self.rng.randrange(4)
            if chosen < 2:
                self._send(self.plain)
            else:
                self._step(chosen - 2)
            if number % 20 == 19:
                time.sleep(2 * SEGMENT_MS / 1000)  # The next record begins a new segment.
        for index, is_open in enumerate(self.open):
            if is_open:
                self.transactional[index].commit_transaction(30)
                self.open[index] = False

    def _step(self, index: int) -> None:
        producer = self.transactional[index]
        if not self.open[index]:
            producer.begin_transaction()
            self.open[index] = True
        elif self.rng.random() < 0.3:
            if self.rng.random() < 0.5:
                producer.commit_transaction(30)
            else:
                producer.abort_transaction(30)
            self.open[index] = False
            return
        self._send(producer)

    def _send(self, producer: Producer) -> None:
        for _ in range(self.rng.randint(1, 3)):
            value = None if self.rng.random() < 0.25 else b"%d" % self.rng.randrange(10**6)
            key = b"key-%d" % (self.first_key + self.rng.randrange(KEYS))
            producer.produce("t", value, key, partition=0)
        assert producer.flush(30) == 0


def batches_in(directory: Path) -> list[bytes]:
    """Return the batches in a partition's files, in order."""
    batches = []
    for path in sorted(directory.glob("*.log")):
        content = path.read_bytes()
        batches += [content[at : at + header.size_bytes] for at, header in iter_headers(content)]
    return batches


def survivors(directory: Path, below: int) -> tuple[list[Survivor], list[int]]:
    """Return the records below an offset, and the offsets of the markers."""
    records: list[Survivor] = []
    markers: list[int] = []
    for batch in batches_in(directory):
        for _, header in iter_headers(batch):
            if header.base_offset >= below:
                continue
            if header.is_control:
                markers += [header.base_offset] * header.record_count
            else:
                records += [(one.offset, one.key, one.value) for one in decode_records(batch)]
    return records, markers


def let_clean(admin: AdminClient, lag_ms: str) -> None:
    """Set for how long records are not to be compacted."""
    change = ConfigEntry(
        "min.compaction.lag.ms", lag_ms, incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, "t", incremental_configs=[change])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(60)


def wait_cleaned(data: Path, up_to: int) -> None:
    """Wait until Kafka has noted that everything below the active segment is compacted."""
    checkpoint = data / "cleaner-offset-checkpoint"
    deadline = time.monotonic() + SECONDS_MAX
    while f"t 0 {up_to}" not in (checkpoint.read_text() if checkpoint.exists() else ""):
        assert time.monotonic() < deadline, checkpoint.read_text()
        time.sleep(0.1)


def append_all(log: LocalLog, batches: list[bytes]) -> None:
    for batch in batches:
        log.append_as_follower(bytearray(batch))
        log.advance_high_watermark(log.log_end_offset)
    log.roll()
    log.flush()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_the_same_records_and_markers_are_left(
    broker: tuple[str, Path], tmp_path: Path, seed: int
) -> None:
    """Round by round: tombstones and markers get their time in one and go in the next."""
    address, data = broker
    config = {
        "cleanup.policy": "compact",
        "segment.ms": str(SEGMENT_MS),
        "min.cleanable.dirty.ratio": "0",
        "min.compaction.lag.ms": NEVER_MS,
        "delete.retention.ms": "0",
    }
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic("t", 1, 1, config=config)])["t"].result(60)
    log = open_log(
        tmp_path / "ours",
        cleanup_policy=("compact",),
        segment_bytes=2_000,
        delete_retention_ms=0,
    )
    deleted: set[Survivor] = set()
    gone: set[Survivor] = set()
    went_by_age = 0
    writers, directory = Writers(address, random.Random(seed)), data / "t-0"
    for round_index in range(ROUNDS):
        writers.write(round_index)
        time.sleep(2 * SEGMENT_MS / 1000)
        writers.plain.produce("t", b"end", b"end", partition=0)
        assert writers.plain.flush(30) == 0
        active_base = max(int(path.stem) for path in directory.glob("*.log"))
        raw = [
            batch
            for batch in batches_in(directory)
            for _, header in iter_headers(batch)
            if log.log_end_offset <= header.base_offset < active_base
        ]
        append_all(log, raw)
        before, _ = survivors(log.directory, active_base)
        let_clean(admin, "0")
        wait_cleaned(data, active_base)
        let_clean(admin, NEVER_MS)
        assert clean(log, now_ms=time.time_ns() // 1_000_000) == active_base
        ours, kafkas = survivors(log.directory, active_base), survivors(directory, active_base)
        print(
            f"seed {seed}, round {round_index}: {len(before)} records below {active_base}, "
            f"{len(ours[0])} and {len(ours[1])} markers left"
        )
        assert ours == kafkas
        assert len(ours[0]) < len(before)
        gone |= {one for one in deleted if one not in ours[0]}
        deleted = {one for one in ours[0] if one[2] is None}
        rewritten = {one[1] for one in ours[0] if one[2] is not None}
        went_by_age += sum(one[1] not in rewritten | {d[1] for d in deleted} for one in gone)
    assert went_by_age > 0  # tombstones of keys that nobody has written to again
    log.close()
