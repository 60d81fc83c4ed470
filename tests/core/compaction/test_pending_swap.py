"""What else happens to a log while a compacted segment is on its way into its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest
from tidelog_core.compaction.cleaner import build_offset_map, clean_groups, plan_cleaning
from tidelog_core.errors import StorageError
from tidelog_core.log.cleaned_segments import PendingSwap
from tidelog_core.log.cleaning import CleaningSource
from tidelog_core.log.local_log import LocalLog

from tests.support.local_logs import (
    AMPLE_BYTES,
    SETTINGS,
    append_batches,
    batches_of,
    clean,
    committed_records_of,
    offsets_of,
    sealed_log,
)
from tests.support.log_building import copy_of, open_log
from tests.support.random_logs import keyed

KEYS = [b"z", *[b"a"] * 19, b"b"]
LEFT = [0, 19, 20]  # of their offsets
STEPS_MAX = 5


def begun(directory: Path) -> tuple[LocalLog, CleaningSource, PendingSwap]:
    """Return a log of which all sealed segments are about to become one."""
    log = sealed_log(directory, keyed(*KEYS).batches)
    log.update_config(dataclasses.replace(log.config, segment_bytes=4_000))
    source = log.begin_cleaning(log.segments_to_clean())
    task = plan_cleaning(source, log.config, deletes=None, map_bytes_max=AMPLE_BYTES)
    latest = build_offset_map(task, lambda _: None)
    cleaned = next(clean_groups(task, latest, lambda _: None)).cleaned
    assert cleaned is not None
    assert len(cleaned.replaced) > 1
    return log, source, log.begin_replacing(source, cleaned)


def step(log: LocalLog, swap: PendingSwap) -> None:
    """Do one step as a node does: what blocks on another thread."""
    worker = Thread(target=swap.run)
    worker.start()
    worker.join()
    log.go_on_replacing(swap)


def reopened(log: LocalLog, tmp_path: Path) -> LocalLog:
    """Return the log as a crash leaves it now, opened."""
    found = open_log(copy_of(log.directory, tmp_path / "crashed"), **SETTINGS)
    found.advance_high_watermark(found.log_end_offset)
    return found


def append(log: LocalLog) -> None:
    append_batches(log, keyed(*KEYS, b"c").batches[21:])


def roll(log: LocalLog) -> None:
    append(log)
    log.roll()


def flush(log: LocalLog) -> None:
    roll(log)
    log.flush()


def truncate(log: LocalLog) -> None:
    log.truncate_to(20)


def truncate_deep(log: LocalLog) -> None:
    log.truncate_to(1)


def restart(log: LocalLog) -> None:
    log.truncate_fully_and_start_at(7)


def advance_start(log: LocalLog) -> None:
    log.advance_log_start_offset(8)


def evict(log: LocalLog) -> None:
    log.set_tiered_up_to(21)
    log.evict_local(8)


def close(log: LocalLog) -> None:
    log.close()


# What it leaves of the records, whether or not the segment has been replaced.
OPERATIONS: list[tuple[Callable[[LocalLog], None], list[int]]] = [
    (roll, [*LEFT, 21]),
    (flush, [*LEFT, 21]),
    (truncate, [0, 19]),
    (truncate_deep, [0]),
    (restart, []),
    (advance_start, [19, 20]),
    (evict, LEFT),
    (close, LEFT),
]


@pytest.mark.parametrize("steps", range(STEPS_MAX))
@pytest.mark.parametrize(
    ("operation", "left"), OPERATIONS, ids=lambda one: getattr(one, "__name__", "")
)
def test_whatever_comes_between_finds_the_old_segments_or_the_new_one(
    tmp_path: Path, steps: int, operation: Callable[[LocalLog], None], left: list[int]
) -> None:
    log, _, swap = begun(tmp_path / "log")
    for _ in range(steps):
        step(log, swap)
        assert [one for one in offsets_of(log) if one in LEFT] == LEFT
    operation(log)
    found = reopened(log, tmp_path)
    assert [one for one in offsets_of(found) if one in (*LEFT, 21)] == left
    assert found.log_end_offset == log.log_end_offset or operation is close
    found.close()
    if operation is close:
        assert swap.is_done
        return
    while not swap.is_done:
        step(log, swap)
    assert offsets_of(log) == left
    assert not list(log.directory.glob("*.swap"))
    found = reopened(log, tmp_path)
    assert offsets_of(found) == left
    found.close()
    log.close()


@pytest.mark.parametrize("steps", range(STEPS_MAX))
def test_readers_read_on_between_any_two_steps(tmp_path: Path, steps: int) -> None:
    log, source, swap = begun(tmp_path / "log")
    for _ in range(steps):
        step(log, swap)
    before = batches_of(log)
    for segment in log._segments.all:
        segment.release()  # as when too many files are open
    assert batches_of(log) == before
    while not swap.is_done:
        step(log, swap)
    log.end_cleaning(source, 21)
    assert offsets_of(log) == LEFT
    log.close()


@pytest.mark.parametrize("steps", range(STEPS_MAX))
def test_a_log_may_be_deleted_between_any_two_steps(tmp_path: Path, steps: int) -> None:
    log, _, swap = begun(tmp_path / "log")
    for _ in range(steps):
        step(log, swap)
    log.delete()
    assert swap.is_done
    assert not (tmp_path / "log").exists()


def test_a_log_that_goes_offline_meanwhile_is_finished_by_the_next_open(tmp_path: Path) -> None:
    log, _, swap = begun(tmp_path / "log")
    step(log, swap)
    log.take_offline()
    swap.run()
    with pytest.raises(StorageError):
        log.go_on_replacing(swap)
    log.close()
    log = open_log(tmp_path / "log", **SETTINGS)
    assert offsets_of(log) == LEFT
    log.close()


def test_a_second_swap_lets_the_first_come_to_its_end(tmp_path: Path) -> None:
    log, _, swap = begun(tmp_path / "log")
    append(log)
    log.roll()
    log.flush()
    assert swap.is_done
    assert clean(log) == 22
    assert [record.offset for record in committed_records_of(log)] == [*LEFT, 21]
    log.close()
