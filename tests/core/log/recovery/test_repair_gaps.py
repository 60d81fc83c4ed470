"""Repairing a log whose offsets have gaps that nothing on its disk explains."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest
from tidelog_core.log.paths import CLEANER_OFFSET_FILE, LOG_SUFFIX, SEGMENT_FILE
from tidelog_core.log.recovery.repair import RepairPlan, carry_out, plan_repair
from tidelog_core.log.segments.batch_scan import scan_file

from tests.core.log.recovery.test_repair import flip, offsets_in
from tests.support.batches import batch
from tests.support.local_logs import watched
from tests.support.log_building import copy_of, open_log, placed

SMALL = {"segment_bytes": 400}
BATCH_COUNT, RECORDS = 14, 2
LOGS = 12
BASE_OFFSET_BYTES = 7  # of its eight; the last one may move a batch into the gap beside it
RECORDS_POSITION = 21  # from here on the CRC covers the batch


@dataclass(frozen=True, slots=True)
class Place:
    """Where a batch is."""

    path: Path
    position: int
    size_bytes: int
    offsets: frozenset[int]


def a_replica(folder: Path, batch_numbers: list[int]) -> list[Place]:
    """Write the log of a replica that has fetched from a compacted leader."""
    log = open_log(folder, **SMALL)
    for number in batch_numbers:
        log.append_as_follower(placed(batch(RECORDS), number * RECORDS))
    log.close()
    assert not (folder / CLEANER_OFFSET_FILE).exists()
    return places_in(folder)


def places_in(folder: Path) -> list[Place]:
    return [
        Place(
            path,
            one.position,
            one.header.size_bytes,
            frozenset(range(one.header.base_offset, one.header.next_offset)),
        )
        for path in sorted(folder.glob(f"*{LOG_SUFFIX}"))
        for one in scan_file(path, path.stat().st_size)
    ]


def offsets_of(places: list[Place]) -> set[int]:
    return {offset for place in places for offset in place.offsets}


def intact_in(plan: RepairPlan) -> set[int]:
    return {offset for one in plan.intact for offset in range(one.start, one.end)}


def chosen(seed: int | None = None) -> random.Random:
    seed = random.randrange(2**32) if seed is None else seed
    print(f"seed {seed}")
    return random.Random(seed)


def kept_by_compaction(chance: random.Random) -> list[int]:
    """Return the numbers of the batches that are left."""
    share = chance.random()
    kept = [number for number in range(BATCH_COUNT) if chance.random() < share]
    return [0, *(number for number in kept if number), BATCH_COUNT]


def test_gaps_are_no_damage(tmp_path: Path) -> None:
    places = a_replica(tmp_path / "t-0", [0, 1, 3, 4, 9, 10, 11, 20])
    plan = plan_repair(tmp_path / "t-0")
    assert plan.steps == ()
    assert intact_in(plan) == offsets_of(places)


@pytest.mark.parametrize("has_older", [True, False])
def test_a_log_that_began_above_zero_has_lost_nothing(has_older: bool, tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    if has_older:
        a_replica(folder, [0, 1, 2, 3, 4, 5])
    log = open_log(folder, log_start_offset=100)
    log.append_as_leader(batch(RECORDS), leader_epoch=1)
    log.close()
    plan = plan_repair(folder)
    assert plan.steps == ()
    assert intact_in(plan) == {100, 101}
    log = open_log(folder)  # Also where the metadata store does not say so again.
    assert (log.log_start_offset, log.log_end_offset) == (100, 102)
    log.close()


def test_a_crash_while_a_log_begins_above_zero_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, crashes = tmp_path / "t-0", 0
    a_replica(folder, [0, 1, 2, 3, 4, 5])

    def crash() -> None:
        nonlocal crashes
        crashes += 1
        crashed = copy_of(folder, tmp_path / "crashed" / "t-0")
        assert plan_repair(crashed).steps == ()
        log = open_log(crashed, log_start_offset=100)
        assert (log.log_start_offset, log.log_end_offset) == (100, 100)
        log.close()
        assert plan_repair(crashed).steps == ()

    with watched(monkeypatch, crash):
        open_log(folder, log_start_offset=100).close()
    assert crashes > 5


def test_a_batch_with_a_wrong_base_offset_is_no_gap(tmp_path: Path) -> None:
    """Where what is behind begins before it would end."""
    places = a_replica(tmp_path / "t-0", list(range(BATCH_COUNT)))
    flipped = places[1]
    content = bytearray(flipped.path.read_bytes())
    content[flipped.position + 7] += 1
    flipped.path.write_bytes(content)
    plan = plan_repair(tmp_path / "t-0")
    (step,) = plan.steps
    assert (step.path, {*range(step.lost[0].start, step.lost[0].end)}) == (
        flipped.path,
        set(flipped.offsets),
    )
    assert intact_in(plan) == offsets_of(places) - flipped.offsets


@pytest.mark.parametrize("has_seals", [True, False])
def test_no_whole_batch_is_lost_wherever_gaps_and_damage_are(
    has_seals: bool, tmp_path: Path
) -> None:
    chance = chosen()
    for number in range(LOGS):
        folder = tmp_path / f"t-{number}"
        places = a_replica(folder, kept_by_compaction(chance))
        if not has_seals:
            (folder / SEGMENT_FILE).unlink(missing_ok=True)
        assert plan_repair(folder).steps == ()
        harmed = chance.sample(places, chance.randrange(min(6, len(places))))
        for place in harmed:
            at = chance.randrange(RECORDS_POSITION, place.size_bytes)
            if place is harmed[0] and chance.random() < 0.5:
                at = chance.randrange(BASE_OFFSET_BYTES)
            flip(place.path, place.position + at)
        whole = offsets_of([place for place in places if place not in harmed])
        plan = plan_repair(folder)
        assert intact_in(plan) == whole
        carry_out(plan, tmp_path / "quarantine" / folder.name)
        log = open_log(folder, **SMALL)
        assert offsets_in(log) == whole
        assert log.log_end_offset == (BATCH_COUNT + 1) * RECORDS
        log.close()
        assert plan_repair(folder).steps == ()


@pytest.mark.parametrize("has_gaps", [True, False])
@pytest.mark.parametrize("has_seals", [True, False])
def test_a_repair_after_a_crash_within_one_gives_what_one_repair_gives(
    has_gaps: bool, has_seals: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, folder = chosen(), tmp_path / "t-0"
    numbers = kept_by_compaction(chance) if has_gaps else list(range(BATCH_COUNT + 1))
    places = a_replica(folder, numbers)
    if not has_seals:
        (folder / SEGMENT_FILE).unlink(missing_ok=True)
    ends = [
        one
        for one, next_one in zip(places, [*places[1:], None], strict=True)
        if next_one is None or next_one.path != one.path
    ]
    harmed = {*chance.sample(places, len(places) // 5), chance.choice(ends), places[-1]}
    for place in harmed:
        flip(place.path, place.position + RECORDS_POSITION)
    if has_seals:
        middle = chance.choice(places).path
        middle.unlink()
        harmed |= {place for place in places if place.path == middle}
    whole = offsets_of([place for place in places if place not in harmed])
    plan = plan_repair(folder)
    assert intact_in(plan) == whole
    crashes = 0

    def crash() -> None:
        nonlocal crashes
        crashes += 1
        crashed = copy_of(folder, tmp_path / "crashed" / "t-0")
        again = plan_repair(crashed)
        assert intact_in(again) == whole
        if again.steps:
            carry_out(again, tmp_path / "again" / str(crashes))
        assert plan_repair(crashed).steps == ()
        log = open_log(crashed, **SMALL)
        assert offsets_in(log) == whole
        assert log.log_end_offset == (BATCH_COUNT + 1) * RECORDS
        log.close()

    with watched(monkeypatch, crash):
        carry_out(plan, tmp_path / "quarantine")
    crash()
    print(f"{crashes} crashes")
    assert crashes > 10
