"""Repairing a log keeps all that is whole, at its offsets, and gives no offset again."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.paths import LOG_SUFFIX, SEGMENT_FILE, segment_path
from tidelog_core.log.recovery.repair import OffsetRange, carry_out, plan_repair
from tidelog_core.log.segments.batch_scan import scan_file

from tests.support.batches import batch
from tests.support.log_building import append, open_log

SMALL = {"segment_bytes": 400}
BATCH_COUNT, RECORDS = 20, 2


def a_log(folder: Path) -> list[int]:
    """Write some segments and a tail; return the segments' base offsets."""
    log = open_log(folder, **SMALL)
    for number in range(BATCH_COUNT):
        append(
            log,
            batch(RECORDS, producer_id=7, producer_epoch=0, base_sequence=number * RECORDS),
        )
    log.close()
    return sorted(int(path.stem) for path in folder.glob(f"*{LOG_SUFFIX}"))


def path_of(folder: Path, base_offset: int) -> Path:
    return segment_path(folder, base_offset, LOG_SUFFIX)


def state_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def offsets_in(log: LocalLog) -> set[int]:
    """Return what a reader is given from the start to the end."""
    log.advance_high_watermark(log.log_end_offset)
    found: set[int] = set()
    offset = log.log_start_offset
    while (read := log.read(offset, max_bytes=10_000, up_to=log.log_end_offset)).slice:
        start, size = read.slice.position, read.slice.size_bytes
        for one in scan_file(read.slice.file.path, start + size):
            if one.position >= start:
                found.update(range(one.header.base_offset, one.header.next_offset))
                offset = one.header.next_offset
    return found


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


def batch_size(folder: Path) -> int:
    path = min(folder.glob(f"*{LOG_SUFFIX}"))
    return next(scan_file(path, path.stat().st_size)).header.size_bytes


Harm = Callable[[Path, list[int]], set[int]]  # does it, returns what is lost by it


def gone(index: int) -> Harm:
    def harm(folder: Path, bases: list[int]) -> set[int]:
        path_of(folder, bases[index]).unlink()
        ends = [*bases[1:], BATCH_COUNT * RECORDS]
        return set(range(bases[index], ends[index]))

    return harm


def flipped(index: int, at: int) -> Harm:
    """In the first batch of a segment."""

    def harm(folder: Path, bases: list[int]) -> set[int]:
        flip(path_of(folder, bases[index]), at)
        return set(range(bases[index], bases[index] + RECORDS))

    return harm


def cut(index: int, size_bytes: int) -> Harm:
    """By some bytes, at most a batch of them."""

    def harm(folder: Path, bases: list[int]) -> set[int]:
        path = path_of(folder, bases[index])
        ends = [*bases[1:], BATCH_COUNT * RECORDS]
        size_bytes_left = path.stat().st_size - (size_bytes or batch_size(folder))
        os.truncate(path, size_bytes_left)
        return set(range(ends[index] - RECORDS, ends[index]))

    return harm


HARMS = {
    "first gone": gone(0),
    "one gone": gone(2),
    "last gone": gone(-1),
    "record flipped": flipped(1, 70),
    "first segment's record flipped": flipped(0, 70),
    "last segment's record flipped": flipped(-1, 70),
    "segment cut": cut(2, 10),
    "segment cut by a batch": cut(2, 0),
    "last segment cut": cut(-1, 10),
}


@pytest.mark.parametrize("has_seals", [True, False])
@pytest.mark.parametrize("name", HARMS)
def test_whole_batches_stay_and_lost_offsets_are_reported(
    name: str, has_seals: bool, tmp_path: Path
) -> None:
    folder, quarantine = tmp_path / "t-0", tmp_path / "quarantine"
    bases = a_log(folder)
    before = state_of(folder)
    if not has_seals:
        (folder / SEGMENT_FILE).unlink()
    lost = HARMS[name](folder, bases)
    harmed = state_of(folder)
    plan = plan_repair(folder)
    assert state_of(folder) == harmed  # Planning changes nothing.
    assert {offset for one in plan.lost for offset in range(one.start, one.end)} == lost
    carry_out(plan, quarantine)
    assert plan_repair(folder).steps == ()
    for step in plan.steps:
        if step.path.name in harmed:
            assert (quarantine / step.path.name).read_bytes() == harmed[step.path.name]
    for _ in range(2):
        log = open_log(folder, **SMALL)
        assert log.log_end_offset == BATCH_COUNT * RECORDS
        assert offsets_in(log) == set(range(BATCH_COUNT * RECORDS)) - lost
        log.make_whole(log.sealed_segments()[0])
        log.close()
    log = open_log(folder, **SMALL)
    assert append(log, batch(1)).base_offset == BATCH_COUNT * RECORDS
    log.close()
    assert before.keys()


def test_a_log_with_nothing_wrong_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    a_log(folder)
    before = state_of(folder)
    plan = plan_repair(folder)
    assert plan.steps == ()
    assert plan.intact == (OffsetRange(0, BATCH_COUNT * RECORDS),)
    assert state_of(folder) == before


def test_random_damage_is_repaired(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for number in range(12):
        folder = tmp_path / f"t-{number}"
        bases = a_log(folder)
        for base_offset in chance.sample(bases, chance.randrange(1, 4)):
            path = path_of(folder, base_offset)
            match chance.randrange(3):
                case 0:
                    path.unlink()
                case 1:
                    os.truncate(path, chance.randrange(path.stat().st_size))
                case _:
                    for _ in range(chance.randrange(1, 5)):
                        flip(path, chance.randrange(path.stat().st_size))
        plan = plan_repair(folder)
        carry_out(plan, tmp_path / "quarantine" / folder.name)
        log = open_log(folder, **SMALL)
        intact = {offset for one in plan.intact for offset in range(one.start, one.end)}
        gone = {offset for one in plan.lost for offset in range(one.start, one.end)}
        assert log.log_end_offset >= BATCH_COUNT * RECORDS
        assert offsets_in(log) == intact
        assert intact | gone == set(range(BATCH_COUNT * RECORDS))
        assert not intact & gone
        log.close()


def test_two_wrong_base_offsets_that_agree_are_not_believed(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    bases = a_log(folder)
    path, size_bytes = path_of(folder, bases[-1]), batch_size(folder)
    flip(path, 70)  # a record of the first batch
    flip(path, size_bytes + 23)  # the second one's last offset delta: it is negative now
    flip(path, 2 * size_bytes + 7)  # the base offsets of the third and the fourth one:
    flip(path, 3 * size_bytes + 3)  # both are larger now, the fourth's by more
    plan = plan_repair(folder)
    assert plan.intact == (OffsetRange(0, bases[-1]),)
    assert plan.lost == (OffsetRange(bases[-1], BATCH_COUNT * RECORDS),)


def test_a_wrong_base_offset_is_not_believed_for_another_wrong_one(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    bases = a_log(folder)
    path, size_bytes = path_of(folder, bases[-1]), batch_size(folder)
    flip(path, 2)  # The same byte of both base offsets: the first claims the second's.
    flip(path, size_bytes + 2)
    plan = plan_repair(folder)
    assert plan.lost == (OffsetRange(bases[-1], bases[-1] + 2 * RECORDS),)


def test_damage_of_an_unflushed_tail_is_left_to_recovery(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    log = open_log(folder)
    for _ in range(4):
        append(log, batch(1))
    log.flush()
    for _ in range(4):
        append(log, batch(1))
    log.take_offline()
    log.close()
    (path,) = folder.glob(f"*{LOG_SUFFIX}")
    flip(path, path.stat().st_size - 5)
    assert plan_repair(folder).steps == ()
    log = open_log(folder)
    assert log.log_end_offset == 7
    log.close()
    flip(path, 70)
    (step,) = plan_repair(folder).steps
    assert (step.path, step.lost) == (path, (OffsetRange(0, 1),))
