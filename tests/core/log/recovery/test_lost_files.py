"""Small files that are cut, damaged or gone cost time, never an answer."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tidelog_core.errors import OffsetOutOfRange
from tidelog_core.log.local_log import LocalLog

from tests.support.batches import batch
from tests.support.clock import NOW_MS, Clock
from tests.support.log_building import (
    append,
    content_of,
    copy_of,
    end_transaction,
    open_log,
    read_bytes,
)

SETTINGS: dict[str, Any] = {"segment_bytes": 1500, "index_interval_bytes": 150}


def write_log(directory: Path) -> LocalLog:
    """Return a log with several segments, timestamps, producers and aborted transactions."""
    log = open_log(directory, **SETTINGS)
    rng = random.Random(5)
    sequences = {1: 0, 2: 0}
    for number in range(60):
        producer_id = rng.choice((1, 2, 3, -1))
        times = [NOW_MS + number * 10 + rng.randrange(30) for _ in range(rng.randrange(1, 4))]
        options: dict[str, Any] = {}
        if producer_id in sequences:
            options = {
                "producer_id": producer_id,
                "producer_epoch": 0,
                "base_sequence": sequences[producer_id],
            }
            sequences[producer_id] += len(times)
        elif producer_id == 3:
            sequence = number
            content = batch(
                1,
                producer_id=100 + number,
                producer_epoch=0,
                base_sequence=sequence,
                is_transactional=True,
            )
            append(log, content, epoch=number // 20)
            end_transaction(log, is_commit=number % 2 == 0, producer_id=100 + number, epoch=0)
            continue
        append(log, batch(timestamps=times, count=len(times), **options), epoch=number // 20)
    return log


def answers(log: LocalLog) -> list[object]:
    """Return what the log says to every question about every offset and time."""
    end = log.log_end_offset
    said: list[object] = [content_of(log), log.leader_epochs, end, log.max_timestamp()]
    for offset in range(log.local_log_start_offset, end):
        found = log.read(offset, max_bytes=1, up_to=end, include_aborted=True)
        aborted = {t for t in found.aborted_transactions if t.first_offset <= offset}
        said += [found.start_offset, read_bytes(log, offset, max_bytes=1), aborted]
    said += [log.offset_for_timestamp(NOW_MS + time) for time in range(0, 700, 3)]
    said += [
        (s.base_offset, s.end_offset, s.size_bytes, s.max_timestamp_ms, s.leader_epochs)
        for s in log.sealed_segments()
    ]
    log.advance_high_watermark(end)
    said += [log.last_stable_offset, log.producers.count]
    return said


@pytest.fixture(scope="module")
def closed_log(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[object]]:
    directory = tmp_path_factory.mktemp("written") / "log"
    log = write_log(directory)
    said = answers(log)
    log.close()
    return directory, said


def small_files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.suffix != ".log")


def check_same_answers(directory: Path, said: list[object]) -> None:
    log = open_log(directory, **SETTINGS)
    assert answers(log) == said
    log.close()


def test_log_has_every_kind_of_small_file(closed_log: tuple[Path, list[object]]) -> None:
    kinds = {Path(name).suffix or name for name in small_files(closed_log[0])}
    expected = {".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint"}
    assert kinds == expected | {"recovery-point", "sealed-segments", "clean-shutdown"}


def test_reopened_log_gives_the_same_answers(
    tmp_path: Path, closed_log: tuple[Path, list[object]]
) -> None:
    directory, said = closed_log
    check_same_answers(copy_of(directory, tmp_path / "copy"), said)


@pytest.mark.parametrize("is_clean", [True, False])
def test_every_small_file_may_be_missing(
    tmp_path: Path, closed_log: tuple[Path, list[object]], is_clean: bool
) -> None:
    directory, said = closed_log
    for name in small_files(directory):
        copy = copy_of(directory, tmp_path / "copy")
        (copy / name).unlink()
        if not is_clean:
            (copy / "clean-shutdown").unlink(missing_ok=True)
            (copy / "recovery-point").unlink(missing_ok=True)
        check_same_answers(copy, said)


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex", ".snapshot"])
def test_segment_files_may_be_cut_at_every_byte(
    tmp_path: Path, closed_log: tuple[Path, list[object]], suffix: str
) -> None:
    directory, said = closed_log
    names = [name for name in small_files(directory) if name.endswith(suffix)]
    for name in (names[0], names[-1]):
        content = (directory / name).read_bytes()
        for size_bytes in range(0, len(content), 1 + len(content) // 30):
            copy = copy_of(directory, tmp_path / "copy")
            (copy / name).write_bytes(content[:size_bytes])
            check_same_answers(copy, said)


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex", ".snapshot"])
def test_segment_files_may_have_any_byte_wrong(
    tmp_path: Path, closed_log: tuple[Path, list[object]], suffix: str
) -> None:
    directory, said = closed_log
    name = [name for name in small_files(directory) if name.endswith(suffix)][-1]
    content = (directory / name).read_bytes()
    for position in range(0, len(content), 1 + len(content) // 30):
        copy = copy_of(directory, tmp_path / "copy")
        damaged = bytearray(content)
        damaged[position] ^= 0x11
        (copy / name).write_bytes(damaged)
        check_same_answers(copy, said)


@pytest.mark.parametrize("name", ["clean-shutdown", "recovery-point", "sealed-segments"])
def test_checkpoints_may_be_cut_at_every_byte(
    tmp_path: Path, closed_log: tuple[Path, list[object]], name: str
) -> None:
    directory, said = closed_log
    content = (directory / name).read_bytes()
    for size_bytes in range(0, len(content), 1 + len(content) // 60):
        copy = copy_of(directory, tmp_path / "copy")
        (copy / name).write_bytes(content[:size_bytes])
        check_same_answers(copy, said)


def test_damaged_leader_epochs_are_read_back_from_the_batches(
    tmp_path: Path, closed_log: tuple[Path, list[object]]
) -> None:
    directory, said = closed_log
    for content in (b"", b"1\n0 0\n", (directory / "leader-epoch-checkpoint").read_bytes()[:-1]):
        copy = copy_of(directory, tmp_path / "copy")
        (copy / "leader-epoch-checkpoint").write_bytes(content)
        check_same_answers(copy, said)
    (copy / "leader-epoch-checkpoint").unlink()
    check_same_answers(copy, said)


def test_index_files_rebuilt_after_loss_are_on_disk_for_the_tier(
    tmp_path: Path, closed_log: tuple[Path, list[object]]
) -> None:
    directory, _ = closed_log
    copy = copy_of(directory, tmp_path / "copy")
    for name in small_files(copy):
        if name.endswith((".index", ".timeindex", ".txnindex", ".snapshot")):
            (copy / name).unlink()
    log = open_log(copy, **SETTINGS)
    for sealed in log.sealed_segments():
        log.make_whole(sealed)
        base = f"{sealed.base_offset:020d}"
        for suffix in (".index", ".timeindex", ".txnindex"):
            original = directory / (base + suffix)
            rebuilt = copy / (base + suffix)
            assert rebuilt.exists() == original.exists()
            if original.exists():
                assert rebuilt.read_bytes() == original.read_bytes()
        assert sealed.producer_snapshot.exists()
    log.close()


def test_start_offsets_are_kept_over_a_restart(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log")
    base = log.sealed_segments()[2].base_offset
    log.set_tiered_up_to(base)
    assert log.evict_local(base) > 0
    log.advance_log_start_offset(5)
    crashed = copy_of(tmp_path / "log", tmp_path / "crashed")
    log.close()
    for directory in (tmp_path / "log", crashed):
        reopened = open_log(directory, **SETTINGS)
        assert reopened.log_start_offset == 5
        assert reopened.local_log_start_offset == base
        with pytest.raises(OffsetOutOfRange):
            reopened.read(base - 1, max_bytes=1, up_to=base)
        reopened.close()


def test_segments_that_came_back_after_their_eviction_are_removed(tmp_path: Path) -> None:
    """Unlinking is not fsynced: after a power cut some of the files may be there again."""
    log = write_log(tmp_path / "log")
    log.flush()
    before = copy_of(tmp_path / "log", tmp_path / "before")
    bases = [sealed.base_offset for sealed in log.sealed_segments()]
    log.set_tiered_up_to(bases[3])
    log.evict_local(bases[3])
    for path in before.glob(f"{bases[1]:020d}.*"):
        (tmp_path / "log" / path.name).write_bytes(path.read_bytes())
    log.close()
    reopened = open_log(tmp_path / "log", **SETTINGS)
    assert reopened.local_log_start_offset == bases[3]
    assert not (tmp_path / "log" / f"{bases[1]:020d}.log").exists()
    reopened.close()


def test_clean_shutdown_file_is_removed_on_open_and_spares_the_scan(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    log = open_log(directory)
    append(log, batch(3))
    log.close()
    active = directory / f"{0:020d}.log"
    content = bytearray(active.read_bytes())
    content[-1] ^= 1  # Nobody looks: the log was closed in order.
    active.write_bytes(content)
    log = open_log(directory)
    assert not (directory / "clean-shutdown").exists()
    assert log.log_end_offset == 3
    log.close()


def test_clean_shutdown_file_that_came_back_does_not_hide_a_torn_tail(tmp_path: Path) -> None:
    directory = tmp_path / "log"
    log = open_log(directory)
    append(log, batch(3))
    log.close()
    stale = (directory / "clean-shutdown").read_bytes()
    log = open_log(directory)
    append(log, batch(2))
    crashed = copy_of(directory, tmp_path / "crashed")
    log.close()
    (crashed / "clean-shutdown").write_bytes(stale)
    active = crashed / f"{0:020d}.log"
    active.write_bytes(active.read_bytes()[:-5])
    recovered = open_log(crashed)
    assert recovered.log_end_offset == 3
    recovered.close()


def test_temporary_and_orphaned_files_are_removed_on_open(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log")
    log.close()
    for name in ("recovery-point.tmp", f"{9999:020d}.index", f"{9999:020d}.snapshot"):
        (tmp_path / "log" / name).write_bytes(b"left by a crash")
    (tmp_path / "log" / "notes.txt").write_bytes(b"not ours")
    log = open_log(tmp_path / "log", Clock(), **SETTINGS)
    names = small_files(tmp_path / "log")
    assert not any("9999." in name or name.endswith(".tmp") for name in names)
    assert "notes.txt" in names
    log.close()
