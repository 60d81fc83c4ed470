"""A cluster of two topics in which segments are copied, deleted and scrubbed in any order."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import strategies as st
from tidelog_core.errors import TidelogError
from tidelog_core.metadata.records import SegmentMeta, SegmentState, Topic
from tidelog_core.retention.orphans import AgeLimits
from tidelog_core.tier.keys import SegmentKey

from tests.support.function_world import (
    HOUR_MS,
    RECORDS_PER_SEGMENT,
    FunctionWorld,
    run_retention,
)
from tests.support.watched_stores import (
    Crash,
    Fault,
    Process,
    WatchedMetadata,
    WatchedObjects,
    Witness,
)

DELAY_MS = 60_000
RETENTION_MS = HOUR_MS
RETENTION_BYTES = 250
CONFIGS = {
    "file.delete.delay.ms": str(DELAY_MS),
    "retention.ms": str(RETENTION_MS),
    "retention.bytes": str(RETENTION_BYTES),
}
MEMORY = Path("/dev/shm")


@contextlib.contextmanager
def quick_folder() -> Iterator[Path]:
    """Give a folder where fsync costs nothing, if the machine has one."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        yield Path(name)


@dataclass
class PartitionModel:
    """The expected state of one partition's tier."""

    copied: list[SegmentMeta] = field(default_factory=list)  # every one that ever finished
    under_way: SegmentMeta | None = None
    end_offset: int = 0
    records_deleted_up_to: int = 0

    def log_start(self, now_ms: int) -> int:
        """Return the log start offset that the limits imply, computed naively."""
        start = self.records_deleted_up_to
        while True:
            kept = [segment for segment in self.copied if segment.end_offset > start]
            if not kept:
                return start
            rest = sum(segment.size_bytes for segment in kept[1:])
            is_old = now_ms - kept[0].max_timestamp_ms > RETENTION_MS
            if not is_old and rest < RETENTION_BYTES:
                return start
            start = kept[0].end_offset


class Drama:
    """A cluster of two topics in which everything happens that can."""

    def __init__(self, world: FunctionWorld) -> None:
        self.world = world
        self.witness = Witness(world.store, world.clock)
        self.topics: list[Topic] = []
        self.models: dict[tuple[str, int], PartitionModel] = {}
        self.seen: list[SegmentKey] = []  # of index objects that were ever written

    async def start(self) -> None:
        for name in ("a", "b"):
            topic = await self.world.create_topic(name, partitions=2, configs=CONFIGS)
            self.topics.append(topic)
            self.witness.delay_ms[topic.topic_id] = DELAY_MS
            for number in range(2):
                self.models[name, number] = PartitionModel()

    def is_deleted(self, topic: Topic) -> bool:
        return topic.topic_id in self.witness.deleted_topics_ms

    async def copy(self, which: int, size: int, age_ms: int, *, ends: bool) -> None:
        """Begin a copy unless one is in progress; finish it if it ``ends``."""
        topic, number = self.topics[which % 2], which // 2 % 2
        model = self.models[topic.name, number]
        if self.is_deleted(topic):
            return
        if model.under_way is None:
            model.under_way = await self.world.start_copy(
                topic, model.end_offset, partition=number, size=size, age_ms=age_ms
            )
            self.seen.append(self.world.index_key(topic, model.under_way))
        if ends:
            model.copied.append(await self.world.finish_copy(model.under_way))
            model.end_offset += RECORDS_PER_SEGMENT
            model.under_way = None

    async def delete_records(self, which: int, back: int) -> None:
        topic, number = self.topics[which % 2], which // 2 % 2
        model = self.models[topic.name, number]
        if self.is_deleted(topic):
            return
        # Records behind the last copied segment are on the leader's disk.
        offset = max(0, model.end_offset - back)
        await self.world.delete_records(topic, offset, partition=number)
        partition = await self.world.partition(topic, number)
        self.witness.note(partition)
        model.records_deleted_up_to = max(model.records_deleted_up_to, partition.log_start_offset)

    async def delete_topic(self) -> None:
        topic = self.topics[1]
        if not self.is_deleted(topic):
            self.witness.deleted_topics_ms[topic.topic_id] = self.world.clock()
            await self.world.delete_topic(topic)

    async def call(self, which: tuple[int, ...], processes: list[Process], steps: int) -> None:
        """Call the function once for each process, concurrently.

        ``which`` picks the events' keys; an empty one means the schedule.
        """
        keys = tuple({self.seen[n % len(self.seen)]: None for n in which}) if self.seen else ()

        async def run(process: Process) -> None:
            with contextlib.suppress(Crash, TidelogError):
                await run_retention(
                    WatchedMetadata(self.world.store, process, self.witness),
                    WatchedObjects(self.world.objects, process, self.witness),
                    self.world.clock,
                    keys,
                    steps=steps,
                )

        await asyncio.gather(*map(run, processes))
        await self.check()

    async def scrub(self, process: Process) -> None:
        """Scrub as impatiently as can be, while retention goes on."""
        limits = AgeLimits(orphan_age_ms=0, doubtful_age_ms=0)

        async def run() -> None:
            watched = FunctionWorld(
                WatchedMetadata(self.world.store, process, self.witness),
                WatchedObjects(self.world.objects, process, self.witness),
            )
            watched.clock = self.world.clock
            with contextlib.suppress(Crash, TidelogError):
                report = await watched.scrub(limits=limits)
                assert report.missing == []

        await asyncio.gather(run(), self.call((), [Process()], 1_000_000))

    async def check(self) -> None:
        assert self.witness.wrong == []
        for topic in self.topics:
            if self.is_deleted(topic):
                continue
            for number in range(2):
                model = self.models[topic.name, number]
                start = (await self.world.partition(topic, number)).log_start_offset
                assert start <= model.log_start(self.world.clock())
                # Were the metadata lost now, the bucket would bring back nothing that is going.
                told = max(await self.world.published_log_starts(topic, number), default=0)
                metas = await self.world.segments(topic.topic_id, number)
                going = [m.end_offset for m in metas if m.state is SegmentState.DELETE_STARTED]
                assert max(going, default=0) <= told <= start

    async def end(self) -> None:
        """Let retention finish, and compare the stores with the models."""
        for _ in range(3):
            self.world.clock.now_ms += DELAY_MS + 1
            await self.call((), [Process()], 1_000_000)
        present, expected = await self.world.present(), set[str]()
        for topic in self.topics:
            for number in range(2):
                metas = await self.world.segments(topic.topic_id, number)
                if self.is_deleted(topic):
                    assert metas == []
                    assert not [
                        key for key in await self.world.told() if str(topic.topic_id) in key
                    ]
                    continue
                model = self.models[topic.name, number]
                start = model.log_start(self.world.clock())
                assert (await self.world.partition(topic, number)).log_start_offset == start
                kept = [segment for segment in model.copied if segment.end_offset > start]
                if model.under_way is not None:
                    kept.append(model.under_way)
                assert [meta.segment_id for meta in metas] == [one.segment_id for one in kept]
                assert all(meta.state is not SegmentState.DELETE_STARTED for meta in metas)
                for segment in kept:
                    keys = self.world.keys(topic, segment)
                    expected |= {keys.log, keys.index}
        assert present == expected


processes = st.builds(
    Process,
    st.one_of(st.none(), st.integers(0, 40)),
    st.sampled_from(Fault),
)


async def prepare(cluster: Drama) -> None:
    """Bring about a bit of everything that a schedule can find to do."""
    for which in range(4):
        for age_ms in (2 * RETENTION_MS, 0, 0):
            await cluster.copy(which, 200, age_ms, ends=True)
    await cluster.copy(0, 10, 0, ends=False)
    await cluster.delete_records(2, 5)
    await cluster.delete_topic()
    cluster.world.clock.now_ms += DELAY_MS + 1
