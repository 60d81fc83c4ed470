"""When logs are rolled and producers forgotten, and which logs are looked at for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from tidelog_core.clock import wall_clock_ms
from tidelog_core.config import NodeConfig
from tidelog_core.errors import StorageError
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.producers.log_producers import EXPIRY_VISITS_MAX
from tidelog_node.replicas.replica import Replica
from tidelog_node.upkeep import log_changes, log_upkeep
from tidelog_node.upkeep.flusher import Flusher
from tidelog_node.upkeep.log_changes import RETRY_SECONDS, UNCHANGED_COUNT, LogChanges
from tidelog_node.upkeep.log_upkeep import EXPIRE_MORE_MS, RETRY_MS, LogUpkeep

from tests.node.replication.led_node import LedNode, led_node
from tests.support.batches import batch_of
from tests.support.hand_chain import DISKLESS, HandChain

HOUR_MS = 3_600_000
PRODUCER = (7, 0, 0)


class Flushing:
    """A node whose upkeep of logs is told by hand, at a time that a test sets."""

    def __init__(self, node: LedNode) -> None:
        self.node = node
        self.now_ms = wall_clock_ms()
        self.flusher = Flusher(node.executor)
        self.upkeep = LogUpkeep(self.flusher, node.replicas, clock_ms=lambda: self.now_ms)
        self.changes = LogChanges(node.replicas)
        self.changes.subscribe(self.upkeep.on_changed)

    async def create(self, *, partition_count: int = 1, **configs: str) -> Replica:
        replica = await self.node.create_topic(
            replicas=(1,), partition_count=partition_count, **configs
        )
        for one in self.node.replicas.replicas():
            clock = one.log._clock_ms = one.log._segments.clock_ms = lambda: self.now_ms
            one.log._appender._clock_ms = one.log.producers._clock_ms = clock
        return replica

    def sweep(self, *, after_ms: int) -> None:
        self.now_ms += after_ms
        self.upkeep.sweep()


@asynccontextmanager
async def flushing(folder: Path, config: NodeConfig | None = None) -> AsyncIterator[Flushing]:
    async with led_node(folder, config) as node:
        one = Flushing(node)
        yield one
        await one.flusher.close()


@contextmanager
def busy_executor(flusher: Flusher) -> Iterator[None]:
    """Have flushes queue behind other work until the end."""
    gate, executor = threading.Event(), flusher._executor
    with ThreadPoolExecutor(1) as queue:
        queue.submit(gate.wait)
        flusher._executor = queue
        try:
            yield
        finally:
            flusher._executor = executor
            gate.set()


async def test_a_segment_is_rolled_when_it_is_old_enough_without_another_append(
    tmp_path: Path,
) -> None:
    async with flushing(tmp_path) as one:
        replica = await one.create(**{"segment.ms": str(HOUR_MS)})
        replica.append(bytearray(batch_of(b"x")))
        one.changes.publish()
        one.sweep(after_ms=HOUR_MS)
        assert replica.log.active_segment_base_offset == 0
        one.sweep(after_ms=1)
        assert replica.log.active_segment_base_offset == 1
        await one.flusher.flush(replica)
        assert replica.log.recovery_point == 1
        assert replica in one.node.replicas.take_changed()  # for who copies and compacts


async def test_a_shorter_age_of_segments_holds_at_once(tmp_path: Path) -> None:
    async with flushing(tmp_path) as one:
        replica = await one.create()
        replica.append(bytearray(batch_of(b"x")))
        one.changes.publish()
        one.sweep(after_ms=HOUR_MS)
        await one.node.configure(**{"segment.ms": str(HOUR_MS - 1)})
        one.changes.publish()
        one.sweep(after_ms=0)
        assert replica.log.active_segment_base_offset == 1


async def test_a_clock_that_was_put_back_delays_a_roll_and_does_not_lose_it(tmp_path: Path) -> None:
    async with flushing(tmp_path) as one:
        replica = await one.create(**{"segment.ms": str(HOUR_MS)})
        replica.append(bytearray(batch_of(b"x")))
        one.changes.publish()
        one.sweep(after_ms=-HOUR_MS)
        one.sweep(after_ms=2 * HOUR_MS)
        assert replica.log.active_segment_base_offset == 0
        one.sweep(after_ms=1)
        assert replica.log.active_segment_base_offset == 1


async def test_a_roll_that_finds_no_room_is_tried_again(tmp_path: Path) -> None:
    async with flushing(tmp_path) as one:
        replica = await one.create(**{"segment.ms": str(HOUR_MS)})
        replica.append(bytearray(batch_of(b"x")))
        one.changes.publish()
        snapshot = replica.log.directory / "00000000000000000001.snapshot"
        snapshot.symlink_to("/dev/full")
        one.sweep(after_ms=HOUR_MS + 1)
        assert replica.log.active_segment_base_offset == 0
        snapshot.unlink()
        one.sweep(after_ms=RETRY_MS)
        assert replica.log.active_segment_base_offset == 1


async def test_a_log_that_breaks_the_sweep_keeps_no_other_from_its_turn(tmp_path: Path) -> None:
    """The loop goes on, and the broken log has its next turn a while later."""
    config = NodeConfig(producer_id_expiration_ms=HOUR_MS)
    async with flushing(tmp_path, config) as one:
        await one.create(partition_count=3, **{"segment.ms": str(HOUR_MS)})
        logs = [replica.log for replica in one.node.replicas.replicas()]
        for replica in one.node.replicas.replicas():
            replica.append(bytearray(batch_of(b"x", producer=PRODUCER)))
        one.changes.publish()
        clock_ms = logs[0]._clock_ms
        logs[0]._clock_ms = logs[0].producers._clock_ms = broken_clock_ms
        one.sweep(after_ms=HOUR_MS + 1)
        assert [log.active_segment_base_offset for log in logs] == [0, 1, 1]
        assert [log.producers.count for log in logs] == [1, 0, 0]
        logs[0]._clock_ms = logs[0].producers._clock_ms = clock_ms
        one.sweep(after_ms=RETRY_MS - 1)
        assert logs[0].active_segment_base_offset == 0
        one.sweep(after_ms=1)
        assert logs[0].active_segment_base_offset == 1
        assert logs[0].producers.count == 0


def broken_clock_ms() -> int:
    raise ValueError("this log's clock is broken")


async def test_idle_producers_are_forgotten(tmp_path: Path) -> None:
    config = NodeConfig(producer_id_expiration_ms=24 * HOUR_MS)
    async with flushing(tmp_path, config) as one:
        replica = await one.create()
        replica.append(bytearray(batch_of(b"x", producer=PRODUCER)))
        one.changes.publish()
        one.sweep(after_ms=24 * HOUR_MS - 1)
        assert replica.log.producers.count == 1
        one.sweep(after_ms=1)
        assert replica.log.producers.count == 0
        assert replica not in one.upkeep._to_expire


async def test_many_idle_producers_are_forgotten_in_turns(tmp_path: Path) -> None:
    config = NodeConfig(producer_id_expiration_ms=24 * HOUR_MS)
    async with flushing(tmp_path, config) as one:
        replica = await one.create()
        replica.append(bytearray(batch_of(b"x", producer=PRODUCER)))
        producers = replica.log.producers
        ((_, known),) = producers.items()
        for number in range(3 * EXPIRY_VISITS_MAX):
            producers.state.load(PRODUCER[0] + 1 + number, known.copy())
        one.changes.publish()
        one.sweep(after_ms=24 * HOUR_MS)
        for left in (2, 1):
            assert producers.count == left * EXPIRY_VISITS_MAX + 1
            one.sweep(after_ms=EXPIRE_MORE_MS)
        one.sweep(after_ms=EXPIRE_MORE_MS)
        assert producers.count == 0


async def test_a_dropped_log_is_not_kept_in_mind(tmp_path: Path) -> None:
    async with flushing(tmp_path) as one:
        replica = await one.create()
        replica.append(bytearray(batch_of(b"x", producer=PRODUCER)))
        one.changes.publish()
        assert replica in one.upkeep._to_roll
        assert replica in one.upkeep._to_expire
        await one.node.delete_topic()
        one.changes.publish()
        assert replica not in one.upkeep._to_roll
        assert replica not in one.upkeep._to_expire


async def test_logs_that_have_not_changed_are_told_a_few_at_a_time(tmp_path: Path) -> None:
    async with flushing(tmp_path) as one:
        count = 10 * UNCHANGED_COUNT
        await one.create(partition_count=count)
        told: list[Replica] = []
        one.changes.subscribe(told.extend)
        one.changes.publish()
        assert set(told) == set(one.node.replicas.replicas())  # Nobody subscribes too late.
        told.clear()
        one.changes.publish()
        assert len(told) == UNCHANGED_COUNT
        for _ in range(10):
            one.changes.publish()
        assert set(told) == set(one.node.replicas.replicas())


@pytest.mark.parametrize("cut", [LocalLog.truncate_to, LocalLog.truncate_fully_and_start_at])
async def test_a_log_that_was_cut_is_reported(
    tmp_path: Path, cut: Callable[[LocalLog, int], None]
) -> None:
    async with flushing(tmp_path) as one:
        replica = await one.create()
        replica.append(bytearray(batch_of(b"x")))
        replica.append(bytearray(batch_of(b"y")))
        one.node.replicas.take_changed()
        cut(replica.log, 1)
        assert one.node.replicas.take_changed() == {replica}


async def test_many_changes_are_told_in_portions_between_other_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_changes, "PORTION_COUNT_MAX", 3)

    async with flushing(tmp_path) as one:
        await one.create(partition_count=10)
        sizes: list[int] = []
        changes = LogChanges(one.node.replicas, unchanged_count=0)
        changes.subscribe(lambda replicas: sizes.append(len(replicas)))
        changes.publish()
        assert sorted(sizes) == [1, 3, 3, 3]


async def test_a_log_that_breaks_a_subscriber_keeps_no_other_from_being_told(
    tmp_path: Path,
) -> None:
    """It is told of again, a while later."""
    async with flushing(tmp_path) as one:
        await one.create(partition_count=3)
        broken, *others = one.node.replicas.replicas()
        now, told, heard = 0.0, [], []

        def hear(replicas: Collection[Replica]) -> None:
            if now < RETRY_SECONDS and broken in replicas:
                raise ValueError("this log cannot be looked at")
            heard.extend(replicas)

        changes = LogChanges(one.node.replicas, unchanged_count=0, now=lambda: now)
        changes.subscribe(hear)
        changes.subscribe(told.extend)
        changes.publish()
        assert set(told) == {broken, *others}
        assert set(heard) == set(others)
        heard.clear()
        changes.publish()
        assert not heard
        now = RETRY_SECONDS
        changes.publish()
        assert heard == [broken]


async def test_the_loops_over_logs_survive_a_log_that_breaks_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are tasks whose end stops the node."""
    monkeypatch.setattr(log_upkeep, "SWEEP_SECONDS", 0.01)

    async with flushing(tmp_path) as one:
        await one.create(**{"segment.ms": "1"})
        (replica,) = one.node.replicas.replicas()
        replica.append(bytearray(batch_of(b"x")))
        one.changes.publish()
        replica.log._clock_ms = broken_clock_ms
        one.now_ms += HOUR_MS
        calls: list[int] = []

        def refuse(replicas: Collection[Replica]) -> None:
            calls.append(len(replicas))
            raise ValueError("no log can be looked at")

        changes = LogChanges(one.node.replicas, interval_s=0.01)
        changes.subscribe(refuse)
        loops = [
            asyncio.create_task(changes.run()),
            asyncio.create_task(one.upkeep.run()),
        ]
        retry_ms = one.now_ms + RETRY_MS
        async with asyncio.timeout(60):
            while len(calls) < 3 or one.upkeep._to_roll.first_due != retry_ms:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not any(loop.done() for loop in loops)
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)


async def test_a_flush_that_breaks_in_any_way_keeps_no_later_one_from_the_disk(
    tmp_path: Path,
) -> None:
    """Records are acknowledged on the word of a flush: one that did nothing must not give it."""
    async with flushing(tmp_path) as one:
        replica = await one.create()
        replica.append(bytearray(batch_of(b"x")))
        broken = ThreadPoolExecutor(1)
        broken.shutdown()
        one.flusher._executor, executor = broken, one.flusher._executor
        with pytest.raises(RuntimeError, match="after shutdown"):
            await one.flusher.flush(replica)
        assert not replica.is_in_trouble
        one.flusher._executor = executor
        await one.flusher.flush(replica)
        assert replica.log.recovery_point == replica.log.log_end_offset == 1


async def test_a_flush_that_is_cancelled_acknowledges_nothing(tmp_path: Path) -> None:
    async with flushing(tmp_path) as one:
        replica = await one.create()
        replica.append(bytearray(batch_of(b"x")))
        with busy_executor(one.flusher):
            first = one.flusher.flush(replica)
            replica.append(bytearray(batch_of(b"y")))
            chained = one.flusher.flush(replica)
            for outcome in (first, chained):
                await asyncio.sleep(0)  # The flush is queued.
                one.flusher._running[replica].cancel()
                with pytest.raises(StorageError, match="cancelled"):
                    await outcome
        assert replica.log.recovery_point == 0
        await one.flusher.flush(replica)
        assert replica.log.recovery_point == replica.log.log_end_offset == 2


async def test_a_caller_that_is_cancelled_takes_the_flush_from_no_other(tmp_path: Path) -> None:
    async with flushing(tmp_path) as one:
        replica = await one.create()
        replica.append(bytearray(batch_of(b"x")))
        with busy_executor(one.flusher):
            first = one.flusher.flush(replica)
            await asyncio.sleep(0)
            replica.append(bytearray(batch_of(b"y")))
            impatient, patient = (one.flusher.flush(replica) for _ in range(2))
            first.cancel()
            impatient.cancel()
        await patient
        assert replica.log.recovery_point == replica.log.log_end_offset == 2


async def test_acks_and_rolls_of_a_diskless_topic_wait_for_no_flush(tmp_path: Path) -> None:
    async with flushing(tmp_path) as one:
        replica = await one.create(**DISKLESS, **{"flush.messages": "1", "segment.ms": "1"})
        HandChain().enter(one.node.replicas, replica, 0)
        with busy_executor(one.node.flusher), busy_executor(one.flusher):
            pending = one.node.send(b"a")
            replica.on_chain_committed(1)
            assert (await pending).base_offset == 0
            one.changes.publish()
            one.sweep(after_ms=10)
            assert replica.log.active_segment_base_offset == 1
            one.changes.publish()
            assert not one.flusher._running
            assert not one.node.flusher._running


async def test_a_diskless_log_is_flushed_up_to_the_end_of_the_tier(tmp_path: Path) -> None:
    async with flushing(tmp_path) as one:
        replica = await one.create(**DISKLESS)
        HandChain().enter(one.node.replicas, replica, 0)
        for _ in range(3):
            replica.append(bytearray(batch_of(b"x")))
            replica.log.roll()
        replica.on_chain_committed(3)
        one.changes.publish()
        assert not one.flusher._running
        replica.log.set_tiered_up_to(2)
        replica.note_changed()
        one.changes.publish()
        await asyncio.gather(*one.flusher._running.values())
        assert replica.log.recovery_point == 2
        one.changes.publish()
        assert not one.flusher._running
