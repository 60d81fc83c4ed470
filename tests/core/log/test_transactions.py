"""Which offsets are stable, and which transactions a reader is told were aborted."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tidelog_core.errors import InvalidProducerEpoch, OutOfOrderSequence
from tidelog_core.log.append_checks import check_replicated
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.values import AppendOrigin, TransactionCoordinatorFenced
from tidelog_core.tier.index_build import SegmentSource, build_index_file
from tidelog_core.tier.index_file import IndexFile
from tidelog_core.tier.integrity import NO_HASH

from tests.support.batches import batch
from tests.support.log_building import (
    aborted_in,
    append,
    content_of,
    copy_of,
    end_transaction,
    headers_of,
    marker,
    open_log,
    read_bytes,
    send,
    transact,
)
from tests.support.tier_segments import SEGMENT_ID, TOPIC_ID


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LocalLog]:
    log = open_log(tmp_path / "log")
    yield log
    log.close()


def write_transactional(log: LocalLog, producer_id: int, sequence: int) -> None:
    """Append without moving the high watermark, as a leader with followers does."""
    content = batch(
        producer_id=producer_id, producer_epoch=0, base_sequence=sequence, is_transactional=True
    )
    log.append_as_leader(content, leader_epoch=0)


def write_marker(log: LocalLog, producer_id: int, *, is_commit: bool) -> None:
    """End a transaction without moving the high watermark."""
    content = marker(is_commit=is_commit, producer_id=producer_id, epoch=0)
    log.append_as_leader(content, leader_epoch=0, origin=AppendOrigin.COORDINATOR)


# -- the last stable offset --


def test_data_outside_transactions_is_stable_as_it_is_replicated(log: LocalLog) -> None:
    append(log, batch(3))
    send(log, 0, count=2)
    assert log.last_stable_offset == log.high_watermark == 5


def test_first_unstable_offset_moves_from_one_open_transaction_to_the_next(
    log: LocalLog,
) -> None:
    """In the order of their first offsets, in whatever order they end."""
    transact(log, 1)  # 0
    append(log, batch(1))  # 1
    transact(log, 2)  # 2
    transact(log, 3)  # 3
    transact(log, 1, 1)  # 4
    assert log.last_stable_offset == 0
    end_transaction(log, is_commit=True, producer_id=3, epoch=0)  # 5
    assert log.last_stable_offset == 0
    end_transaction(log, is_commit=True, producer_id=1, epoch=0)  # 6
    assert log.last_stable_offset == 2
    transact(log, 1, 2)  # 7
    assert log.last_stable_offset == 2
    end_transaction(log, is_commit=False, producer_id=2, epoch=0)  # 8
    assert log.last_stable_offset == 7
    end_transaction(log, is_commit=False, producer_id=1, epoch=0)  # 9
    assert log.last_stable_offset == 10
    assert aborted_in(log, 0) == [(2, 2), (1, 7)]


def test_ended_transactions_wait_for_the_high_watermark_each_for_its_own_marker(
    log: LocalLog,
) -> None:
    write_transactional(log, 1, 0)  # 0
    write_transactional(log, 2, 0)  # 1
    write_marker(log, 1, is_commit=True)  # 2
    write_marker(log, 2, is_commit=False)  # 3
    stable = {}
    for high_watermark in range(1, 5):
        log.advance_high_watermark(high_watermark)
        stable[high_watermark] = log.last_stable_offset
    assert stable == {1: 0, 2: 0, 3: 1, 4: 4}


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("is_rolled", [True, False])
def test_ended_transaction_waits_for_the_high_watermark_over_a_restart(
    tmp_path: Path, is_clean: bool, is_rolled: bool
) -> None:
    """Another leader may not have its marker: then the transaction is open again there."""
    log = open_log(tmp_path / "log")
    append(log, batch(1))  # 0
    write_transactional(log, 1, 0)  # 1
    write_marker(log, 1, is_commit=True)  # 2
    if is_rolled:
        log.roll()
        log.append_as_leader(batch(1), leader_epoch=0)  # 3
    crashed = copy_of(log.directory, tmp_path / "crashed")
    log.close()
    log = open_log(tmp_path / "log" if is_clean else crashed)
    log.advance_high_watermark(2)
    assert log.last_stable_offset == 1
    log.advance_high_watermark(3)
    assert log.last_stable_offset == 3
    log.close()


def test_log_start_within_an_open_transaction_is_the_last_stable_offset(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    transact(log, 1, count=5)  # 0
    append(log, batch(3))  # 5
    log.roll()
    transact(log, 1, 5, count=5)  # 8
    for start_offset in (5, 8):  # within a segment, and with it
        log.advance_log_start_offset(start_offset)
        assert log.last_stable_offset == start_offset
        assert log.producers.has_ongoing_transaction(1)
    end_transaction(log, is_commit=False, producer_id=1, epoch=0)
    assert log.last_stable_offset == 14
    assert aborted_in(log, 8) == [(1, 0)]
    log.close()


# -- aborted transactions --


def test_aborted_transaction_over_several_segments_is_told_with_each(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", segment_bytes=200)
    for sequence in range(6):
        transact(log, 1, sequence)
    end_transaction(log, is_commit=False, producer_id=1, epoch=0)
    assert len(log.sealed_segments()) >= 2
    for is_reopened in (False, True):
        if is_reopened:
            log.close()
            log = open_log(tmp_path / "log", segment_bytes=200)
            log.advance_high_watermark(7)
        for offset in range(7):
            assert aborted_in(log, offset) == [(1, 0)]
    log.close()


def test_aborted_transactions_are_the_same_at_the_leader_and_behind_it(tmp_path: Path) -> None:
    logs = [open_log(tmp_path / name, segment_bytes=600) for name in ("leader", "follower")]
    leader, follower = logs
    transact(leader, 1, count=5)  # 0
    append(leader, batch(3))  # 5
    transact(leader, 2, count=2)  # 8
    transact(leader, 3, count=3)  # 10
    end_transaction(leader, is_commit=False, producer_id=1, epoch=0)  # 13
    transact(leader, 2, 2, count=6)  # 14
    transact(leader, 4, count=3)  # 20
    end_transaction(leader, is_commit=True, producer_id=3, epoch=0)  # 23
    end_transaction(leader, is_commit=False, producer_id=2, epoch=0)  # 24
    follower.append_as_follower(bytearray(content_of(leader)))
    end_transaction(leader, is_commit=True, producer_id=4, epoch=0)  # 25
    follower.append_as_follower(bytearray(read_bytes(leader, 25)))
    for log, high_watermark, stable in ((leader, 26, 26), (follower, 14, 8), (follower, 25, 20)):
        log.advance_high_watermark(high_watermark)
        assert log.last_stable_offset == stable
    for log in logs:
        read = log.read(0, max_bytes=2**20, up_to=26, include_aborted=True)
        assert list(read.aborted_transactions) == [
            (1, 0, 13, 8),
            (2, 8, 24, 20),
        ]
        log.close()


# -- a log that begins in the tier --


def test_log_that_begins_in_the_tier_has_the_producers_of_its_past(tmp_path: Path) -> None:
    """From the index object's section: sequences, fencing and open transactions alike."""
    source = open_log(tmp_path / "source")
    send(source, 0, count=2)  # 0
    transact(source, 6)  # 2
    end_transaction(source, is_commit=True, producer_id=7, epoch=4, coordinator_epoch=9)  # 3
    source.roll()
    (sealed,) = source.sealed_segments()
    built = build_index_file(
        SegmentSource.of_sealed(
            sealed,
            topic_id=TOPIC_ID,
            partition=0,
            segment_id=SEGMENT_ID,
            leader_epoch=0,
            previous_hash=NO_HASH,
        )
    )
    source.close()
    log = open_log(tmp_path / "log")
    log.truncate_fully_and_start_at(
        4,
        log_start_offset=0,
        leader_epochs=[(0, 0)],
        producer_snapshot=bytes(IndexFile.parse(built.data).producer_snapshot),
    )
    for is_reopened in (False, True):
        if is_reopened:
            log = open_log(copy_of(log.directory, tmp_path / "crashed"))
        assert log.producers.count == 3
        assert log.last_stable_offset == 2
        assert send(log, 0, count=2).is_duplicate
        with pytest.raises(OutOfOrderSequence, match="expected 2"):
            send(log, 5)
        with pytest.raises(InvalidProducerEpoch):
            send(log, 0, producer_id=7, epoch=3)
        with pytest.raises(TransactionCoordinatorFenced):
            end_transaction(log, is_commit=True, producer_id=7, epoch=4, coordinator_epoch=8)
    end_transaction(log, is_commit=False, producer_id=6, epoch=0)
    assert log.last_stable_offset == 5
    log.close()


# -- everything at once --


@dataclass
class Transaction:
    """What the model knows of one."""

    producer_id: int
    first_offset: int
    offsets: list[int] = field(default_factory=list)
    marker_offset: int | None = None
    is_aborted: bool = False


class Model:
    """A log of transactions, as plain as can be."""

    def __init__(self) -> None:
        self.transactions: list[Transaction] = []
        self.end_offset = 0

    def open_of(self, producer_id: int) -> Transaction | None:
        return next(
            (
                t
                for t in self.transactions
                if t.producer_id == producer_id and t.marker_offset is None
            ),
            None,
        )

    def truncate_to(self, offset: int) -> None:
        for each in self.transactions:
            each.offsets = [o for o in each.offsets if o < offset]
            if each.marker_offset is not None and each.marker_offset >= offset:
                each.marker_offset, each.is_aborted = None, False
        self.transactions = [t for t in self.transactions if t.offsets]
        self.end_offset = offset

    def last_stable_offset(self, high_watermark: int) -> int:
        unstable = [
            t.first_offset
            for t in self.transactions
            if t.marker_offset is None or t.marker_offset >= high_watermark
        ]
        return min([high_watermark, *unstable])

    def aborted_offsets(self) -> set[int]:
        return {o for t in self.transactions if t.is_aborted for o in t.offsets}


@pytest.mark.parametrize("seed", range(8))
def test_what_is_stable_and_aborted_is_right_after_any_history(tmp_path: Path, seed: int) -> None:
    """Transactions side by side, rolls, truncations, crashes and restarts, drawn by a seed."""
    draw = random.Random(seed)
    model = Model()
    sequences: dict[int, int] = {}
    log = open_log(tmp_path / "log-0", segment_bytes=600)
    for step in range(150):
        what = draw.random()
        producer_id = draw.randrange(4)
        if what < 0.5:
            offset = log.log_end_offset
            # Unknown after a truncation, a producer may send any sequence; a known one is told.
            sequence = sequences.get(producer_id, 0)
            content: dict[str, Any] = {"producer_id": producer_id, "base_sequence": sequence}
            try:
                log.append_as_leader(
                    batch(producer_epoch=0, is_transactional=True, **content), leader_epoch=0
                )
            except OutOfOrderSequence:
                pytest.fail(f"seed {seed}, step {step}")
            sequences[producer_id] = sequence + 1
            each = model.open_of(producer_id)
            if each is None:
                each = Transaction(producer_id, offset)
                model.transactions.append(each)
            each.offsets.append(offset)
            model.end_offset = offset + 1
        elif what < 0.7:
            is_commit = draw.random() < 0.5
            write_marker(log, producer_id, is_commit=is_commit)
            each = model.open_of(producer_id)
            if each is not None:
                each.marker_offset, each.is_aborted = model.end_offset, not is_commit
            model.end_offset += 1
        elif what < 0.85:
            log.advance_high_watermark(draw.randint(log.high_watermark, log.log_end_offset))
        elif what < 0.9:
            log.roll()
        elif what < 0.95:
            offset = draw.randint(log.high_watermark, log.log_end_offset)
            log.truncate_to(offset)
            model.truncate_to(offset)
            sequences = last_sequences(log)
        else:
            high_watermark = log.high_watermark
            directory = log.directory
            if draw.random() < 0.5:
                directory = copy_of(log.directory, tmp_path / f"log-{step + 1}")
            log.close()
            log = open_log(directory, segment_bytes=600)
            log.advance_high_watermark(high_watermark)
        check(log, model, f"seed {seed}, step {step}")
    log.close()


def last_sequences(log: LocalLog) -> dict[int, int]:
    """Return the next sequence of every producer that has a batch in the log."""
    return {
        header.producer_id: header.last_sequence + 1
        for header in headers_of(content_of(log))
        if not header.is_control
    }


def check(log: LocalLog, model: Model, where: str) -> None:
    """Compare what a reader of committed records would get with the model."""
    assert log.log_end_offset == model.end_offset, where
    stable = log.last_stable_offset
    assert stable == model.last_stable_offset(log.high_watermark), where
    offset = log.log_start_offset
    seen: set[int] = set()
    while offset < stable:
        read = log.read(offset, max_bytes=300, up_to=stable, include_aborted=True)
        assert read.slice is not None, where
        content = read_bytes(log, offset, max_bytes=300, up_to=stable)
        headers, _ = check_replicated(bytearray(content))  # The last may be cut.
        for _, header in headers:
            seen |= {
                o
                for t in read.aborted_transactions
                for o in range(header.base_offset, header.next_offset)
                if not header.is_control
                and t.producer_id == header.producer_id
                and t.first_offset <= o < t.last_offset
            }
        offset = headers[-1][1].next_offset
    assert seen == {o for o in model.aborted_offsets() if o < stable}, where
