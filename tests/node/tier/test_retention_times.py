"""Which partitions retention looks at: what has changed, and what expires by itself."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tidelog_node.replicas.replica import Replica
from tidelog_node.tier.attempts import RETRY_DELAY_S_MIN
from tidelog_node.tier.led_partition import TieredReplica
from tidelog_node.tier.retention_times import RetentionTimes
from tidelog_node.upkeep.log_changes import LogChanges

from tests.support.tier_node import CONFIG, TierNode, running_node
from tests.support.waiting import eventually_async

INTERVAL_S = 0.1
HOUR_MS = 3_600_000
LIMITED = {"retention.ms": str(HOUR_MS), "file.delete.delay.ms": "0"}


@asynccontextmanager
async def retaining_node(folder: Path) -> AsyncIterator[TierNode]:
    """A node that applies retention by itself, often."""
    interval_ms = int(INTERVAL_S * 1000)
    config = dataclasses.replace(CONFIG, log_retention_check_interval_ms=interval_ms)
    async with running_node(folder, config) as node:
        yield node


def checked_at(node: TierNode, replica: Replica) -> float:
    """Return when it was last looked for what is too old in the partition."""
    led = node.tier._partitions.get_led((replica.topic_id, replica.partition.partition))
    return 0.0 if led is None else led.retained_at


async def settled_topic(node: TierNode) -> Replica:
    """Return a partition that retention only looks at when something of it expires."""
    replica = await node.create_topic(configs=LIMITED)
    node.produce_segments(replica, 2)
    await node.wait_copied(replica, 2)

    async def is_settled() -> bool:
        times = node.tier._retaining.times
        return replica in times._expiring and replica not in times._due

    await eventually_async(is_settled)
    return replica


async def cut(replica: Replica) -> None:
    async def is_cut() -> bool:
        return replica.log.log_start_offset == 100

    await eventually_async(is_cut)


async def test_a_partition_in_which_nothing_changes_is_not_looked_at(tmp_path: Path) -> None:
    async with retaining_node(tmp_path) as node:
        replica = await settled_topic(node)
        last = checked_at(node, replica)
        await asyncio.sleep(5 * INTERVAL_S)
        assert checked_at(node, replica) == last
        node.produce(replica, 1)

        async def is_checked() -> bool:
            return checked_at(node, replica) > last

        await eventually_async(is_checked)


async def jump(node: TierNode) -> None:
    node.clock.now_ms += 2 * HOUR_MS


async def shorten(node: TierNode) -> None:
    await node.configure({**LIMITED, "retention.ms": "1"})


async def shrink(node: TierNode) -> None:
    await node.configure({**LIMITED, "retention.ms": "-1", "retention.bytes": "0"})


@pytest.mark.parametrize("step", [jump, shorten, shrink])
async def test_what_expires_goes_without_an_append(
    tmp_path: Path, step: Callable[[TierNode], Awaitable[None]]
) -> None:
    """With time, also where the clock jumps, and by other settings."""
    async with retaining_node(tmp_path) as node:
        replica = await settled_topic(node)
        assert replica.log.log_start_offset == 0
        await step(node)
        await cut(replica)


async def test_what_has_expired_while_the_clock_was_in_doubt_goes_once_it_is_not(
    tmp_path: Path,
) -> None:
    async with retaining_node(tmp_path) as node:
        replica = await settled_topic(node)
        node.is_clock_trusted = False
        node.clock.now_ms += 2 * HOUR_MS
        await asyncio.sleep(3 * INTERVAL_S)
        assert replica.log.log_start_offset == 0
        node.is_clock_trusted = True
        await cut(replica)


async def test_what_nobody_has_noted_is_seen_in_turn(tmp_path: Path) -> None:
    async with retaining_node(tmp_path) as node:
        replica = await settled_topic(node)
        node.clock.now_ms += 2 * HOUR_MS
        node.tier._retaining.times.forget(replica)
        await asyncio.sleep(3 * INTERVAL_S)
        assert replica.log.log_start_offset == 0
        in_turn = LogChanges(node.replicas, unchanged_count=1)
        in_turn.subscribe(node.tier.on_changed)
        in_turn.publish()
        await cut(replica)


async def test_an_empty_partition_that_was_led_before_is_looked_at_once(tmp_path: Path) -> None:
    """There is nothing to open, so nothing shows that it has been taken over."""
    async with retaining_node(tmp_path) as node:
        node.tier._retaining._holds_files = node.directories.holds
        replica = await node.create_topic(configs=LIMITED)
        await node.change_partition(replica, leader_epoch=3)
        await node.view.refresh()

        async def is_checked() -> bool:
            led = node.tier._partitions.known_led(replica)
            return led is not None and led.was_visited

        await eventually_async(is_checked)
        assert replica.opened_log is None
        node.tier._retaining.times.forget(replica)
        node.tier.on_changed([replica])
        assert replica in node.tier._retaining.times._due
        assert node.tier._retaining.times.wait_s > 0


async def test_a_deleted_partition_is_forgotten(tmp_path: Path) -> None:
    async with retaining_node(tmp_path) as node:
        replica = await settled_topic(node)
        assert node.tier._retaining.times._expiring
        await node.delete_topic()

        async def is_forgotten() -> bool:
            queues = (
                node.tier._retaining.times._expiring,
                node.tier._retaining.times._due,
                node.tier._copying._to_copy,
            )
            return not any(replica in queue for queue in queues) and not node.tier._partitions._led

        await eventually_async(is_forgotten)


async def test_a_partition_that_is_deleted_while_it_is_looked_at_is_forgotten(
    tmp_path: Path,
) -> None:
    async with running_node(tmp_path) as node:
        replica = await node.create_topic(configs=LIMITED)
        node.produce_segments(replica, 2)
        await node.wait_copied(replica, 2)
        times, led = node.tier._retaining.times, node.tier._partitions.lead(replica)
        async with led.lock:
            running = asyncio.create_task(node.tier.apply_retention())
            await asyncio.sleep(0)
            await node.delete_topic()
            node.changes.publish()
            assert replica not in times._due
        await running
        assert replica not in times._due
        assert replica not in times._expiring


async def test_a_partition_that_breaks_retention_keeps_no_other_from_it(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        broken = await node.create_topic("broken", configs=LIMITED)
        other = await node.create_topic("other", configs=LIMITED)
        for replica in (broken, other):
            node.produce_segments(replica, 2)
            await node.wait_copied(replica, 2)
        node.clock.now_ms += 2 * HOUR_MS
        node.tier._partitions.lead(broken).not_before = None  # type: ignore[assignment]
        await node.tier.apply_retention()
        assert (broken.log.log_start_offset, other.log.log_start_offset) == (0, 100)
        assert broken in node.tier._retaining.times._due
        await asyncio.sleep(RETRY_DELAY_S_MIN)
        await node.tier.apply_retention()
        assert broken.log.log_start_offset == 100


async def test_a_directory_that_cannot_be_read_keeps_no_other_partition_from_retention(
    tmp_path: Path,
) -> None:
    def holds_files(replica: TieredReplica) -> bool:
        if replica.partition.topic == "broken":
            raise OSError(errno.EIO, "the disk does not answer")
        return True

    async with running_node(tmp_path) as node:
        node.tier._retaining._holds_files = holds_files
        await node.create_topic("broken", configs=LIMITED)
        other = await node.create_topic("other", configs=LIMITED)
        node.produce_segments(other, 2)
        node.clock.now_ms += 2 * HOUR_MS
        await node.tier.apply_retention()
        assert other.log.log_start_offset == 100


# -- the times alone --


class Clocks:
    now = 100.0
    wall_ms = 5_000_000


@pytest.fixture
def times() -> RetentionTimes:
    Clocks.now, Clocks.wall_ms = 100.0, 5_000_000
    return RetentionTimes(interval_s=40.0, now=lambda: Clocks.now, clock_ms=lambda: Clocks.wall_ms)


class HeldReplica:
    is_dropped = False


def a_replica() -> Any:
    return HeldReplica()


def test_partitions_that_are_due_one_after_the_other_go_together(times: RetentionTimes) -> None:
    replicas = [a_replica() for _ in range(10)]
    for number, replica in enumerate(replicas, start=1):
        times.put_regular(replica, 100.0 + number)
    assert times.wait_s == 40.0
    Clocks.now = 149.9
    assert times.take() == []
    Clocks.now = 150.0
    assert times.take() == replicas
    assert times.take() == []


def test_a_partition_that_changes_on_and_on_is_due_once_an_interval(times: RetentionTimes) -> None:
    replica = a_replica()
    for second in range(10):
        Clocks.now = 100.0 + second
        times.put_regular(replica, 100.0)
    Clocks.now = 140.0
    assert times.take() == [replica]


def test_one_that_was_not_looked_at_for_long_is_due_soon(times: RetentionTimes) -> None:
    replica = a_replica()
    Clocks.now = 1001.0
    times.put_regular(replica, 100.0)
    assert times.wait_s == 9.0
    Clocks.now = 1010.0
    assert times.take() == [replica]


def test_expiry_goes_by_the_wall_clock(times: RetentionTimes) -> None:
    replica = a_replica()
    times.expires_at(replica, Clocks.wall_ms + 100_000)
    Clocks.now += 1_000_000
    assert times.take() == []
    assert times.wait_s == 40.0
    Clocks.wall_ms += 95_000
    assert times.wait_s == 10.0  # Others go with it.
    Clocks.wall_ms += 5_000
    assert times.take() == [replica]


def test_what_waits_for_something_else_is_looked_at_once_an_interval(times: RetentionTimes) -> None:
    replica = a_replica()
    times.expires_at(replica, 0)
    Clocks.now = 139.9
    assert times.take() == []
    Clocks.now = 140.0
    assert times.take() == [replica]


def test_a_partition_that_is_due_twice_is_taken_once(times: RetentionTimes) -> None:
    replica = a_replica()
    times.expires_at(replica, Clocks.wall_ms + 1)
    times.put_in(replica, 1.0)
    times.put_in(replica, 5.0)
    Clocks.now, Clocks.wall_ms = 200.0, Clocks.wall_ms + 50_000
    assert times.take() == [replica]
    assert times.wait_s == 40.0


def test_a_partition_of_which_nothing_expires_is_never_due(times: RetentionTimes) -> None:
    replica = a_replica()
    times.expires_at(replica, Clocks.wall_ms + 1)
    times.expires_at(replica, None)
    Clocks.now, Clocks.wall_ms = 1e9, 10**12
    assert times.take() == []


def test_a_partition_that_was_dropped_is_never_due(times: RetentionTimes) -> None:
    """Nobody would have it forgotten again."""
    replica = a_replica()
    times.expires_at(replica, Clocks.wall_ms + 1)
    replica.is_dropped = True
    times.put_in(replica, 1.0)
    times.put_regular(replica, 100.0)
    times.expires_at(replica, Clocks.wall_ms + 1)
    Clocks.now, Clocks.wall_ms = 1e9, 10**12
    assert times.take() == []
