"""A log that begins at its end and is filled later is whole in the end, and reads nothing before."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
from tidelog_core.errors import (
    OffsetNotAvailable,
    OffsetOutOfRange,
    StorageError,
    TidelogError,
)
from tidelog_core.log import unfilled_range
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.paths import FILLING_DIRECTORY, START_OFFSET_FILE, UNFILLED_FILE
from tidelog_core.log.producers.producer_snapshot import encode_snapshot
from tidelog_core.log.unfilled_range import Unfilled
from tidelog_core.log.unified_log import UnifiedLog
from tidelog_core.log.values import LogRead

from tests.core.log.power_cuts import Disk, watched
from tests.support.batches import batch
from tests.support.log_building import (
    aborted_in,
    append,
    content_of,
    copy_of,
    end_transaction,
    fill,
    headers_of,
    open_log,
    read_bytes,
    start_unfilled,
)

SEGMENT_BYTES, TURNS = 1_500, 60
FEW = {"turns": 14, "start_batch": 4}


class Heir:
    """A leader's log, and an heir's that begins at its end.

    The tier has everything below ``start``, the chains up to ``end``.
    """

    def __init__(
        self, folder: Path, *, seed: int = 0, start_batch: int = 8, turns: int = TURNS
    ) -> None:
        self.folder = folder
        self.leader = open_log(folder / "leader", segment_bytes=SEGMENT_BYTES)
        _write(self.leader, Random(seed), turns)
        self.headers = headers_of(content_of(self.leader))
        self.start = self.headers[start_batch].base_offset
        self.end = self.headers[-6].base_offset
        self.log = open_log(folder / "heir", segment_bytes=SEGMENT_BYTES)
        self.take(self.log, 0, self.start)
        self.epochs_at_start = self.log.leader_epochs
        self.snapshot = encode_snapshot(self.log.producers.state)

    def take(self, log: LocalLog, start: int, end: int) -> None:
        """Append the leader's batches of these offsets to a log."""
        while start < end:
            chunk = read_bytes(self.leader, start, up_to=end)
            log.append_as_follower(memoryview(bytearray(chunk)))
            start = headers_of(chunk)[-1].next_offset
        log.advance_high_watermark(log.log_end_offset)

    def begin(self) -> None:
        """Begin at the end, and take the records behind it."""
        epochs = [entry for entry in self.leader.leader_epochs if entry[1] < self.end]
        producers = self.leader.producers.at(self.end)
        producers.advance_high_watermark(self.end)
        start_unfilled(self.log, self.end, leader_epochs=epochs, producers=producers)

    def begin_and_refill(self) -> LocalLog:
        """Begin at the end, and return a log beside it that has all that is missing."""
        self.begin()
        self.take(self.log, self.end, self.leader.log_end_offset)
        side = self.side()
        self.take(side, self.start, self.end)
        return side

    def side(self) -> LocalLog:
        return self.log.begin_filling(
            leader_epochs=self.epochs_at_start, producer_snapshot=self.snapshot
        )

    def expected(self, start: int) -> bytes:
        content = b""
        while start < self.leader.log_end_offset:
            chunk = read_bytes(self.leader, start)
            content += chunk
            start = headers_of(chunk)[-1].next_offset
        return content

    def assert_whole(self, log: LocalLog, start: int) -> None:
        assert log.unfilled is None
        assert log.local_log_start_offset == start
        assert content_of(log) == self.expected(start)
        assert log.leader_epochs == self.leader.leader_epochs
        assert log.log_end_offset == self.leader.log_end_offset
        assert log.last_stable_offset == self.leader.last_stable_offset
        assert encode_snapshot(log.producers.state) == encode_snapshot(self.leader.producers.state)
        offsets = [one.base_offset for one in self.headers if one.base_offset >= start]
        # What one read names depends on where segments were rolled, what all name does not.
        found, wanted = (
            {one for offset in offsets for one in aborted_in(each, offset)}
            for each in (log, self.leader)
        )
        assert found == wanted
        for sealed in log.sealed_segments():
            log.make_whole(sealed)

    def close(self) -> None:
        self.leader.close()
        self.log.close()


@pytest.fixture
def heir(tmp_path: Path) -> Heir:
    return Heir(tmp_path)


def _write(log: LocalLog, chance: Random, turns: int) -> None:
    """Write batches of nobody, of idempotent producers, and transactions of which some abort."""
    log.assign_leader_epoch(1)
    sequences = dict.fromkeys(range(100, 104), 0)
    for turn in range(turns):
        if turn in (turns // 3, 3 * turns // 4):
            log.assign_leader_epoch(log.leader_epoch + 2)
        epoch = log.leader_epoch
        producer_id = chance.choice([*sequences])
        append(
            log, batch(chance.randint(1, 3), value_size_bytes=chance.randint(1, 80)), epoch=epoch
        )
        content = batch(
            1,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequences[producer_id],
            is_transactional=True,
        )
        append(log, content, epoch=epoch)
        sequences[producer_id] += 1
        if chance.random() < 0.4:
            end_transaction(log, is_commit=chance.random() < 0.5, producer_id=producer_id, epoch=0)
        number = turn // 2
        if turn % 2:
            content = batch(1, producer_id=7, producer_epoch=0, base_sequence=number)
            append(log, content, epoch=epoch)


@pytest.mark.parametrize("seed", range(6))
def test_a_filled_log_is_that_of_its_leader(tmp_path: Path, seed: int) -> None:
    heir = Heir(tmp_path, seed=seed, start_batch=Random(seed).randrange(60))
    log = heir.log
    heir.begin()
    assert log.unfilled == (heir.start, heir.end)
    assert log.local_log_start_offset == log.log_end_offset == log.high_watermark == heir.end
    heir.take(log, heir.end, heir.leader.log_end_offset)
    side = heir.side()
    heir.take(side, heir.start, heir.end)
    fill(log, side)
    heir.assert_whole(log, heir.start)
    assert not (log.directory / FILLING_DIRECTORY).exists()
    assert log.recovery_point <= heir.start
    # And it is a log like any other.
    killed = copy_of(log.directory, tmp_path / "killed")
    log.close()
    for directory in (killed, log.directory):
        again = open_log(directory, segment_bytes=SEGMENT_BYTES)
        again.advance_high_watermark(again.log_end_offset)
        heir.assert_whole(again, heir.start)
        again.close()
    heir.leader.close()


def test_it_takes_records_while_it_is_filled_and_after(heir: Heir) -> None:
    heir.begin()
    side = heir.side()
    middle = heir.headers[-3].base_offset
    heir.take(heir.log, heir.end, middle)
    heir.take(side, heir.start, heir.end)
    fill(heir.log, side)
    heir.take(heir.log, middle, heir.leader.log_end_offset)
    heir.assert_whole(heir.log, heir.start)
    heir.close()


def test_a_retry_of_what_is_missing_is_known(heir: Heir) -> None:
    """The producer's last batches are in records that the log does not have yet."""
    for number in range(30, 33):
        content = batch(1, producer_id=7, producer_epoch=0, base_sequence=number)
        append(heir.leader, content, epoch=heir.leader.leader_epoch)
    heir.end = heir.leader.log_end_offset
    heir.begin()
    heir.log.assign_leader_epoch(9)
    again = batch(1, producer_id=7, producer_epoch=0, base_sequence=31)
    assert heir.log.append_as_leader(again, leader_epoch=9).is_duplicate
    heir.close()


def test_a_transaction_that_is_open_where_the_log_begins_ends_in_it(heir: Heir) -> None:
    opened = {"producer_id": 500, "producer_epoch": 0, "base_sequence": 0}
    append(heir.leader, batch(1, **opened, is_transactional=True), epoch=heir.leader.leader_epoch)
    first = heir.leader.log_end_offset - 1
    append(heir.leader, batch(1), epoch=heir.leader.leader_epoch)
    heir.end = heir.leader.log_end_offset
    heir.begin()
    assert heir.log.last_stable_offset <= first
    end_transaction(heir.leader, is_commit=False, producer_id=500, epoch=0)
    heir.take(heir.log, heir.end, heir.leader.log_end_offset)
    side = heir.side()
    heir.take(side, heir.start, heir.end)
    fill(heir.log, side)
    heir.assert_whole(heir.log, heir.start)
    assert (500, first) in aborted_in(heir.log, first, heir.log.log_end_offset)
    heir.close()


async def test_what_is_missing_is_not_skipped_by_any_reader(heir: Heir) -> None:
    heir.begin()
    log = heir.log
    unified = UnifiedLog(log, None)
    for offset in (heir.start, heir.end - 1):
        assert log.lacks(offset)
        with pytest.raises(OffsetNotAvailable):
            unified.read(offset, max_bytes=100, up_to=log.log_end_offset)
        with pytest.raises(OffsetOutOfRange):
            log.read(offset, max_bytes=100, up_to=log.log_end_offset)
    assert not log.lacks(heir.start - 1)
    assert not log.lacks(heir.end)

    async def search(work: object) -> None:
        raise AssertionError("the local log alone does not know")

    with pytest.raises(OffsetNotAvailable):
        await unified.max_timestamp(search)  # type: ignore[arg-type]
    with pytest.raises(OffsetNotAvailable):
        await unified.offset_for_timestamp(0, search)  # type: ignore[arg-type]
    assert log.segments_to_erase(heir.start) is None
    assert log.segments_to_clean() == ()
    assert log.evict_local(heir.end) == 0
    heir.close()


def read_all(unified: UnifiedLog, start: int, up_to: int) -> tuple[bytes, set[tuple[int, int]]]:
    """Return the bytes from the offset on, and the aborted transactions that reads name."""
    content, aborted = b"", set()
    while start < up_to:
        found = unified.read(start, max_bytes=2**30, up_to=up_to, include_aborted=True)
        assert isinstance(found, LogRead)
        assert found.slice is not None
        assert (found.log_end_offset, found.high_watermark) == (
            unified.local.log_end_offset,
            unified.local.high_watermark,
        )
        part = os.pread(found.slice.file.fileno(), found.slice.size_bytes, found.slice.position)
        content += part
        aborted |= {(one.producer_id, one.first_offset) for one in found.aborted_transactions}
        start = headers_of(part)[-1].next_offset
    return content, aborted


@pytest.mark.parametrize("seed", range(6))
def test_readers_get_what_has_been_filled_so_far_and_nothing_of_an_open_transaction(
    tmp_path: Path, seed: int
) -> None:
    heir = Heir(tmp_path, seed=seed, start_batch=Random(seed).randrange(40))
    heir.begin()
    heir.take(heir.log, heir.end, heir.leader.log_end_offset)
    unified, leader = UnifiedLog(heir.log, None), UnifiedLog(heir.leader, None)
    side = heir.side()
    at = heir.start
    missing = [one for one in heir.headers if heir.start < one.next_offset <= heir.end]
    for one in (*missing[::5], missing[-1]):
        heir.take(side, at, one.next_offset)
        at = one.next_offset
        stable = side.last_stable_offset
        assert stable <= at
        assert heir.log.lacks(stable)
        with pytest.raises(OffsetNotAvailable):
            unified.read(stable, max_bytes=100, up_to=heir.log.log_end_offset)
        if stable > heir.start:
            assert not heir.log.lacks(heir.start)
            found = read_all(unified, heir.start, stable)
            assert found == read_all(leader, heir.start, stable)
    held = unified.read(heir.start, max_bytes=400, up_to=heir.end)
    assert isinstance(held, LogRead)
    fill(heir.log, side)
    heir.assert_whole(heir.log, heir.start)
    if held.slice is not None:  # What is being sent stays readable.
        part = os.pread(held.slice.file.fileno(), held.slice.size_bytes, held.slice.position)
        assert part == heir.expected(heir.start)[: len(part)]
    heir.close()


def test_a_log_beside_that_is_given_up_is_not_read(heir: Heir) -> None:
    heir.begin()
    side = heir.side()
    heir.take(side, heir.start, heir.end)
    assert not heir.log.lacks(heir.start)
    side.take_offline()
    assert heir.log.lacks(heir.start)
    with pytest.raises(OffsetNotAvailable):
        UnifiedLog(heir.log, None).read(heir.start, max_bytes=100, up_to=heir.end)
    side.close()
    heir.close()


def test_a_log_start_beyond_what_is_missing_ends_the_filling(heir: Heir) -> None:
    heir.begin()
    heir.take(heir.log, heir.end, heir.leader.log_end_offset)
    side = heir.side()
    heir.log.advance_log_start_offset(heir.end)
    assert heir.log.unfilled is None
    left = {UNFILLED_FILE, FILLING_DIRECTORY} & {one.name for one in heir.log.directory.iterdir()}
    assert not left
    side.take_offline()
    heir.close()


def test_an_opened_log_is_not_whole_although_what_it_lacked_was_deleted_since(heir: Heir) -> None:
    """Its producers are those of the deleted records, and need not be on the disk."""
    heir.begin()
    heir.take(heir.log, heir.end, heir.leader.log_end_offset)
    heir.log.close()
    log = open_log(heir.log.directory, segment_bytes=SEGMENT_BYTES, log_start_offset=heir.end)
    assert log.unfilled == (heir.start, heir.end)
    log.truncate_fully_and_start_at(heir.end)  # Whoever leads or follows restarts it.
    assert log.unfilled is None
    assert not (log.directory / UNFILLED_FILE).exists()
    log.close()
    heir.leader.close()


def test_nothing_is_compacted_before_all_is_there(heir: Heir) -> None:
    for producer_id, entry in tuple(heir.leader.producers.state.items()):
        if entry.transaction_first_offset >= 0:
            end_transaction(heir.leader, is_commit=True, producer_id=producer_id, epoch=0)
    heir.begin()
    heir.take(heir.log, heir.end, heir.leader.log_end_offset)
    heir.log.roll()
    heir.log.flush()
    assert heir.log.segments_to_clean() == ()
    side = heir.side()
    heir.take(side, heir.start, heir.end)
    fill(heir.log, side)
    heir.log.flush()
    assert heir.log.segments_to_clean()[0].base_offset == heir.start
    heir.close()


def test_a_log_start_in_what_is_missing_removes_what_is_below(heir: Heir) -> None:
    heir.begin()
    side = heir.side()
    deleted = heir.headers[-20].base_offset
    heir.log.advance_log_start_offset(deleted)
    heir.take(heir.log, heir.end, heir.leader.log_end_offset)
    heir.take(side, heir.start, heir.end)
    fill(heir.log, side)
    assert heir.log.local_log_start_offset == deleted
    found = read_bytes(heir.log, deleted)
    assert found == heir.expected(deleted)[: len(found)]
    heir.close()


def test_a_truncation_ends_the_filling_unless_it_is_above(heir: Heir) -> None:
    heir.begin()
    heir.take(heir.log, heir.end, heir.leader.log_end_offset)
    heir.log.truncate_to(heir.headers[-2].base_offset)
    assert heir.log.unfilled == (heir.start, heir.end)
    heir.log.truncate_fully_and_start_at(heir.start)
    assert heir.log.unfilled is None
    assert not (heir.log.directory / UNFILLED_FILE).exists()
    heir.close()


def test_what_the_tier_has_by_now_need_not_be_filled(heir: Heir) -> None:
    heir.begin()
    heir.side().take_offline()
    heir.log.forget_unfilled()
    assert heir.log.unfilled is None
    assert not (heir.log.directory / FILLING_DIRECTORY).exists()
    heir.close()


# -- in steps --


def test_the_logs_thread_waits_for_no_flush_of_the_disk(
    heir: Heir, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = heir.begin_and_refill()
    threads, fsync = list[int](), os.fsync

    def watch(descriptor: int) -> None:
        threads.append(threading.get_ident())
        fsync(descriptor)

    with monkeypatch.context() as patched, ThreadPoolExecutor(1) as executor:
        patched.setattr(os, "fsync", watch)
        pending = heir.log.begin_fill(side)
        while not pending.is_done:
            executor.submit(pending.run).result()
            heir.log.go_on_filling(pending)
    assert len(threads) >= 6
    assert threading.get_ident() not in threads
    heir.assert_whole(heir.log, heir.start)
    heir.close()


def test_it_takes_records_and_rolls_between_the_steps(heir: Heir) -> None:
    heir.begin()
    side = heir.side()
    heir.take(side, heir.start, heir.end)
    pending, at = heir.log.begin_fill(side), heir.end
    left = [one.next_offset for one in heir.headers if one.next_offset > heir.end]
    while not pending.is_done:
        heir.take(heir.log, at, left[0])
        at = left.pop(0)
        heir.log.roll()
        pending.run()
        heir.take(heir.log, at, left[0])
        at = left.pop(0)
        heir.log.go_on_filling(pending)
    heir.take(heir.log, at, heir.leader.log_end_offset)
    heir.assert_whole(heir.log, heir.start)
    heir.log.flush()
    killed = copy_of(heir.log.directory, heir.folder / "killed")
    again = reopened(killed)
    heir.assert_whole(again, heir.start)
    again.close()
    heir.close()


STEPS = 4
CHANGES: dict[str, Callable[[Heir], object]] = {
    "flush": lambda heir: heir.log.flush(),
    "truncate": lambda heir: heir.log.truncate_to(heir.headers[-2].base_offset),
    "begin again": lambda heir: heir.log.truncate_fully_and_start_at(heir.start),
    "delete records": lambda heir: heir.log.advance_log_start_offset(heir.headers[-20].base_offset),
    "delete all of them": lambda heir: heir.log.advance_log_start_offset(heir.end),
    "close": lambda heir: heir.log.close(),
    "give up": lambda heir: heir.log.take_offline(),
    "delete the log": lambda heir: heir.log.delete(),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("step", range(STEPS))
def test_whatever_changes_the_logs_files_finishes_the_fill_first(
    heir: Heir, change: str, step: int
) -> None:
    side = heir.begin_and_refill()
    pending = heir.log.begin_fill(side)
    for number in range(step):
        if number % 2:
            heir.log.go_on_filling(pending)
        else:
            pending.run()
    CHANGES[change](heir)
    if change in ("give up", "delete the log"):
        pending.run()
        with pytest.raises(TidelogError):
            heir.log.go_on_filling(pending)
        if change == "give up":  # A crash leaves the same.
            left = (heir.start, heir.end) if step < STEPS - 1 else None
            assert assert_honest(heir, heir.log.directory) == left
        heir.leader.close()
        return
    assert pending.is_done
    pending.run()
    heir.log.go_on_filling(pending)
    if change == "close":
        again = reopened(heir.log.directory)
        heir.assert_whole(again, heir.start)
        again.close()
    else:
        assert heir.log.unfilled is None
        start = heir.log.local_log_start_offset
        found = content_of(heir.log)
        assert found == heir.expected(start)[: len(found)]
        assert not (heir.log.directory / UNFILLED_FILE).exists()
        heir.log.close()
    heir.leader.close()


@pytest.mark.parametrize("step", range(STEPS))
@pytest.mark.parametrize("end", ["close", "delete"])
def test_a_fill_changes_no_files_after_the_end_of_a_log_whose_disk_has_failed(
    heir: Heir, monkeypatch: pytest.MonkeyPatch, step: int, end: str
) -> None:
    """Another log may have them by then, or one of the same name."""
    side = heir.begin_and_refill()
    pending = heir.log.begin_fill(side)
    for number in range(step):
        if number % 2:
            heir.log.go_on_filling(pending)
        else:
            pending.run()

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", fail)
        with pytest.raises(StorageError):
            append(heir.log, batch(1), epoch=heir.log.leader_epoch)
    assert heir.log.is_offline
    if end == "close":
        heir.log.close()
    else:
        heir.log.delete()
        heir.log.directory.mkdir()
    before = files_in(heir.log.directory)
    pending.run()
    with pytest.raises(StorageError):
        heir.log.go_on_filling(pending)
    pending.run()
    assert files_in(heir.log.directory) == before
    heir.leader.close()


def files_in(folder: Path) -> dict[Path, bytes]:
    return {one: one.read_bytes() for one in folder.rglob("*") if one.is_file()}


def test_a_failure_is_found_by_who_fills_although_another_change_came_upon_it(
    heir: Heir, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = heir.begin_and_refill()
    pending = heir.log.begin_fill(side)
    with monkeypatch.context() as patched:
        fail_at(patched, "rename", START_OFFSET_FILE)
        heir.log.flush()
    assert heir.log.unfilled == (heir.start, heir.end)
    with pytest.raises(StorageError, match="No space"):
        heir.log.go_on_filling(pending)
    fill(heir.log, _refilled(heir))
    heir.assert_whole(heir.log, heir.start)
    heir.close()


def _refilled(heir: Heir) -> LocalLog:
    side = heir.side()
    heir.take(side, heir.start, heir.end)
    return side


# -- crashes --


def reopened(directory: Path) -> LocalLog:
    log = open_log(directory, segment_bytes=SEGMENT_BYTES)
    log.advance_high_watermark(log.log_end_offset)
    return log


def assert_honest(heir: Heir, directory: Path) -> Unfilled | None:
    """Open what a crash left: all it has is right, and it says if anything may be missing."""
    log = reopened(directory)
    start = log.local_log_start_offset
    content = content_of(log)
    assert heir.leader.log_end_offset >= log.log_end_offset
    whole = heir.expected(start) if start < heir.leader.log_end_offset else b""
    assert content == whole[: len(content)]
    unfilled = log.unfilled
    assert unfilled is not None or start <= heir.start
    assert not (directory / FILLING_DIRECTORY).exists()
    # Whoever leads or follows restarts it where the tier ends.
    log.truncate_fully_and_start_at(
        heir.start, leader_epochs=heir.epochs_at_start, producer_snapshot=heir.snapshot
    )
    heir.take(log, heir.start, heir.leader.log_end_offset)
    heir.assert_whole(log, heir.start)
    log.close()
    return unfilled


def test_a_crash_before_the_fill_shows_that_records_are_missing(heir: Heir) -> None:
    heir.begin()
    killed = [copy_of(heir.log.directory, heir.folder / "begun")]
    heir.take(heir.log, heir.end, heir.leader.log_end_offset)
    side = heir.side()
    killed.append(copy_of(heir.log.directory, heir.folder / "empty"))
    heir.take(side, heir.start, heir.headers[-30].base_offset)
    killed.append(copy_of(heir.log.directory, heir.folder / "half"))
    heir.take(side, heir.headers[-30].base_offset, heir.end)
    killed.append(copy_of(heir.log.directory, heir.folder / "whole"))
    for directory in killed:
        assert assert_honest(heir, directory) == (heir.start, heir.end)
    heir.close()


def test_a_stop_in_order_shows_it_too(heir: Heir) -> None:
    heir.begin()
    heir.take(heir.log, heir.end, heir.leader.log_end_offset)
    heir.log.close()
    assert assert_honest(heir, heir.log.directory) == (heir.start, heir.end)
    heir.leader.close()


def test_an_heir_waits_for_two_flushes_of_the_disk_before_it_leads(
    heir: Heir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the mark. A hundred partitions may have to begin so, one after the other."""
    count, fsync = 0, os.fsync

    def counted(descriptor: int) -> None:
        nonlocal count
        count += 1
        fsync(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", counted)
        heir.begin()
        assert count == 2
        heir.side().take_offline()
        assert count == 2
    heir.close()


def test_a_power_cut_at_any_flush_of_the_disk_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for phase in ("begin", "fill"):
        heir = Heir(tmp_path / phase, **FEW)
        heir.log.flush()
        side = None if phase == "begin" else heir.begin_and_refill()
        disk = durable_disk(heir.log.directory)
        cuts = []

        def cut_power(cuts: list[Path] = cuts, disk: Disk = disk, heir: Heir = heir) -> None:
            cut = disk.after_power_cut(heir.folder / f"cut-{len(cuts)}")
            (cut / FILLING_DIRECTORY).unlink(missing_ok=True)  # Its files are thrown away.
            cuts.append(cut)

        with watched(monkeypatch, disk, cut_power):
            if side is None:
                heir.begin()
            else:
                fill(heir.log, side)
            cut_power()
        for directory in cuts:
            assert_honest(heir, directory)
        assert len(cuts) >= (3 if side is None else 6)
        heir.close()


def durable_disk(directory: Path) -> Disk:
    """Return the disk with all files of the directory as they are now."""
    disk = Disk(directory)
    for path in directory.iterdir():
        if path.is_file():
            disk.names[path.name] = path.stat().st_ino
            disk.contents[path.stat().st_ino] = path.read_bytes()
    return disk


@pytest.mark.parametrize("end", ["filled", "tiered", "deleted", "begun again"])
def test_a_power_cut_after_the_filling_has_ended_forgets_no_producer_and_no_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """The log is taken for whole then: what comes before its start cannot be read again."""
    heir = Heir(tmp_path, **FEW)
    log = heir.log
    log.flush()
    disk = durable_disk(log.directory)
    with watched(monkeypatch, disk, lambda: None):
        heir.begin()
        heir.take(log, heir.end, heir.leader.log_end_offset)
        if end == "filled":
            side = heir.side()
            heir.take(side, heir.start, heir.end)
            fill(log, side)
        elif end == "tiered":
            log.set_tiered_up_to(heir.end)
            log.forget_unfilled()
        elif end == "deleted":
            log.advance_log_start_offset(heir.end)
        else:
            log.truncate_fully_and_start_at(
                heir.start,
                log_start_offset=0,
                leader_epochs=heir.epochs_at_start,
                producer_snapshot=heir.snapshot,
            )
        cut = disk.after_power_cut(tmp_path / "cut")
    (cut / FILLING_DIRECTORY).unlink(missing_ok=True)  # Its files are thrown away.
    again = reopened(cut)
    assert again.unfilled is None
    start = heir.start if end in ("filled", "begun again") else heir.end
    assert again.local_log_start_offset == start
    expected = heir.leader.producers.at(again.log_end_offset)
    expected.advance_high_watermark(again.log_end_offset)
    assert encode_snapshot(again.producers.state) == encode_snapshot(expected)
    assert again.leader_epochs == tuple(
        one for one in log.leader_epochs if one[1] < again.log_end_offset or one[1] == start
    )
    again.close()
    heir.close()


def test_a_mark_without_a_beginning_leaves_the_log_as_it_was(heir: Heir) -> None:
    mark = heir.log.mark_unfilled(heir.end)
    mark.run()
    assert (heir.log.directory / UNFILLED_FILE).exists()
    mark.close()
    with pytest.raises(OSError, match="descriptor"):  # It comes too late.
        mark.run()
    killed = copy_of(heir.log.directory, heir.folder / "killed")
    again = reopened(killed)
    assert again.unfilled is None
    assert again.log_end_offset == heir.start
    again.close()
    heir.close()


def test_the_mark_of_a_log_that_was_deleted_is_not_in_another_one_of_its_name(heir: Heir) -> None:
    """It would have that one thrown away."""
    mark = heir.log.mark_unfilled(heir.end)
    heir.log.begin_deletion()
    other = open_log(heir.log.directory, segment_bytes=SEGMENT_BYTES)
    with pytest.raises(OSError, match="descriptor"):
        mark.run()
    mark.close()
    assert not (other.directory / UNFILLED_FILE).exists()
    other.close()
    heir.leader.close()


@pytest.mark.parametrize("ending", ["close", "take_offline"])
def test_the_mark_of_a_log_that_has_ended_is_not_that_of_the_next_one(
    heir: Heir, ending: str
) -> None:
    """The partition has left the node and returned, or the log was opened again after an error.

    The thread that writes the first mark is slow.
    """
    first = heir.log.mark_unfilled(heir.end)
    first.run()
    getattr(heir.log, ending)()
    assert not (heir.log.directory / UNFILLED_FILE).exists()  # The next log would be thrown away.
    heir.log.close()
    again = reopened(heir.log.directory)
    second = again.mark_unfilled(heir.end)
    second.run()
    with pytest.raises(OSError, match="descriptor"):
        first.run()
    first.close()
    assert (again.directory / UNFILLED_FILE).exists()
    second.close()
    again.close()
    heir.leader.close()


class Stop(Exception):
    """The process is killed."""


def crashing(monkeypatch: pytest.MonkeyPatch, at: int, work: Callable[[], object]) -> bool:
    """Run the work up to its n-th change of the disk; return whether it was cut off."""
    count = 0

    def step(before: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            nonlocal count
            count += 1
            if count > at:
                raise Stop
            return before(*args, **kwargs)

        return call

    with monkeypatch.context() as patched:
        for name in ("replace", "unlink", "write_bytes"):
            patched.setattr(Path, name, step(getattr(Path, name)))
        patched.setattr(unfilled_range.shutil, "rmtree", step(shutil.rmtree))
        try:
            work()
        except Stop:
            return True
    return False


def test_a_crash_at_any_step_of_the_beginning_or_the_fill_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, phases = 0, 0
    while True:
        heir = Heir(tmp_path / f"at-{at}", **FEW)
        is_cut = crashing(monkeypatch, at, heir.begin)
        killed = copy_of(heir.log.directory, heir.folder / "killed")
        if not is_cut:
            break
        assert_honest(heir, killed)
        heir.leader.close()
        at, phases = at + 1, phases + 1
    assert phases > 3
    at = 0
    while True:
        heir = Heir(tmp_path / f"fill-{at}", **FEW)
        side = heir.begin_and_refill()
        is_cut = crashing(monkeypatch, at, lambda heir=heir, side=side: fill(heir.log, side))  # type: ignore[misc]
        killed = copy_of(heir.log.directory, heir.folder / "killed")
        unfilled = assert_honest(heir, killed)
        heir.leader.close()
        if not is_cut:
            assert unfilled is None
            break
        at += 1
    assert at > 10


def test_a_crash_within_a_write_of_the_beginning_leaves_a_log_that_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log begins where the tier ends, and only a file says so once its segments are gone."""
    write, left = Path.write_bytes, 0

    def cut(path: Path, content: bytes) -> int:
        nonlocal left
        left -= 1
        if left >= 0:
            return write(path, content)
        write(path, b"")
        raise Stop

    for at in range(4):
        heir = Heir(tmp_path / f"at-{at}", **FEW)
        heir.log.truncate_fully_and_start_at(
            heir.start, leader_epochs=heir.epochs_at_start, producer_snapshot=heir.snapshot
        )
        left = at
        with monkeypatch.context() as patched:
            patched.setattr(Path, "write_bytes", cut)
            with pytest.raises(Stop):
                heir.begin()
        killed = copy_of(heir.log.directory, heir.folder / "killed")
        assert assert_honest(heir, killed) == (heir.start, heir.end)
        heir.leader.close()


def test_a_marker_that_cannot_be_read_says_that_everything_is_missing(heir: Heir) -> None:
    heir.begin()
    heir.take(heir.log, heir.end, heir.leader.log_end_offset)
    killed = copy_of(heir.log.directory, heir.folder / "killed")
    (killed / UNFILLED_FILE).write_bytes(b"\0" * 20)
    log = reopened(killed)
    assert log.unfilled is not None
    assert log.lacks(heir.start)
    log.close()
    heir.close()


def test_a_disk_that_fails_in_the_fill_leaves_the_log_unfilled(
    heir: Heir, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = heir.begin_and_refill()

    def fail(*_: object) -> None:
        raise OSError(5, "input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", fail)
        with pytest.raises(StorageError):
            fill(heir.log, side)
    assert heir.log.unfilled == (heir.start, heir.end)
    assert heir.log.local_log_start_offset == heir.end
    killed = copy_of(heir.log.directory, heir.folder / "killed")
    assert assert_honest(heir, killed) == (heir.start, heir.end)
    heir.close()


def test_a_beginning_whose_mark_is_not_durable_leaves_the_log_as_it_was(
    heir: Heir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mark that stayed would have the log thrown away when it is next opened."""
    mark = heir.log.directory / unfilled_range.UNFILLED_FILE

    def fail_with_mark(_: int) -> None:
        if mark.exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail_with_mark)
        with pytest.raises(OSError, match="Input/output"):
            heir.begin()
    assert heir.log.unfilled is None
    assert heir.log.log_end_offset == heir.start
    assert not mark.exists()
    heir.close()


def fail_at(
    patched: pytest.MonkeyPatch, change: str, name: str, error_number: int = errno.ENOSPC
) -> None:
    """Have this change of the files that are named so fail."""
    before = getattr(Path, change)

    def call(path: Path, *args: object, **kwargs: object) -> object:
        if path.name.startswith(name):
            raise OSError(error_number, os.strerror(error_number))
        return before(path, *args, **kwargs)

    patched.setattr(Path, change, call)


def test_a_disk_that_was_full_at_the_logs_start_is_filled_by_the_next_try(
    heir: Heir, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = heir.begin_and_refill()
    with monkeypatch.context() as patched:
        fail_at(patched, "rename", START_OFFSET_FILE)
        with pytest.raises(StorageError):
            fill(heir.log, side)
    assert heir.log.unfilled == (heir.start, heir.end)
    assert heir.log.local_log_start_offset == heir.end
    assert not heir.log.is_filled
    side = heir.side()
    heir.take(side, heir.start, heir.end)
    fill(heir.log, side)
    heir.assert_whole(heir.log, heir.start)
    heir.close()


def test_what_a_failed_fill_has_moved_is_not_left_in_the_log(
    heir: Heir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next fill rolls at other offsets."""
    side = heir.begin_and_refill()
    with monkeypatch.context() as patched:
        fail_at(patched, "rename", START_OFFSET_FILE)
        with pytest.raises(StorageError):
            fill(heir.log, side)
    heir.log.update_config(dataclasses.replace(heir.log.config, segment_bytes=4 * SEGMENT_BYTES))
    side = heir.side()
    heir.take(side, heir.start, heir.end)
    fill(heir.log, side)
    heir.log.flush()
    heir.log.close()
    again = reopened(heir.log.directory)
    heir.assert_whole(again, heir.start)
    again.close()
    heir.leader.close()


def test_a_marker_that_cannot_be_removed_is_removed_later(
    heir: Heir, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = heir.begin_and_refill()
    with monkeypatch.context() as patched:
        fail_at(patched, "unlink", UNFILLED_FILE, errno.EIO)
        with pytest.raises(StorageError):
            fill(heir.log, side)
    assert heir.log.unfilled == (heir.start, heir.end)
    assert heir.log.is_filled
    heir.log.forget_unfilled()
    heir.assert_whole(heir.log, heir.start)
    heir.close()
