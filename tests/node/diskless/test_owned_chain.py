"""A chain's owner: real logs and a folder in which PUTs are refused, lost, late and doubled."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from tidelog_core.config import NodeConfig
from tidelog_core.diskless.chain.put_pace import PaceLimits
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.errors import StorageError, TierUnavailable
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain
from tidelog_core.objects.location import parse_object_location
from tidelog_node.diskless.chain import chain_work, pending_objects
from tidelog_node.diskless.chain.chain_partition import NOTE_BYTES_MAX
from tidelog_node.diskless.chain.owned_chain import OwnedChain
from tidelog_node.diskless.chain.pending_appends import PENDING_APPEND_BYTES
from tidelog_node.diskless.chain.pending_objects import (
    BUILD_FAILURES_MAX,
    PUT_SECONDS_MAX,
    put_timeout_s,
)
from tidelog_node.diskless.chain.writer_limits import kept_bytes_max, writer_limits
from tidelog_node.monitoring.chain_source import ChainSource
from tidelog_node.monitoring.scrape import HistogramValue, Scrape
from tidelog_node.tier.protocol import Fields, OnEvent, Request
from tidelog_node.tier.wal_messages import (
    WalBuildPutRequest,
    WalDropRequest,
    WalStoreRequest,
)

from tests.support.waiting import eventually_async
from tests.support.wal_objects import CLUSTER
from tests.support.wal_scene import FAST, Faults, WalScene

SETTLE_S = 20.0
SELDOM_NOTED = dataclasses.replace(FAST, note_ms=3_600_000.0)
NOT_HEDGED = dataclasses.replace(FAST, pace=dataclasses.replace(FAST.pace, hedge_percentile=0.0))
FAULTS = (
    Faults(),
    Faults(refused=0.5),
    Faults(lost=0.3, vanished=0.3),
    Faults(late=0.5, slow_s=0.03),
    Faults(conflict=0.4, refused=0.2),
    Faults(refused=0.2, lost=0.2, vanished=0.2, late=0.2, conflict=0.1, slow_s=0.01),
)


async def committed_everywhere(scene: WalScene) -> None:
    await eventually_async(
        lambda: all(log.committed_end == log.log.log_end_offset for log in scene.logs)
    )


async def has_bytes_of_logs(scene: WalScene) -> None:
    found = await scene.committed_content()
    for log in scene.logs:
        assert found.get(log.name, b"") == log.content


async def drive(scene: WalScene, step_count: int) -> None:
    """Append, roll, kill the worker, and have the store behave otherwise, at random."""
    chance = scene.chance
    for _ in range(step_count):
        draw = chance.random()
        if draw < 0.7:
            for log in chance.sample(scene.logs, chance.randrange(1, len(scene.logs) + 1)):
                for _ in range(chance.randrange(1, 4)):
                    log.append(chance.randrange(1, 4), chance.choice([10, 500, 4_000]))
        elif draw < 0.8:
            chance.choice(scene.logs).log.roll()
        elif draw < 0.9:
            scene.store.faults = chance.choice(FAULTS)
        elif draw < 0.94:
            scene.worker.kill(chance.random() * 0.03)
        elif draw < 0.97 and len(scene.logs) < 6:
            scene.lead(1, segment_bytes=14_000)
        await asyncio.sleep(chance.choice([0, 0, 0.002, 0.008]))


def failed_count(scene: WalScene) -> int:
    """Return how often the first object was not built."""
    one = scene.chain._writer._objects.get(0)
    return 0 if one is None else one.failures


def end_before_headers(
    scene: WalScene, monkeypatch: pytest.MonkeyPatch, *, then: Callable[[], None] = lambda: None
) -> None:
    """Have the worker carry out the first build and its PUT, and end before it has said so."""
    call = scene.worker.call

    async def ended(request: Request, on_event: OnEvent | None = None) -> Fields:
        if not isinstance(request, WalBuildPutRequest) or scene.worker.kill_count:
            return await call(request, on_event)
        await call(request)
        scene.worker.kill(0.0)
        then()
        raise TierUnavailable("the worker ended during the request")

    monkeypatch.setattr(scene.worker, "call", ended)


async def play(folder: Path, seed: int, step_count: int, *, is_local: bool = False) -> None:
    scene = WalScene(folder, seed=seed, is_local=is_local)
    scene.lead(3, segment_bytes=14_000)
    await drive(scene, step_count)
    scene.store.faults = Faults()
    await committed_everywhere(scene)
    assert not scene.chain.is_deposed
    await has_bytes_of_logs(scene)
    assert scene.worker.greatest_built_bytes <= 1.5 * kept_bytes_max(FAST)
    assert scene.traffic.object_bytes == sum(len(log.content) for log in scene.logs)
    await scene.close()


@pytest.mark.parametrize("seed", range(3))
async def test_everything_is_committed_in_order_whatever_the_store_does(
    tmp_path: Path, seed: int
) -> None:
    """Not before what comes before it, and with exactly the bytes of the logs."""
    await play(tmp_path, seed, 40)


@pytest.mark.parametrize("seed", range(2))
async def test_objects_that_are_built_in_their_place_are_committed_alike(
    tmp_path: Path, seed: int
) -> None:
    await play(tmp_path, seed, 40, is_local=True)


async def test_a_local_store_that_is_full_for_long_does_not_end_the_chain(tmp_path: Path) -> None:
    """What it answers says nothing of the logs, however often it refuses."""
    scene = WalScene(tmp_path, is_local=True)
    (log,) = scene.lead(1)
    log.append(3)
    await committed_everywhere(scene)  # the first object makes the folder
    committed = list(log.committed)
    objects = tmp_path / "objects"
    objects.rename(tmp_path / "away")
    objects.write_bytes(b"no folder")
    log.append(3)
    await eventually_async(lambda: scene.traffic.retry_count > BUILD_FAILURES_MAX)
    assert log.committed == committed
    assert not scene.chain.is_deposed
    objects.unlink()
    (tmp_path / "away").rename(objects)
    await committed_everywhere(scene)
    await has_bytes_of_logs(scene)
    await scene.close()


@pytest.mark.parametrize("is_local", [False, True])
async def test_an_object_takes_one_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_local: bool
) -> None:
    monkeypatch.setattr(chain_work, "DROP_SECONDS", 3_600.0)
    scene = WalScene(tmp_path, limits=NOT_HEDGED, is_local=is_local)
    (log,) = scene.lead(1)
    requests: list[Request] = []
    call = scene.worker.call

    async def noted(request: Request, on_event: OnEvent | None = None) -> Fields:
        requests.append(request)
        return await call(request, on_event)

    monkeypatch.setattr(scene.worker, "call", noted)
    for _ in range(3):
        log.append(3)
        await committed_everywhere(scene)
    kind = WalStoreRequest if is_local else WalBuildPutRequest
    assert [type(one) for one in requests] == [kind] * 3
    assert scene.traffic.puts.counts != []
    assert (scene.traffic.hedge_count, scene.traffic.retry_count) == (0, 0)
    await scene.close()


async def test_the_next_object_is_built_while_the_one_before_is_put(tmp_path: Path) -> None:
    """Its header is known by then."""
    scene = WalScene(tmp_path, limits=NOT_HEDGED)
    (log,) = scene.lead(1)
    scene.store.held.clear()
    for number in range(3):
        log.append(3)
        await eventually_async(lambda number=number: scene.store.put_count == number + 1)
    assert log.committed == []
    scene.store.held.set()
    await committed_everywhere(scene)
    assert scene.traffic.object_count == 3
    await has_bytes_of_logs(scene)
    await scene.close()


@pytest.mark.parametrize("faults", [Faults(), Faults(vanished=1.0)], ids=["stored", "vanished"])
async def test_an_object_whose_header_was_not_heard_of_is_put_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: Faults
) -> None:
    scene = WalScene(tmp_path, limits=NOT_HEDGED)
    (log,) = scene.lead(1)
    scene.store.faults = faults
    end_before_headers(scene, monkeypatch)
    log.append(3)
    await eventually_async(lambda: scene.worker.kill_count > 0)
    log.log.roll()  # The bytes may be looked for elsewhere, and the next append follows them.
    log.append(2)
    scene.store.faults = Faults()
    await committed_everywhere(scene)
    assert not scene.chain.is_deposed
    await has_bytes_of_logs(scene)
    await scene.close()


async def test_an_object_that_may_have_been_put_ends_the_chain_rather_than_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has ended before its header was heard of, and a partition is dropped since."""
    scene = WalScene(tmp_path, limits=NOT_HEDGED)
    kept, dropped = scene.lead(2)
    scene.store.faults = Faults(vanished=1.0)
    end_before_headers(scene, monkeypatch, then=lambda: setattr(dropped, "is_dropped", True))
    kept.append()
    dropped.append()
    async with asyncio.timeout(SETTLE_S):
        await scene.running
    assert scene.chain.is_deposed
    assert kept.committed == []
    assert not (tmp_path / "objects" / wal_key(CLUSTER, scene.name, 0)).exists()
    await scene.close()


@pytest.mark.parametrize("is_away", [False, True])
async def test_an_object_that_was_certainly_not_put_may_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_away: bool
) -> None:
    """The worker was away, or could not read the files; a partition is dropped since."""
    monkeypatch.setattr(pending_objects, "BUILD_FAILURES_MAX", 1_000_000)
    scene = WalScene(tmp_path, limits=NOT_HEDGED)
    kept, dropped = scene.lead(2)
    kept.append()
    dropped.append()
    moved = dropped.log.directory.with_name("moved")
    if is_away:
        scene.worker.kill(0.2)
    else:
        dropped.log.directory.rename(moved)
    scene.chain._note_all()
    await eventually_async(lambda: failed_count(scene) > 1)
    assert scene.store.put_count == 0
    dropped.is_dropped = True
    await eventually_async(lambda: kept.committed == [1])
    assert not scene.chain.is_deposed
    assert set(await scene.committed_content()) == {kept.name}
    if moved.exists():
        moved.rename(dropped.log.directory)
    await scene.close()


async def test_a_write_to_a_folder_is_not_soon_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on all the same, and the next one would make both slower."""
    scene = WalScene(tmp_path, is_local=True)
    (log,) = scene.lead(1)
    times: list[float] = []
    call = scene.worker.call

    async def noted(request: Request, on_event: OnEvent | None = None) -> Fields:
        if isinstance(request, WalStoreRequest):
            times.append(request.timeout_s)
        return await call(request, on_event)

    monkeypatch.setattr(scene.worker, "call", noted)
    log.append(3)
    await committed_everywhere(scene)
    assert set(times) == {PUT_SECONDS_MAX}
    await scene.close()


async def test_a_read_that_never_ends_keeps_no_ack_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chain asks whose object is in its place. A worker that was stopped answers nothing."""
    monkeypatch.setattr(chain_work, "HEADER_SECONDS_MAX", 0.05)
    scene = WalScene(tmp_path)
    hung_count = 0
    read = scene.worker.get_range

    async def hang_once(key: str, start: int, end: int) -> bytes:
        nonlocal hung_count
        hung_count += 1
        if hung_count == 1:
            await asyncio.Event().wait()
        return await read(key, start, end)

    monkeypatch.setattr(scene.worker, "get_range", hang_once)
    scene.store.faults = Faults(lost=1.0)
    (log,) = scene.lead(1)
    log.append(3)
    await committed_everywhere(scene)
    assert hung_count > 1
    await scene.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
async def test_everything_is_committed_in_many_more_schedules(tmp_path: Path, seed: int) -> None:
    await play(tmp_path, seed, 150)


async def test_nothing_is_acknowledged_before_it_is_stored(tmp_path: Path) -> None:
    scene = WalScene(tmp_path)
    scene.store.held.clear()
    (log,) = scene.lead(1)
    log.append(3)
    await eventually_async(lambda: scene.store.put_count > 0)
    assert log.committed == []
    assert scene.chain.has_uncommitted(log)
    scene.store.held.set()
    await committed_everywhere(scene)
    assert log.committed == [3]
    assert not scene.chain.has_uncommitted(log)
    await scene.close()


async def test_tiny_appends_fill_the_chain_by_what_waits_for_them(tmp_path: Path) -> None:
    scene = WalScene(tmp_path)
    (log,) = scene.lead(1)
    scene.store.faults = Faults(refused=1.0)
    for _ in range(3):
        while not scene.chain.is_full:
            for _ in range(10):  # of one turn
                log.append(1, 1)
            await asyncio.sleep(0)
        count = log.log.log_end_offset - log.committed_end
        assert count * PENDING_APPEND_BYTES < 200_000 < 2 * count * PENDING_APPEND_BYTES
        scene.store.faults = Faults()
        await committed_everywhere(scene)
        assert not scene.chain.is_full
        scene.store.faults = Faults(refused=1.0)
    await scene.close(0.0)


async def test_a_store_that_is_away_fills_the_buffer_and_nothing_else(tmp_path: Path) -> None:
    scene = WalScene(tmp_path)
    changes: list[bool] = []
    scene.chain.fullness.subscribe(changes.append)
    logs = scene.lead(4)
    scene.store.faults = Faults(refused=1.0)
    task_count_max = 0
    for number in range(2_000):
        if not scene.chain.is_full:  # else the connections are not read
            logs[number % 4].append(1, 1_000)
        await asyncio.sleep(0)
        task_count_max = max(task_count_max, len(scene.chain._work.tasks))
    buffered_bytes = scene.chain.buffered_bytes
    append_count = sum(log.log.log_end_offset for log in logs)
    assert scene.chain.is_full
    assert changes == [True]
    assert 200_000 <= buffered_bytes + append_count * PENDING_APPEND_BYTES < 210_000
    await asyncio.sleep(0.3)  # of attempts in vain
    assert scene.chain.buffered_bytes == scene.traffic.buffered_bytes == buffered_bytes
    assert all(log.committed == [] for log in logs)
    assert task_count_max <= 3 * FAST.pace.in_flight_max
    assert scene.worker.greatest_built_bytes <= kept_bytes_max(FAST)
    assert len(scene.chain._objects._pending) <= FAST.pace.in_flight_max
    assert scene.traffic.throttled_count > 10
    scene.store.faults = Faults()
    await committed_everywhere(scene)
    assert changes == [True, False]
    assert scene.traffic.buffered_bytes == 0
    await has_bytes_of_logs(scene)
    await scene.close()
    assert scene.worker.wal is not None
    assert scene.worker.wal.built_bytes == 0


async def test_the_worker_forgets_committed_objects_also_if_no_other_one_follows(
    tmp_path: Path,
) -> None:
    scene = WalScene(tmp_path)
    (log,) = scene.lead(1)
    wal = scene.worker.wal
    assert wal is not None
    for _ in range(3):
        log.append()
        await committed_everywhere(scene)
        await eventually_async(lambda: wal.built_bytes == 0)
    await scene.close()


async def test_nothing_is_said_of_committed_objects_that_a_build_has_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_work, "DROP_SECONDS", 3_600.0)
    scene = WalScene(tmp_path)
    (log,) = scene.lead(1)
    for _ in range(3):
        log.append()
        await committed_everywhere(scene)
        assert scene.chain._work._dropping is not None
        scene.store.held.clear()
        log.append()
        await eventually_async(lambda: scene.chain._work._dropping is None)
        assert scene.chain.buffered_bytes > 0
        scene.store.held.set()
        await committed_everywhere(scene)
    await scene.close()


async def test_what_is_written_is_counted_and_served(tmp_path: Path) -> None:
    scene = WalScene(tmp_path)
    (log,) = scene.lead(1)
    scene.store.faults = Faults(refused=0.5, vanished=0.3)
    for _ in range(10):
        log.append()
        await committed_everywhere(scene)
    scrape = Scrape()
    await ChainSource(scene.traffic).collect(scrape)
    served = {
        name.removeprefix("tidelog_diskless_"): one[0][1] for name, one in scrape.series.items()
    }
    puts = served.pop("put_seconds")
    assert isinstance(puts, HistogramValue)
    assert (sum(puts.counts), puts.total > 0) == (10, True)
    traffic = scene.traffic
    assert served == {
        "objects_total": 10,
        "object_bytes_total": len(log.content),
        "hedges_total": traffic.hedge_count,
        "retries_total": traffic.retry_count,
        "throttled_total": traffic.throttled_count,
        "unknown_total": traffic.unknown_count,
        "deposed_chains_total": 0,
        "buffered_bytes": 0,
        "collected_objects_total": 0,
        "kept_objects": 10,
        "refused_partitions": 0,
        "damaged_objects_total": 0,
        "unfilled_partitions": 0,
        "unfilled_seconds": 0.0,
    }
    assert min(traffic.throttled_count, traffic.unknown_count, traffic.retry_count) > 0
    await scene.close()


async def test_a_put_without_an_answer_is_hedged_with_the_same_bytes(tmp_path: Path) -> None:
    scene = WalScene(tmp_path)
    scene.store.held.clear()
    (log,) = scene.lead(1)
    log.append()
    await eventually_async(lambda: scene.store.put_count >= 2)
    assert scene.traffic.hedge_count == 1
    await asyncio.sleep(0.1)
    assert scene.store.put_count == 2  # never more than two at once
    scene.store.held.set()
    await committed_everywhere(scene)
    assert (scene.traffic.retry_count, scene.traffic.object_count) == (0, 1)
    await has_bytes_of_logs(scene)
    await scene.close()


async def test_a_seal_in_the_next_place_deposes_the_owner(tmp_path: Path) -> None:
    scene = WalScene(tmp_path)
    deposed: list[OwnedChain] = []
    scene.chain.deposed.subscribe(deposed.append)
    first, second = scene.lead(2)
    first.append()
    await committed_everywhere(scene)
    await scene.seal(1)
    first.append()
    second.append(2)
    async with asyncio.timeout(SETTLE_S):
        await scene.running
    assert deposed == [scene.chain]
    assert scene.chain.is_deposed
    assert scene.chain.replicas == (first, second)
    assert (first.chain, second.chain) == (None, None)
    assert (first.committed, second.committed) == ([1], [])
    assert scene.traffic.deposed_count == 1
    with pytest.raises(ValueError, match="ended"):
        scene.chain.enter(first, (EpochChain(1, scene.name, 1),), end_offset=1)
    await scene.close()


async def test_an_idle_owner_that_looks_finds_the_seal(tmp_path: Path) -> None:
    scene = WalScene(tmp_path)
    (log,) = scene.lead(1)
    await scene.chain.look()
    log.append()
    await committed_everywhere(scene)
    await scene.chain.look()
    assert not await scene.chain.ends_within(0)
    await scene.seal(1)
    await scene.chain.look()
    assert scene.chain.is_deposed
    assert await scene.chain.ends_within(0)
    await scene.close()


async def test_the_order_of_the_loop_is_kept_when_a_partition_leaves_and_returns(
    tmp_path: Path,
) -> None:
    scene = WalScene(tmp_path)
    (log,) = scene.lead(1)
    log.append(2)
    log.chain.leave(log)  # in the turn of the append
    assert log.chain is None
    log.append()  # of another epoch; this chain takes nothing of it
    assert scene.chain.has_uncommitted(log)
    await eventually_async(lambda: log.committed == [2])
    assert scene.chain._partitions.pending == {}
    stored = (EpochChain(0, scene.name, 0), EpochChain(1, scene.name, 3))
    with pytest.raises(ValueError, match="does not begin there"):
        scene.chain.enter(log, stored, end_offset=4)
    other = ChainName(2, uuid4())
    with pytest.raises(ValueError, match="does not name"):
        scene.chain.enter(log, (*stored, EpochChain(2, other, 3)), end_offset=3)
    scene.chain.enter(log, stored, end_offset=3)
    log.append()
    await eventually_async(lambda: log.committed == [2, 4])
    await scene.close()


async def test_a_partition_does_not_come_back_before_all_of_it_is_committed(
    tmp_path: Path,
) -> None:
    """The commits of one epoch would be taken for those of the next one."""
    scene = WalScene(tmp_path)
    (log,) = scene.lead(1)
    scene.store.held.clear()
    log.append(2)
    log.chain.leave(log)
    stored = (EpochChain(0, scene.name, 0), EpochChain(2, scene.name, 2))
    with pytest.raises(ValueError, match="an earlier epoch"):
        scene.chain.enter(log, stored, end_offset=2)
    assert log.chain is None
    scene.store.held.set()
    await eventually_async(lambda: log.committed == [2])
    scene.chain.enter(log, stored, end_offset=2)
    log.append()
    await eventually_async(lambda: log.committed == [2, 3])
    await scene.close()


async def test_appends_of_several_turns_are_noted_together(tmp_path: Path) -> None:
    scene = WalScene(tmp_path, limits=SELDOM_NOTED)
    first, second = scene.lead(2)
    for log in (first, second, first):
        log.append()
        await asyncio.sleep(0)
        assert scene.chain.buffered_bytes == 0
        assert scene.chain.has_uncommitted(log)
    scene.chain.put_empty_object()
    assert scene.chain.buffered_bytes == len(first.content) + len(second.content)
    await committed_everywhere(scene)
    assert (first.committed, second.committed) == ([2], [1])
    await has_bytes_of_logs(scene)
    await scene.close()


async def test_an_object_that_is_due_gets_what_is_not_noted_yet(tmp_path: Path) -> None:
    scene = WalScene(tmp_path, limits=SELDOM_NOTED)
    first, second = scene.lead(2)
    first.append()
    scene.chain._note_all()
    second.append()
    await committed_everywhere(scene)
    assert scene.traffic.object_count == 1
    await has_bytes_of_logs(scene)
    await scene.close()


async def test_notes_set_another_timer_only_if_they_bring_something_forward(
    tmp_path: Path,
) -> None:
    scene = WalScene(tmp_path, limits=dataclasses.replace(NOT_HEDGED, flush_ms=3_600_000.0))
    (log,) = scene.lead(1)
    scene.store.held.clear()
    log.append()
    await eventually_async(lambda: scene.store.put_count == 1)
    log.append()
    scene.chain._note_all()
    timer = scene.chain._timer
    assert timer is not None
    for _ in range(5):
        log.append()
        scene.chain._note_all()
    assert scene.chain._timer is timer
    scene.store.held.set()  # Nothing is in flight then, so the rest is due an hour earlier.
    await committed_everywhere(scene)
    assert timer.cancelled()
    assert scene.traffic.object_count == 2
    await scene.close()


async def test_what_is_not_noted_is_stored_when_its_partition_leaves_or_the_chain_closes(
    tmp_path: Path,
) -> None:
    scene = WalScene(tmp_path, limits=SELDOM_NOTED)
    left, kept = scene.lead(2)
    left.append()
    scene.chain.leave(left)
    await eventually_async(lambda: left.committed == [1])
    kept.append()
    await scene.close()
    assert kept.committed == [1]


async def test_much_that_is_not_noted_is_noted_at_once(tmp_path: Path) -> None:
    scene = WalScene(tmp_path, limits=SELDOM_NOTED)
    (log,) = scene.lead(1)
    log.append(value_size_bytes=NOTE_BYTES_MAX // 2)
    assert scene.chain.buffered_bytes == 0
    log.append(value_size_bytes=NOTE_BYTES_MAX // 2)
    assert scene.chain.buffered_bytes == len(log.content)
    await committed_everywhere(scene)
    await scene.close()


async def test_a_dropped_partition_is_left_out_and_holds_nobody_up(tmp_path: Path) -> None:
    scene = WalScene(tmp_path)
    kept, dropped = scene.lead(2)
    kept.append()
    dropped.append()
    scene.chain._note_all()
    dropped.is_dropped = True
    dropped.chain.leave(dropped)
    dropped.log.delete()
    await eventually_async(lambda: kept.committed == [1])
    assert dropped.committed == []
    assert list(scene.chain._partitions.pending) == [kept.name]
    assert set(await scene.committed_content()) == {kept.name}
    await scene.close()


async def test_what_was_cut_after_the_partition_had_left_holds_nobody_up(tmp_path: Path) -> None:
    """Another node is to lead it, and nobody was told of these records."""
    scene = WalScene(tmp_path)
    kept, moved = scene.lead(2)
    kept.append()
    moved.append()
    scene.chain._note_all()
    scene.chain.leave(moved)
    moved.log.truncate_to(0)
    moved.content = b""
    await eventually_async(lambda: kept.committed == [1])
    assert not scene.chain.is_deposed
    assert set(await scene.committed_content()) == {kept.name}
    await scene.close()


async def test_a_log_that_has_lost_appended_records_ends_the_chain(tmp_path: Path) -> None:
    scene = WalScene(tmp_path)
    damaged, whole = scene.lead(2)
    damaged.append(4)
    whole.append(1)
    scene.chain._note_all()
    damaged.log.truncate_to(0)
    async with asyncio.timeout(SETTLE_S):
        await scene.running
    assert scene.chain.is_deposed
    assert (damaged.committed, whole.committed) == ([], [])
    await scene.close()


async def test_an_object_that_would_get_other_bytes_after_a_restart_ends_the_chain(
    tmp_path: Path,
) -> None:
    scene = WalScene(tmp_path)
    kept, dropped = scene.lead(2)
    scene.store.faults = Faults(vanished=1.0)
    kept.append()
    dropped.append()
    await eventually_async(lambda: scene.store.put_count > 0)
    dropped.is_dropped = True
    scene.worker.kill(0.0)
    async with asyncio.timeout(SETTLE_S):
        await scene.running
    assert scene.chain.is_deposed
    assert kept.committed == []
    assert not (tmp_path / "objects" / wal_key(CLUSTER, scene.name, 0)).exists()
    await scene.close()


async def test_closing_waits_for_what_is_pending_and_no_longer_than_it_may(tmp_path: Path) -> None:
    scene = WalScene(tmp_path)
    (log,) = scene.lead(1)
    for _ in range(5):
        log.append(1, 10_000)
    await scene.chain.close(SETTLE_S)
    assert log.committed[-1] == 5
    assert log.chain is None
    await scene.running
    assert scene.chain._work.tasks == set()
    other = WalScene(tmp_path / "other")
    other.store.held.clear()
    (log,) = other.lead(1)
    log.append()
    await asyncio.sleep(0.02)
    await other.chain.close(0.05)
    assert log.committed == []
    await other.running
    assert other.chain._work.tasks == set()
    other.store.held.set()
    await other.close()
    await scene.close()


async def test_a_partition_that_fails_to_take_a_commit_holds_nobody_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    scene = WalScene(tmp_path)
    first, second = scene.lead(2)

    def fail() -> None:
        raise StorageError("its disk has failed")

    first.on_committed = fail
    first.append()
    second.append()
    await eventually_async(lambda: second.committed == [1])
    assert "commit could not be passed on" in caplog.text
    assert not scene.chain.is_deposed
    await scene.close()


async def test_objects_are_split_where_many_bytes_wait(tmp_path: Path) -> None:
    limits = dataclasses.replace(FAST, pace=PaceLimits(in_flight_max=1, puts_per_second_max=0))
    scene = WalScene(tmp_path, limits=limits)
    scene.store.held.clear()
    logs = scene.lead(2)
    for _ in range(15):
        for log in logs:
            log.append(1, 4_000)
        await asyncio.sleep(0)
    scene.store.held.set()
    await committed_everywhere(scene)
    assert scene.traffic.object_count >= 4
    await has_bytes_of_logs(scene)
    await scene.close()


def test_attempts_are_given_more_time_each() -> None:
    times = [put_timeout_s(8 << 20, attempt) for attempt in range(1, 30)]
    assert times[:3] == [12.0, 24.0, 48.0]
    assert times[3] == 96.0
    assert set(times[4:]) == {PUT_SECONDS_MAX}
    assert put_timeout_s(100, 1) < 5


def test_only_requests_that_cost_something_have_a_budget() -> None:
    config = NodeConfig(diskless_append_puts_per_second_max=3.0)
    paid, free = (writer_limits(config, pays_for_requests=one) for one in (True, False))
    assert (paid.pace.puts_per_second_max, paid.pace.hedge_percentile) == (3.0, 95.0)
    assert (free.pace.puts_per_second_max, free.pace.hedge_percentile) == (0.0, 0.0)
    assert (paid.flush_ms, paid.idle_flush_ms) == (100, 10)
    assert free.idle_flush_ms < 1 < free.flush_ms <= 10
    assert paid.gather_ms == 0 < free.gather_ms <= 1  # S3 has several objects in flight.
    assert (paid.note_ms, free.note_ms) == (5, 0)
    assert paid.note_ms < paid.idle_flush_ms
    brisk = writer_limits(NodeConfig(diskless_append_commit_interval_ms=4))
    assert brisk.note_ms == 1
    assert paid.pace.in_flight_max == free.pace.in_flight_max
    assert parse_object_location("s3://bucket").has_price
    assert not parse_object_location("file:///objects").has_price


async def test_a_chain_ends_although_the_worker_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that stops would wait for ever."""
    monkeypatch.setattr(chain_work, "LAST_DROP_SECONDS_MAX", 0.05)
    scene = WalScene(tmp_path)
    (log,) = scene.lead(1)
    log.append(3)
    await committed_everywhere(scene)
    call, goes_on = scene.worker.call, asyncio.Event()

    async def hang(request: Request, on_event: OnEvent | None = None) -> Fields:
        if isinstance(request, WalDropRequest):
            await goes_on.wait()
        return await call(request, on_event)

    monkeypatch.setattr(scene.worker, "call", hang)
    async with asyncio.timeout(SETTLE_S):
        await scene.chain.close(0.1)
    goes_on.set()
    await scene.close()
