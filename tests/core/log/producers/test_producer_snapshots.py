"""What becomes of the producers' state: snapshots, retention, truncation, expiry, restarts.

The edge cases of Kafka's ProducerStateManager, one by one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tidelog_core.errors import OutOfOrderSequence
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.producers.producer_snapshot import (
    CorruptSnapshot,
    decode_snapshot,
    encode_snapshot,
)
from tidelog_core.log.producers.producer_state import ProducerEntry, ProducerState, RetainedBatch

from tests.support.batches import batch
from tests.support.clock import NOW_MS, Clock
from tests.support.log_building import (
    append,
    content_of,
    copy_of,
    end_transaction,
    open_log,
    read_bytes,
    send,
    snapshot_offsets,
    transact,
)

DAY_MS = 86_400_000


def rolled_log(directory: Path, segment_count: int, **options: Any) -> LocalLog:
    """Return a log of sealed segments of one batch each, sequence and offset alike."""
    log = open_log(directory, **options)
    for sequence in range(segment_count):
        send(log, sequence)
        log.roll()
    return log


# -- where snapshots are --


def test_every_roll_leaves_a_snapshot_and_only_one(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    assert snapshot_offsets(log.directory) == []
    for sequence in range(3):
        send(log, sequence)
        log.roll()
        log.roll()  # There is nothing to seal.
        assert snapshot_offsets(log.directory) == list(range(1, sequence + 2))
    send(log, 3)
    log.flush()
    assert snapshot_offsets(log.directory) == [1, 2, 3]
    log.close()
    assert snapshot_offsets(log.directory) == [1, 2, 3, 4]


def test_roll_by_size_leaves_a_snapshot_without_the_batch_that_caused_it(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", segment_bytes=150)
    for sequence in range(3):
        send(log, sequence)
    assert snapshot_offsets(log.directory)[0] < 3
    for offset in snapshot_offsets(log.directory):
        content = (log.directory / f"{offset:020d}.snapshot").read_bytes()
        state = decode_snapshot(content, expiration_ms=DAY_MS)
        entry = state.entry(5)
        assert entry is not None
        assert (state.end_offset, entry.last_sequence) == (offset, offset - 1)
    log.close()


def test_close_without_a_change_leaves_the_snapshot_as_it_is(tmp_path: Path) -> None:
    log = rolled_log(tmp_path / "log", 1)
    path = log.directory / f"{1:020d}.snapshot"
    before = path.stat().st_mtime_ns
    log.close()
    assert snapshot_offsets(log.directory) == [1]
    assert path.stat().st_mtime_ns == before


def test_snapshots_within_a_segment_go_with_the_next_open(tmp_path: Path) -> None:
    """Every close in order leaves one; a log that is opened often must not collect them."""
    for sequence in range(4):
        log = open_log(tmp_path / "log")
        send(log, sequence)
        log.close()
    assert snapshot_offsets(tmp_path / "log") == [3, 4]
    log = open_log(tmp_path / "log")
    assert snapshot_offsets(log.directory) == [4]
    log.roll()
    send(log, 4)
    log.close()
    (tmp_path / "log" / f"{2:020d}.snapshot").touch()
    for crashed in (False, True):
        directory = tmp_path / "log"
        if crashed:
            (directory / "clean-shutdown").unlink()
        log = open_log(directory)
        assert snapshot_offsets(directory) == [4, 5]
        for sequence in range(5):
            assert send(log, sequence).is_duplicate
        log.close()


def test_snapshots_behind_the_log_end_go_with_the_next_open(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / f"{42:020d}.snapshot").touch()
    log = open_log(tmp_path / "log")
    assert snapshot_offsets(log.directory) == []
    log.close()


@pytest.mark.parametrize("has_empty_active_segment", [True, False])
def test_snapshots_go_with_their_segments(tmp_path: Path, has_empty_active_segment: bool) -> None:
    log = rolled_log(tmp_path / "log", 3)
    if not has_empty_active_segment:
        send(log, 3)
    log.advance_log_start_offset(2)
    assert snapshot_offsets(log.directory) == [2, 3]
    log.advance_log_start_offset(3)
    assert snapshot_offsets(log.directory) == [3]
    assert send(log, 2).is_duplicate
    log.close()


def test_snapshots_go_with_evicted_segments(tmp_path: Path) -> None:
    log = rolled_log(tmp_path / "log", 3)
    log.set_tiered_up_to(3)
    log.evict_local(2)
    assert snapshot_offsets(log.directory) == [2, 3]
    log.close()


@pytest.mark.parametrize("recovery_point_segment", [0, 2, 4])
def test_snapshots_are_back_after_an_unclean_stop(
    tmp_path: Path, recovery_point_segment: int
) -> None:
    """At least those of the segments that had to be read, and the state is whole at once."""
    log = open_log(tmp_path / "log")
    for sequence in range(5):
        send(log, sequence)
        log.roll()
        if sequence + 1 == recovery_point_segment:
            log.flush()
    crashed = copy_of(log.directory, tmp_path / "crashed")
    log.close()
    for path in crashed.glob("*.snapshot"):
        path.unlink()
    log = open_log(crashed)
    assert set(snapshot_offsets(crashed)) >= set(range(recovery_point_segment + 1, 6))
    for sequence in range(5):
        assert send(log, sequence).is_duplicate
    for sealed in log.sealed_segments():
        log.make_whole(sealed)
    assert snapshot_offsets(crashed) == [1, 2, 3, 4, 5]
    log.close()


def test_transactions_are_rebuilt_without_any_snapshot(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", segment_bytes=400)
    transact(log, 1, count=5)  # 0
    append(log, batch(3))  # 5
    transact(log, 2, count=2)  # 8
    transact(log, 3, count=3)  # 10
    end_transaction(log, is_commit=False, producer_id=1, epoch=0)  # 13
    transact(log, 4, count=3)  # 14
    end_transaction(log, is_commit=True, producer_id=3, epoch=0)  # 17
    end_transaction(log, is_commit=False, producer_id=2, epoch=0)  # 18
    append(log, batch(1))
    crashed = copy_of(log.directory, tmp_path / "crashed")
    log.close()
    for path in (*crashed.glob("*.snapshot"), *crashed.glob("*.txnindex")):
        path.unlink()
    log = open_log(crashed, segment_bytes=400)
    log.advance_high_watermark(log.log_end_offset)
    assert log.last_stable_offset == 14
    read = log.read(0, max_bytes=2**20, up_to=14, include_aborted=True)
    found = [
        (t.producer_id, t.first_offset, t.last_offset, t.last_stable_offset)
        for t in read.aborted_transactions
    ]
    assert found == [(1, 0, 13, 8), (2, 8, 18, 14)]
    log.close()


# -- what is in them --


def test_snapshot_comes_back_as_it_was() -> None:
    state = ProducerState(end_offset=300, expiration_ms=DAY_MS)
    batches = [RetainedBatch(n, 2**40 + n, n, -1) for n in range(5)]
    state.load(1, ProducerEntry(epoch=2, coordinator_epoch=3, transaction_first_offset=100))
    state.load(2**50, ProducerEntry(epoch=32767, last_seen_ms=NOW_MS, batches=batches))
    for has_unreplicated in (False, True):
        if has_unreplicated:
            state.load_unreplicated(40, 120)
            state.load_unreplicated(90, 299)
        again = decode_snapshot(encode_snapshot(state), expiration_ms=DAY_MS)
        assert encode_snapshot(again) == encode_snapshot(state)
        assert again.end_offset == 300
        assert again.first_unstable_offset == (40 if has_unreplicated else 100)
        big = again.entry(2**50)
        assert big is not None
        assert (big.epoch, big.last_seen_ms, big.batches) == (32767, NOW_MS, batches)
        assert again.has_ongoing_transaction(1)


def test_snapshot_cut_or_changed_anywhere_is_refused() -> None:
    state = ProducerState(end_offset=3, expiration_ms=DAY_MS)
    state.load(1, ProducerEntry(batches=[RetainedBatch(0, 2, 0, NOW_MS)]))
    state.load_unreplicated(0, 2)
    content = encode_snapshot(state)
    for length in range(len(content)):
        with pytest.raises(CorruptSnapshot):
            decode_snapshot(content[:length], expiration_ms=DAY_MS)
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 0x40
        with pytest.raises(CorruptSnapshot):
            decode_snapshot(bytes(changed), expiration_ms=DAY_MS)


@pytest.mark.parametrize("damage", ["empty", "cut", "changed", "of another offset"])
def test_damaged_snapshot_is_passed_over_for_the_one_before(tmp_path: Path, damage: str) -> None:
    log = rolled_log(tmp_path / "log", 3)
    send(log, 3)
    log.close()
    last, before = (log.directory / f"{offset:020d}.snapshot" for offset in (4, 3))
    content = last.read_bytes()
    damaged = {
        "empty": b"",
        "cut": content[: len(content) // 2],
        "changed": b"\xff" * 37 + content[37:],
        "of another offset": before.read_bytes(),
    }
    last.write_bytes(damaged[damage])
    log = open_log(tmp_path / "log")
    for sequence in range(4):
        assert send(log, sequence).is_duplicate
    assert send(log, 4).base_offset == 4
    log.close()


# -- truncation --


def test_truncation_goes_back_to_the_snapshot_below_it(tmp_path: Path) -> None:
    log = rolled_log(tmp_path / "log", 5)
    send(log, 5)
    log.truncate_to(3)
    assert snapshot_offsets(log.directory) == [1, 2, 3]
    with pytest.raises(OutOfOrderSequence, match="expected 3"):
        send(log, 4)
    assert send(log, 2).is_duplicate
    assert send(log, 3).base_offset == 3
    log.close()


def test_truncation_needs_no_snapshot(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    for sequence in range(4):
        send(log, sequence)
    for path in log.directory.glob("*.snapshot"):
        path.unlink()
    log.truncate_to(1)
    assert send(log, 0).is_duplicate
    with pytest.raises(OutOfOrderSequence, match="expected 1"):
        send(log, 2)
    log.close()


def test_truncation_forgets_a_producer_that_came_later(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    send(log, 0, producer_id=1)
    send(log, 0, producer_id=2)
    log.truncate_to(1)
    assert log.producers.count == 1
    assert send(log, 9, producer_id=2).base_offset == 1
    log.close()


def test_truncation_takes_back_a_marker_and_opens_its_transaction_again(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    append(log, batch(2))
    transact(log, 5)  # 2
    log.roll()
    end_transaction(log, is_commit=False, producer_id=5, epoch=0)  # 3
    log.roll()
    append(log, batch(1))  # 4
    assert log.last_stable_offset == 5
    log.truncate_to(4)
    assert log.last_stable_offset == 4
    log.truncate_to(3)
    assert log.producers.has_ongoing_transaction(5)
    assert log.last_stable_offset == 2
    assert log.read(0, max_bytes=99, up_to=2, include_aborted=True).aborted_transactions == ()
    end_transaction(log, is_commit=True, producer_id=5, epoch=0)
    assert log.last_stable_offset == 4
    log.close()


@pytest.mark.parametrize("is_full", [True, False])
@pytest.mark.parametrize("is_reopened", [True, False])
def test_truncation_below_an_open_transaction_leaves_nothing_unstable(
    tmp_path: Path, is_full: bool, is_reopened: bool
) -> None:
    log = open_log(tmp_path / "log")
    append(log, batch(3))
    transact(log, 5, count=2)
    if is_reopened:
        log.close()
        log = open_log(tmp_path / "log")
        log.advance_high_watermark(5)
    assert log.last_stable_offset == 3
    if is_full:
        log.truncate_fully_and_start_at(1)
    else:
        log.truncate_to(0)
    assert log.producers.count == 0
    append(log, batch(4))
    assert log.last_stable_offset == log.log_end_offset
    log.close()


def test_full_truncation_takes_all_snapshots_but_that_of_its_start(tmp_path: Path) -> None:
    log = rolled_log(tmp_path / "log", 3)
    log.truncate_fully_and_start_at(1)
    assert snapshot_offsets(log.directory) == [1]
    assert log.producers.count == 0
    assert send(log, 0).base_offset == 1
    log.roll()
    assert snapshot_offsets(log.directory) == [1, 2]
    log.close()


# -- retention --


def test_deleted_records_leave_their_producer_known(tmp_path: Path) -> None:
    """Here, and after any restart: in Kafka a restart forgets them with their segment."""
    log = open_log(tmp_path / "log")
    send(log, 0, producer_id=1)
    log.roll()
    send(log, 0, producer_id=2)
    send(log, 1, producer_id=2)
    for start_offset in (1, 2):  # a whole segment, and the middle of the next
        log.advance_log_start_offset(start_offset)
        for _ in range(2):
            assert log.producers.count == 2
            assert send(log, 0, producer_id=1).is_duplicate
            assert send(log, 1, producer_id=2).is_duplicate
            crashed = copy_of(log.directory, tmp_path / f"crashed-{start_offset}")
            log.close()
            log = open_log(tmp_path / "log", log_start_offset=start_offset)
            log.advance_high_watermark(3)
        other = open_log(crashed, log_start_offset=start_offset)
        assert other.producers.count == 2
        other.close()
    log.close()


def test_producer_whose_records_and_snapshots_are_gone_may_go_on(tmp_path: Path) -> None:
    """As after DeleteRecords in a log that is restored without its past. Source: KIP-360."""
    log = rolled_log(tmp_path / "log", 2)
    log.advance_log_start_offset(2)
    log.close()
    for path in log.directory.glob("*.snapshot"):
        path.unlink()
    log = open_log(tmp_path / "log")
    assert log.producers.count == 0
    assert send(log, 2).base_offset == 2
    assert send(log, 3).base_offset == 3
    log.close()


def test_log_that_begins_above_all_that_is_here_takes_any_sequence(tmp_path: Path) -> None:
    log = rolled_log(tmp_path / "log", 2)
    log.close()
    log = open_log(tmp_path / "log", log_start_offset=9)
    assert (log.log_end_offset, log.producers.count) == (9, 0)
    assert set(snapshot_offsets(log.directory)) <= {9}
    assert send(log, 2).base_offset == 9
    log.close()


# -- expiry --


def test_producers_expire_after_their_time_whatever_their_records_say(tmp_path: Path) -> None:
    """A producer may write old timestamps: what counts is when it wrote."""
    clock = Clock()
    log = open_log(tmp_path / "log", clock, producer_id_expiration_ms=200)
    send(log, 0, timestamps=[NOW_MS - 100_000])
    clock.now_ms += 199
    assert log.producers.expire() == 0
    clock.now_ms += 1
    assert (log.producers.expire(), log.producers.count) == (1, 0)
    assert send(log, 1).base_offset == 1
    with pytest.raises(OutOfOrderSequence, match="expected 2"):
        send(log, 7)
    log.close()


def test_marker_keeps_its_producer_for_as_long_as_a_batch_does(tmp_path: Path) -> None:
    """Else the epoch by which it fences would be forgotten at once."""
    clock = Clock()
    log = open_log(tmp_path / "log", clock)
    transact(log, 5)
    clock.now_ms += DAY_MS - 1
    end_transaction(log, is_commit=False, producer_id=5, epoch=1)
    clock.now_ms += DAY_MS - 1
    assert log.producers.expire() == 0
    clock.now_ms += 1
    assert log.producers.expire() == 1
    log.close()


def test_open_transaction_keeps_its_producer_over_expiry_roll_and_restart(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path / "log", clock)
    transact(log, 5)
    send(log, 0, producer_id=6)
    clock.now_ms += 10 * DAY_MS
    log.roll()  # Rolling expires as well.
    assert log.producers.count == 1
    log.close()
    log = open_log(tmp_path / "log", clock)
    log.advance_high_watermark(2)
    assert (log.producers.count, log.last_stable_offset) == (1, 0)
    end_transaction(log, is_commit=False, producer_id=5, epoch=0)
    assert log.last_stable_offset == 3
    log.close()


def test_producers_that_expired_while_the_node_was_down_are_forgotten(tmp_path: Path) -> None:
    clock = Clock()
    log = open_log(tmp_path / "log", clock)
    send(log, 0)
    clock.now_ms += DAY_MS // 2
    send(log, 0, producer_id=6)
    log.close()
    clock.now_ms += DAY_MS // 2
    log = open_log(tmp_path / "log", clock)
    assert log.producers.count == 1
    assert send(log, 77).base_offset == 2
    assert send(log, 0, producer_id=6).is_duplicate
    log.close()


def test_follower_takes_a_batch_of_a_producer_that_has_expired(tmp_path: Path) -> None:
    clock = Clock()
    leader = open_log(tmp_path / "leader", clock)
    follower = open_log(tmp_path / "follower", clock)
    send(leader, 0)
    follower.append_as_follower(bytearray(content_of(leader)))
    clock.now_ms += DAY_MS
    assert follower.producers.expire() == 1
    send(leader, 1)
    follower.append_as_follower(bytearray(read_bytes(leader, 1)))
    follower.advance_high_watermark(2)
    assert send(follower, 1).is_duplicate
    assert send(follower, 2).base_offset == 2
    leader.close()
    follower.close()
