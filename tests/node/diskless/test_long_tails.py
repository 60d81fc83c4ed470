"""A partition whose un-tiered tail is long gets its active segment sealed, so that it is tiered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tidelog_core.metadata.epoch_chains import EpochChain
from tidelog_node.diskless.chain import long_tails
from tidelog_node.diskless.chain.long_tails import LongTails, TailLimits

from tests.support.waiting import eventually_async
from tests.support.wal_scene import LedLog, WalScene

LIMITS = TailLimits(objects_max=3, size_bytes_max=10_000)


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[WalScene]:
    scene = WalScene(tmp_path, chain_id=UUID(int=5))
    scene.lead(3)
    yield scene
    await scene.close()


async def commit(scene: WalScene, *logs: Any, value_size_bytes: int = 10) -> None:
    """Have an object with a record of each of these partitions."""
    for log in logs:
        log.append(value_size_bytes=value_size_bytes)
    ends = [log.log.log_end_offset for log in logs]
    await eventually_async(lambda: [log.committed_end for log in logs] == ends, seconds=60)


def sealed_counts(scene: WalScene) -> list[int]:
    return [len(log.log.sealed_segments()) for log in scene.logs]


async def test_a_tail_of_many_objects_is_sealed_once(scene: WalScene) -> None:
    tails = LongTails(lambda: scene.chain, LIMITS)
    first, second, _ = scene.logs
    for _ in range(2):
        await commit(scene, first, second)
        await tails.visit()
    assert sealed_counts(scene) == [0, 0, 0]
    await commit(scene, first)
    for _ in range(3):
        await tails.visit()
        assert sealed_counts(scene) == [1, 0, 0]
    assert first.changed_count == 1, "nobody is told to tier it"
    for _ in range(2):
        await commit(scene, first)
    await tails.visit()
    assert sealed_counts(scene) == [1, 0, 0]
    await commit(scene, first, second)
    await tails.visit()
    await tails.visit()
    assert sealed_counts(scene) == [2, 1, 0]


async def test_a_tail_of_many_bytes_is_sealed(scene: WalScene) -> None:
    tails = LongTails(lambda: scene.chain, LIMITS)
    await commit(scene, *scene.logs[:2], value_size_bytes=5_000)
    await tails.visit()
    assert sealed_counts(scene) == [0, 0, 0]
    await commit(scene, scene.logs[1], value_size_bytes=5_000)
    await tails.visit()
    assert sealed_counts(scene) == [0, 1, 0]


async def test_the_longest_tails_come_first_and_few_at_a_time(scene: WalScene) -> None:
    tails = LongTails(lambda: scene.chain, LIMITS)
    for count in range(5):
        await commit(scene, *scene.logs[(0 if count < 3 else 1 if count < 4 else 2) :])
    found = []
    for _ in range(4):
        await tails.visit()
        found.append(sealed_counts(scene))
    assert found == [[0, 0, 1], [0, 1, 1], [1, 1, 1], [1, 1, 1]]


async def test_brokers_share_what_all_of_them_seal(scene: WalScene) -> None:
    """Each segment is some writes to the metadata store, which every broker reads."""
    limits = LIMITS._replace(cluster_sealed_per_s=10.0)
    tails = LongTails(lambda: scene.chain, limits, broker_count=lambda: 40)
    for _ in range(3):
        await commit(scene, *scene.logs)
    found = []
    for _ in range(12):
        await tails.visit()
        found.append(sum(sealed_counts(scene)))
    assert found == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3]


async def test_many_partitions_are_looked_at_less_often_and_sealed_as_fast(
    scene: WalScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    tails = LongTails(lambda: scene.chain, LIMITS)
    assert tails.interval_s == long_tails.VISIT_SECONDS == 1.0
    monkeypatch.setattr(long_tails, "LOOKED_AT_PER_S_MAX", 1)
    assert tails.interval_s == 3.0
    for _ in range(3):
        await commit(scene, *scene.logs)
    for log in scene.logs[2:]:
        await commit(scene, log)
    await tails.visit(2.0)
    assert sealed_counts(scene) == [1, 0, 1]
    # What was not needed before is not made up for.
    for _ in range(9):
        await tails.visit(1.0)
    for _ in range(3):
        await commit(scene, *scene.logs)
    before = sum(sealed_counts(scene))
    await tails.visit(1.0)
    assert sum(sealed_counts(scene)) == before + 1


async def test_a_partition_with_constant_records_waits_for_the_interval(scene: WalScene) -> None:
    log = scene.logs[0]
    tails = LongTails(lambda: scene.chain, LIMITS._replace(interval_s=3_600.0))
    for _ in range(3):
        await commit(scene, log)
    await tails.visit()
    assert sealed_counts(scene) == [1, 0, 0]
    for _ in range(4):
        await commit(scene, log)
    await tails.visit()
    assert sealed_counts(scene) == [1, 0, 0]
    await LongTails(lambda: scene.chain, LIMITS).visit()
    assert sealed_counts(scene) == [2, 0, 0]


async def test_a_large_segment_does_not_wait_for_the_interval(scene: WalScene) -> None:
    limits = LIMITS._replace(interval_s=3_600.0, large_size_bytes=20_000)
    tails = LongTails(lambda: scene.chain, limits)
    log = scene.logs[0]
    sealed = []
    for _ in range(9):
        await commit(scene, log, value_size_bytes=6_000)
        await tails.visit()
        sealed.append(sealed_counts(scene)[0])
    # The first one with 10,000 bytes, the others with 20,000.
    assert sealed == [0, 1, 1, 1, 1, 2, 2, 2, 2]


async def test_the_tail_that_a_partition_is_entered_with_counts(scene: WalScene) -> None:
    """Else leads that go round among nodes would take it with them for an hour."""
    tails = LongTails(lambda: scene.chain, LIMITS)
    log: Any = LedLog(scene.folder, 3)
    log.append()
    stored = (EpochChain(1, scene.name, 1),)
    scene.chain.enter(log, stored, end_offset=1, tail_count=3)
    scene.logs.append(log)
    await tails.visit()
    assert sealed_counts(scene) == [0, 0, 0, 1]
    await tails.visit()
    assert sealed_counts(scene) == [0, 0, 0, 1]


async def test_what_is_in_sealed_segments_already_does_not_count(scene: WalScene) -> None:
    log = scene.logs[0]
    tails = LongTails(lambda: scene.chain, LIMITS)
    for _ in range(2):
        await commit(scene, log)
    await tails.visit()
    log.log.roll()
    for _ in range(2):
        await commit(scene, log)
        await tails.visit()
    assert len(log.log.sealed_segments()) == 1


async def test_only_led_diskless_partitions_are_sealed(scene: WalScene) -> None:
    tails = LongTails(lambda: scene.chain, LIMITS._replace(sealed_per_s=9.0))
    for _ in range(3):
        await commit(scene, *scene.logs)
    scene.logs[0].is_leader = False
    scene.logs[1].is_diskless = False  # about to become so: its segments are held
    await tails.visit()
    assert sealed_counts(scene) == [0, 0, 1]
