"""Whatever a crash does to the files, the log is a prefix of what was written."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.values import CorruptLog

from tests.support.batches import batch
from tests.support.clock import NOW_MS
from tests.support.log_building import append, content_of, copy_of, headers_of, open_log

ACTIVE = "00000000000000000000.log"


def write_flushed_then_unflushed(directory: Path) -> tuple[LocalLog, bytes, int]:
    """Return an open log with two flushed and three unflushed batches, its bytes, and where
    the unflushed ones begin."""
    log = open_log(directory)
    append(log, batch(2), epoch=1)
    append(log, batch(1), epoch=1)
    log.flush()
    flushed = log.size_bytes
    for count in (1, 3, 2):
        append(log, batch(count), epoch=2)
    return log, content_of(log), flushed


def check_is_prefix(directory: Path, written: bytes, at_least_bytes: int) -> int:
    """Recover the log; it must be a prefix of ``written`` and take new batches. Returns its size."""
    log = open_log(directory)
    content = content_of(log)
    assert written.startswith(content)
    assert len(content) >= at_least_bytes
    headers = headers_of(content)
    assert log.log_end_offset == (headers[-1].next_offset if headers else 0)
    assert (directory / ACTIVE).stat().st_size == len(content)
    assert log.leader_epoch == headers[-1].partition_leader_epoch
    info = append(log, batch(1), epoch=7)
    assert info.base_offset == headers[-1].next_offset
    log.close()
    reopened = open_log(directory)
    assert content_of(reopened).startswith(content)
    assert reopened.log_end_offset == info.last_offset + 1
    assert reopened.leader_epochs[-1] == (7, info.base_offset)
    reopened.close()
    return len(content)


def test_log_cut_at_every_byte_of_its_last_batches_recovers_to_a_prefix(tmp_path: Path) -> None:
    log, written, flushed = write_flushed_then_unflushed(tmp_path / "log")
    ends = batch_ends(written)
    for size_bytes in range(flushed, len(written) + 1):
        crashed = copy_of(tmp_path / "log", tmp_path / "crashed")
        with (crashed / ACTIVE).open("r+b") as file:
            file.truncate(size_bytes)
        kept = check_is_prefix(crashed, written, flushed)
        assert kept == max(end for end in ends if end <= size_bytes)
    log.close()


def test_log_with_any_unflushed_byte_changed_recovers_to_a_prefix(tmp_path: Path) -> None:
    log, written, flushed = write_flushed_then_unflushed(tmp_path / "log")
    ends = batch_ends(written)
    rng = random.Random(1)
    for position in range(flushed, len(written)):
        crashed = copy_of(tmp_path / "log", tmp_path / "crashed")
        damaged = bytearray(written)
        damaged[position] ^= 1 << rng.randrange(8)
        (crashed / ACTIVE).write_bytes(damaged)
        is_epoch = any(position - start in range(12, 16) for start in [0, *ends])
        if is_epoch:
            continue  # Only a leader epoch that goes backwards can be told from a right one.
        kept = check_is_prefix(crashed, written, flushed)
        assert kept == max(end for end in ends if end <= position)
    log.close()


def test_unflushed_leader_epoch_that_goes_backwards_is_cut(tmp_path: Path) -> None:
    log, written, flushed = write_flushed_then_unflushed(tmp_path / "log")
    damaged = bytearray(written)
    damaged[flushed + 12 : flushed + 16] = bytes(4)
    log.close()
    (tmp_path / "log" / "clean-shutdown").unlink()
    (tmp_path / "log" / "recovery-point").unlink()
    (tmp_path / "log" / ACTIVE).write_bytes(damaged)
    log = open_log(tmp_path / "log")
    assert content_of(log) == written[:flushed]
    log.close()


@pytest.mark.parametrize("size_bytes", [1, 11, 12, 60, 61, 62, 4096, 70_000])
@pytest.mark.parametrize("kind", ["zeros", "garbage", "old batches"])
def test_tail_that_was_never_written_is_cut(tmp_path: Path, kind: str, size_bytes: int) -> None:
    log, written, _ = write_flushed_then_unflushed(tmp_path / "log")
    rng = random.Random(size_bytes)
    tails = {
        "zeros": bytes(size_bytes),
        "garbage": rng.randbytes(size_bytes),
        "old batches": (written * (size_bytes // len(written) + 1))[:size_bytes],
    }
    crashed = copy_of(tmp_path / "log", tmp_path / "crashed")
    with (crashed / ACTIVE).open("ab") as file:
        file.write(tails[kind])
    assert check_is_prefix(crashed, written, len(written)) == len(written)
    log.close()


def test_torn_append_of_several_batches_keeps_the_whole_ones(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    append(log, batch(1))
    log.flush()
    start = log.size_bytes
    append(log, batch(2) + batch(1) + batch(4))
    written = content_of(log)
    ends = batch_ends(written)
    for size_bytes in range(start, len(written)):
        crashed = copy_of(tmp_path / "log", tmp_path / "crashed")
        (crashed / ACTIVE).write_bytes(written[:size_bytes])
        kept = check_is_prefix(crashed, written, start)
        assert kept == max(end for end in ends if end <= size_bytes)
    log.close()


def test_pages_of_a_write_that_reached_the_disk_out_of_order_are_cut(tmp_path: Path) -> None:
    """The file has its full size, but any run of bytes past the recovery point may be zeros."""
    log, written, flushed = write_flushed_then_unflushed(tmp_path / "log")
    ends = batch_ends(written)
    for start in range(flushed, len(written), 7):
        for size_bytes in (3, 8, 64, 200):
            crashed = copy_of(tmp_path / "log", tmp_path / "crashed")
            damaged = bytearray(written)
            lost = slice(start, min(len(written), start + size_bytes))
            damaged[lost] = bytes(lost.stop - lost.start)
            first = next((i for i in range(len(written)) if damaged[i] != written[i]), None)
            (crashed / ACTIVE).write_bytes(damaged)
            kept = check_is_prefix(crashed, written, flushed)
            if first is not None:
                assert kept == max(end for end in ends if end <= first)
    log.close()


def test_cut_below_the_recovery_point_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    log, written, flushed = write_flushed_then_unflushed(tmp_path / "log")
    for size_bytes in (0, 1, 50, flushed - 1):
        crashed = copy_of(tmp_path / "log", tmp_path / "crashed")
        (crashed / ACTIVE).write_bytes(written[:size_bytes])
        for _ in range(2):
            with pytest.raises(CorruptLog, match="flushed up to offset 3"):
                open_log(crashed)
        assert (crashed / ACTIVE).read_bytes() == written[:size_bytes]
    log.close()


def test_directory_that_lost_all_its_segments_is_an_error(tmp_path: Path) -> None:
    log, _, _ = write_flushed_then_unflushed(tmp_path / "log")
    crashed = copy_of(tmp_path / "log", tmp_path / "crashed")
    (crashed / ACTIVE).unlink()
    with pytest.raises(CorruptLog, match="no segment"):
        open_log(crashed)
    log.close()


def write_segments(directory: Path, *, flush_up_to: int | None = None) -> tuple[LocalLog, bytes]:
    """Return an open log of one batch of two records a segment, five segments, and its bytes."""
    log = open_log(directory, segment_bytes=150)
    for number in range(5):
        append(log, batch(2, timestamps=[NOW_MS + number] * 2), epoch=number)
    if flush_up_to is not None:
        log.flush(flush_up_to)
    assert len(log.sealed_segments()) == 4
    return log, content_of(log)


@pytest.mark.parametrize("flush_up_to", [None, 2, 4, 8])
@pytest.mark.parametrize("damaged", range(5))
def test_damaged_unflushed_segment_takes_all_later_ones_with_it(
    tmp_path: Path, damaged: int, flush_up_to: int | None
) -> None:
    log, written = write_segments(tmp_path / "log", flush_up_to=flush_up_to)
    name = f"{damaged * 2:020d}.log"
    segment = (tmp_path / "log" / name).read_bytes()
    cuts = (0, 1, 70, len(segment) - 1)
    for size_bytes in cuts:
        crashed = copy_of(tmp_path / "log", tmp_path / "crashed")
        (crashed / name).write_bytes(segment[:size_bytes])
        if damaged * 2 < (flush_up_to or 0):
            # Left alone or reported, never cut.
            assert (crashed / name).stat().st_size == size_bytes
            continue
        recovered = open_log(crashed, segment_bytes=150)
        assert recovered.log_end_offset == damaged * 2
        assert content_of(recovered) == written[: len(segment) * damaged]
        # The epoch whose first batch was cut may be known to start at the end.
        assert recovered.leader_epoch in (damaged - 1, damaged)
        assert append(recovered, batch(1), epoch=9).base_offset == damaged * 2
        recovered.close()
        reopened = open_log(crashed, segment_bytes=150)
        assert reopened.log_end_offset == damaged * 2 + 1
        reopened.close()
    log.close()


def test_sealed_segment_that_lost_its_last_batches_whole_leaves_no_hole(tmp_path: Path) -> None:
    """A file may come back shorter by whole batches, while later files are complete."""
    log = open_log(tmp_path / "log", segment_bytes=250)
    for _ in range(6):
        append(log, batch(1))
    first = tmp_path / "log" / ACTIVE
    sealed = first.read_bytes()
    assert len(headers_of(sealed)) == 3
    crashed = copy_of(tmp_path / "log", tmp_path / "crashed")
    (crashed / ACTIVE).write_bytes(sealed[: headers_of(sealed)[0].size_bytes * 2])
    recovered = open_log(crashed, segment_bytes=250)
    assert recovered.log_end_offset == 2
    assert [path.name for path in crashed.glob("*.log")] == [ACTIVE]
    recovered.close()
    log.close()


def test_recovered_state_equals_that_of_a_log_closed_in_order(tmp_path: Path) -> None:
    log, written = write_segments(tmp_path / "log")
    crashed = copy_of(tmp_path / "log", tmp_path / "crashed")
    log.close()
    ordered, recovered = (open_log(path, segment_bytes=150) for path in (tmp_path / "log", crashed))
    for each in (ordered, recovered):
        assert content_of(each) == written
        assert each.leader_epochs == tuple((number, number * 2) for number in range(5))
        assert each.max_timestamp() == (NOW_MS + 4, 8)
    names = [
        [(s.base_offset, s.end_offset, s.max_timestamp_ms, s.leader_epochs) for s in log_segments]
        for log_segments in (ordered.sealed_segments(), recovered.sealed_segments())
    ]
    assert names[0] == names[1]
    ordered.close()
    recovered.close()


def batch_ends(content: bytes) -> list[int]:
    """Return the end position of every batch."""
    ends = []
    position = 0
    for header in headers_of(content):
        position += header.size_bytes
        ends.append(position)
    return ends
