"""Leaders, DeleteRecords, the retention function and a rewriter against each other, step by step.

At every step, whoever dies or hears nothing at whichever of them: no reader is pointed at what is
not there, states go forward, a leader of before changes nothing, nobody who has nothing but the
bucket misses a record or finds half a segment; and in the end nothing is left over.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from tidelog_core.config import NodeConfig, topic_config
from tidelog_core.errors import (
    NotLeaderOrFollower,
    ObjectNotFound,
    TidelogError,
    VersionConflict,
)
from tidelog_core.metadata import records
from tidelog_core.metadata.leadership import (
    Leadership,
    advance_log_start,
    leadership_of,
    require_leadership,
)
from tidelog_core.metadata.records import SegmentMeta, SegmentState
from tidelog_core.retention.selection import log_start_after_tier_retention, total_limits
from tidelog_core.tier.keys import SegmentKeys, segment_keys
from tidelog_core.tier.lifecycle import (
    AT_ONCE,
    below_log_start,
    delete_given_up_copy,
    end_deletions,
    finish_copy,
    read_segments,
    select_deletable,
    start_copy,
    start_deletions,
)
from tidelog_core.tier.persisting import persist_log_start
from tidelog_core.tier.planning import finished_segments, select_leftovers, tiered_end_offset
from tidelog_core.tier.tiered_segments import TieredSegments
from tidelog_core.tier_compaction.compact import compact_partition
from tidelog_functions.invocation import TimeLimit
from tidelog_functions.retention.partition import PartitionRetention

from tests.core.tier.lifecycle_world import CONFIGS, DELAY_MS, FIRST_EPOCH, LifecycleWorld
from tests.support.function_world import Steps
from tests.support.tiered_partition import CLUSTER_ID, TOPIC, described
from tests.support.watched_stores import Crash, Fault, Process

CONFIG = topic_config(CONFIGS, NodeConfig())
ROUNDS = 3  # of each that comes again
CLAIM_MS = 900_000


def keys_of(segment: SegmentMeta) -> SegmentKeys:
    return segment_keys(CLUSTER_ID, TOPIC, segment)


class Leader:
    """Does what a node does with the tier of a partition that it leads."""

    def __init__(self, world: LifecycleWorld, name: str, epoch: int, process: Process) -> None:
        self.world = world
        self.store, self.objects = world.stores(name, process)
        self.leadership = Leadership(world.tier.topic.topic_id, 0, epoch)
        self.log_end = world.log_ends[epoch]

    async def run(self) -> None:
        for _ in range(ROUNDS):
            with contextlib.suppress(VersionConflict):
                await self.clean_up()
                await self.copy()
                await self.retain()

    async def segments(self) -> list[SegmentMeta]:
        return await read_segments(self.store, self.leadership.topic_id, 0)

    async def clean_up(self) -> None:
        now_ms = self.world.clock()
        for leftover in select_leftovers(await self.segments(), under_way=(), now_ms=now_ms):
            if leftover.state is SegmentState.COPY_STARTED:
                given_up = await start_deletions(
                    self.store, [leftover], deletable_ms=AT_ONCE, leadership=self.leadership
                )
                await self.end(given_up)

    async def copy(self) -> None:
        log_start = (await require_leadership(self.store, self.leadership)).log_start_offset
        finished = finished_segments(await self.segments())
        tiered_end = tiered_end_offset(finished, log_start)
        for batches in self.world.segments:
            fresh = self.world.tier.describe(batches, leader_epoch=self.leadership.leader_epoch)
            if tiered_end < fresh.end_offset <= self.log_end:
                return await self.copy_one(fresh, batches, finished)
        return None

    async def copy_one(
        self, fresh: SegmentMeta, batches: list[bytes], finished: list[SegmentMeta]
    ) -> None:
        started = await start_copy(self.store, self.leadership, fresh)
        keys = keys_of(started)
        log, index = self.world.tier.build(started, batches, finished)
        await self.objects.put_file(keys.log, log)
        await self.objects.put(keys.index, index.data)
        try:
            await finish_copy(self.store, self.leadership, described(started, index))
        except (NotLeaderOrFollower, VersionConflict):
            await delete_given_up_copy(self.store, self.objects, started, keys)
            raise

    async def retain(self) -> None:
        metas = await self.segments()
        stored = (await require_leadership(self.store, self.leadership)).log_start_offset
        start = log_start_after_tier_retention(
            TieredSegments(metas),
            total_limits(CONFIG),
            log_start_offset=stored,
            now_ms=self.world.clock(),
        )
        start = await advance_log_start(self.store, self.leadership, start)
        expired = below_log_start(metas, start)
        if expired:
            await persist_log_start(
                self.objects, CLUSTER_ID, self.world.tier.topic, 0, start=start, before=stored
            )
            deletable_ms = self.world.clock() + DELAY_MS
            await start_deletions(self.store, expired, deletable_ms=deletable_ms)
        await self.end(await self.segments())

    async def end(self, segments: list[SegmentMeta]) -> None:
        due = select_deletable(segments, now_ms=self.world.clock())
        await end_deletions(self.store, self.objects, due, keys_of=keys_of)


async def elect(world: LifecycleWorld) -> None:
    """Have another leader, whose log ends where the tier does: nobody else was alive."""
    store, _ = world.stores("election", Process())
    for _ in range(ROUNDS):
        await world.stage.turn("election")
    while True:
        item = await store.get(records.partition_key(world.tier.topic.topic_id, 0))
        assert item is not None
        before = records.Partition.from_item(item)
        after = dataclasses.replace(before, leader=2, leader_epoch=before.leader_epoch + 1)
        tiered = finished_segments(await world.metas())
        ends = [segment.end_offset for segment in tiered]
        # In one step with the write: what is copied by then, the new leader has to have.
        world.log_ends[after.leader_epoch] = max(before.log_start_offset, *ends, 0)
        try:
            await world.store.commit([records.put(after)])
        except VersionConflict:
            continue
        break
    with contextlib.suppress(NotLeaderOrFollower):
        await Leader(world, "election", after.leader_epoch, Process()).run()


async def delete_records(world: LifecycleWorld, process: Process) -> None:
    store, _ = world.stores("delete records", process)
    leadership = Leadership(world.tier.topic.topic_id, 0, FIRST_EPOCH)
    for offset in (2, 7, world.log_ends[FIRST_EPOCH]):
        await advance_log_start(store, leadership, offset)


async def retain(world: LifecycleWorld, process: Process) -> None:
    store, objects = world.stores("function", process)
    retention = PartitionRetention(
        store=store,
        objects=objects,
        cluster_id=CLUSTER_ID,
        topic_config=lambda _, __: CONFIG,
        clock_ms=world.clock,
        may_expire=lambda: True,
        limit=TimeLimit(Steps(1_000_000)),
    )
    for _ in range(ROUNDS):
        await retention.apply(world.tier.topic, 0)


async def rewrite(world: LifecycleWorld, process: Process) -> None:
    store, objects = world.stores("rewriter", process)
    for _ in range(ROUNDS):
        # Retention may take a segment that is about to be read.
        with contextlib.suppress(ObjectNotFound):
            await compact_partition(world.tier.tier(store=store, objects=objects), is_forced=True)


async def lead(world: LifecycleWorld, process: Process) -> None:
    await Leader(world, "leader", FIRST_EPOCH, process).run()


async def pass_time(world: LifecycleWorld) -> None:
    for _ in range(2 * ROUNDS):
        await world.stage.turn("time")
        world.clock.now_ms += DELAY_MS // 2


async def enduring(actor: Coroutine[Any, Any, None]) -> None:
    """Run an actor to its end, be it that it dies or is told that it may not."""
    with contextlib.suppress(Crash, TidelogError):
        await actor


async def come_to_rest(world: LifecycleWorld) -> None:
    """Have everyone once more, one after the other, once every claim and delay is over."""
    for _ in range(5):
        world.clock.now_ms += CLAIM_MS
        current = leadership_of(await world.tier.stored_partition()).leader_epoch
        await world.stage.play({"function": retain(world, Process())}, world)
        await world.stage.play({"rewriter": rewrite(world, Process())}, world)
        leader = Leader(world, "leader", current, Process())
        await world.stage.play({"leader": leader.run()}, world)
    await world.check_rest()


async def play(folder: Path, seed: int) -> int:
    world = LifecycleWorld(folder, seed)
    await world.start()
    chance = random.Random(seed)

    def process() -> Process:
        """Return one that nothing happens to, or one that something does."""
        if chance.random() < 0.5:
            return Process()
        return Process(chance.randrange(40), chance.choice(list(Fault)))

    actors = {
        "leader": lead(world, process()),
        "delete records": delete_records(world, process()),
        "function": retain(world, process()),
        "rewriter": rewrite(world, process()),
        "election": elect(world),
        "time": pass_time(world),
    }
    # Some alone with each other, all of them mostly.
    for name in chance.sample(sorted(actors), chance.choice([0, 0, 1, 3])):
        actors.pop(name).close()
    steps = await world.stage.play({n: enduring(actor) for n, actor in actors.items()}, world)
    await come_to_rest(world)
    return steps


def play_seeds(folder: Path, seeds: range) -> int:
    steps = 0
    for seed in seeds:
        print(f"seed {seed}")
        one = folder / str(seed)
        one.mkdir()
        steps += asyncio.run(play(one, seed))
    return steps


def test_nobody_harms_anybody_whatever_the_order_of_their_steps(tmp_path: Path) -> None:
    assert play_seeds(tmp_path, range(8)) > 300


@pytest.mark.slow
def test_nobody_harms_anybody_in_hundreds_of_orders(tmp_path: Path) -> None:
    assert play_seeds(tmp_path, range(100, 400)) > 10_000
