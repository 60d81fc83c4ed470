"""``sealed-segments``: it is appended to, and is as right after a crash as one written whole."""

from __future__ import annotations

import errno
import os
import random
import re
import shutil
from pathlib import Path

import pytest
from tidelog_core.errors import StorageError
from tidelog_core.log.checkpoint import write_checkpoint
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.paths import LOG_SUFFIX, SEGMENT_FILE, segment_path
from tidelog_core.log.segments.seal_file import STALE_ROWS_MIN, read_seals
from tidelog_core.log.segments.segment_indexes import SealRecord

from tests.support.batches import batch
from tests.support.log_building import append, content_of, open_log

ROLLS = 10


def bytes_written() -> int:
    """Return the bytes that this process has handed to the system so far."""
    fields = Path("/proc/self/io").read_text().split()
    return int(fields[fields.index("wchar:") + 1])


def roll(log: LocalLog, count: int = 1) -> None:
    """Seal segments with a record each."""
    for _ in range(count):
        append(log, batch())
        log.roll()


def seals_in(directory: Path) -> list[SealRecord]:
    return read_seals(directory / SEGMENT_FILE)[0]


def check_rows(directory: Path, log: LocalLog) -> None:
    """Each sealed segment has one row, which says what its file is, in the order of the log."""
    seals, is_whole = read_seals(directory / SEGMENT_FILE)
    assert is_whole
    bases = [seal.base_offset for seal in seals]
    assert bases == sorted(set(bases))
    by_base = {seal.base_offset: seal for seal in seals}
    for sealed in log.sealed_segments():
        seal = by_base[sealed.base_offset]
        assert (seal.end_offset, seal.size_bytes) == (sealed.end_offset, sealed.size_bytes)
        log_file = segment_path(directory, sealed.base_offset, LOG_SUFFIX)
        assert log_file.stat().st_size == seal.size_bytes


def test_a_roll_writes_no_more_beside_many_segments_than_beside_few(tmp_path: Path) -> None:
    def written(beside: int) -> int:
        log = open_log(tmp_path / str(beside))
        roll(log, beside)
        log.flush()
        before = bytes_written()
        for _ in range(ROLLS):
            roll(log)
            log.flush()
        found = bytes_written() - before
        check_rows(tmp_path / str(beside), log)
        log.close()
        return found

    few, many = written(20), written(200)
    # Rows have more digits there; all of them again would be 9 KB a roll.
    assert many < few + 100 * ROLLS, (few, many)


def test_a_flush_leaves_what_the_file_had_and_adds_a_row(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    roll(log)
    log.flush()
    file = tmp_path / SEGMENT_FILE
    for _ in range(3):
        before = file.read_bytes()
        roll(log)
        log.flush()
        added = file.read_bytes().removeprefix(before)
        assert 0 < len(added) < 150
        assert file.read_bytes() == before + added
        check_rows(tmp_path, log)
    log.close()


def test_an_appended_row_is_on_the_disk_before_the_recovery_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    roll(log)
    log.flush()
    synced: list[str] = []
    fsync = os.fsync

    def watch(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    roll(log)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", watch)
        log.flush()
    assert SEGMENT_FILE in synced
    indexes = [at for at, name in enumerate(synced) if name.endswith("index")]
    assert max(indexes) < synced.index(SEGMENT_FILE) < synced.index("recovery-point.tmp")
    log.close()


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """Return a log that was flushed three times and not closed, and what it holds."""
    directory = tmp_path_factory.mktemp("crashed") / "log"
    log = open_log(directory)
    roll(log, 3)
    log.flush()
    for _ in range(2):
        roll(log, 2)
        log.flush()
    copy = shutil.copytree(directory, directory.parent / "copy")
    content = content_of(log)
    log.close()
    return copy, content


def test_a_file_cut_at_any_byte_has_the_rows_of_the_flushes_before(
    tmp_path: Path, crashed: tuple[Path, bytes]
) -> None:
    whole = (crashed[0] / SEGMENT_FILE).read_bytes()
    every = seals_in(crashed[0])
    assert len(every) == 7
    ends = {found.end() for found in re.finditer(rb"crc32c .{8}\n", whole)}
    file = tmp_path / SEGMENT_FILE
    counts = []
    for size_bytes in range(len(whole) + 1):
        file.write_bytes(whole[:size_bytes])
        seals, is_whole = read_seals(file)
        assert seals == every[: len(seals)]
        counts.append(len(seals))
        assert is_whole == (size_bytes in ends)
    assert counts == sorted(counts)
    assert set(counts) == {0, 3, 5, 7}


def test_whatever_byte_of_the_file_is_wrong_no_row_is(
    tmp_path: Path, crashed: tuple[Path, bytes]
) -> None:
    whole = (crashed[0] / SEGMENT_FILE).read_bytes()
    every = seals_in(crashed[0])
    file = tmp_path / SEGMENT_FILE
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x11
        file.write_bytes(damaged)
        seals, is_whole = read_seals(file)
        assert not is_whole
        assert seals == every[: len(seals)]


def test_a_log_whose_last_append_was_torn_is_as_it_was_and_its_file_is_whole_again(
    tmp_path: Path, crashed: tuple[Path, bytes]
) -> None:
    source, content = crashed
    whole = (source / SEGMENT_FILE).read_bytes()
    torn = [whole[:size_bytes] for size_bytes in range(0, len(whole), 9)]
    torn += [whole[:-100] + bytes(100), whole + bytes(50), whole + b"1\n7 7 7"]
    for number, left in enumerate(torn):
        directory = shutil.copytree(source, tmp_path / str(number))
        (directory / SEGMENT_FILE).write_bytes(left)
        log = open_log(directory)
        assert content_of(log) == content
        roll(log)
        log.flush()
        check_rows(directory, log)
        log.close()


def test_a_file_written_by_a_program_that_did_not_append_is_appended_to(
    tmp_path: Path, crashed: tuple[Path, bytes]
) -> None:
    directory = shutil.copytree(crashed[0], tmp_path / "log")
    write_checkpoint(directory / SEGMENT_FILE, seals_in(crashed[0]))
    before = (directory / SEGMENT_FILE).read_bytes()
    log = open_log(directory)
    roll(log)
    log.flush()
    assert (directory / SEGMENT_FILE).read_bytes().startswith(before)
    check_rows(directory, log)
    log.close()


def test_two_rows_of_a_segment_that_a_crash_in_a_swap_has_left_become_one(
    tmp_path: Path, crashed: tuple[Path, bytes]
) -> None:
    directory = shutil.copytree(crashed[0], tmp_path / "log")
    seals = seals_in(crashed[0])
    other = seals[2]._replace(size_bytes=seals[2].size_bytes + 1)
    write_checkpoint(directory / SEGMENT_FILE, [*seals, other])
    log = open_log(directory)
    roll(log)
    log.flush()
    check_rows(directory, log)
    log.close()


def test_the_file_of_a_log_that_is_evicted_for_ever_stays_small(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    whole_count, sizes = 0, [0]
    for _ in range(2 * STALE_ROWS_MIN + 10):
        roll(log)
        log.set_tiered_up_to(log.log_end_offset)
        log.evict_local(log.log_end_offset - 3)
        log.flush()
        sizes.append((tmp_path / SEGMENT_FILE).stat().st_size)
        whole_count += sizes[-1] <= sizes[-2]
    check_rows(tmp_path, log)
    assert max(sizes) < 150 * STALE_ROWS_MIN
    assert whole_count <= 3  # Each makes room for as many rows as it wrote, and more.
    log.close()


@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_to_a_log_each_sealed_segment_has_one_row(
    tmp_path: Path, seed: int
) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    log = open_log(tmp_path)
    for _ in range(60):
        match chance.randrange(9):
            case 0:
                log.truncate_to(chance.randint(log.local_log_start_offset, log.log_end_offset))
            case 1:
                log.advance_log_start_offset(
                    chance.randint(log.log_start_offset, log.log_end_offset)
                )
            case 2:
                log.close()
                log = open_log(tmp_path)
                log.advance_high_watermark(log.log_end_offset)
            case 3:
                pending = log.begin_flush()
                if pending is not None:
                    log.give_up_flush(pending)
            case 4:
                append(log, batch())
            case _:
                roll(log, chance.randint(1, 3))
        if chance.random() < 0.5:
            append(log, batch())
            log.flush()
            if log.sealed_segments():
                check_rows(tmp_path, log)
    log.close()


def test_an_append_that_failed_half_way_has_the_next_flush_write_the_file_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(tmp_path)
    roll(log)
    log.flush()
    pwrite = os.pwrite

    def write_half(descriptor: int, content: bytes, position: int) -> int:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == SEGMENT_FILE:
            pwrite(descriptor, content[: len(content) // 2], position)
            raise OSError(errno.ENOSPC, "no space left")
        return pwrite(descriptor, content, position)

    roll(log)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", write_half)
        with pytest.raises(StorageError, match="no space left"):
            log.flush()
    assert not log.is_offline
    assert len(seals_in(tmp_path)) == 1
    roll(log)
    log.flush()
    check_rows(tmp_path, log)
    assert len(seals_in(tmp_path)) == 3
    log.close()
