"""Clients that read: by assignment and in groups, with our own consumer."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import Any

from tidelog import Consumer, ConsumerRecord, RebalanceListener, TidelogError, TopicPartition

from tests.chaos.history import FinalLog, PartitionKey, Poll, Positioned
from tests.chaos.scene import Progress, Scene, pause

SESSION_SECONDS = 6.0, 25.0
POLL_MS = 300
SESSION_TIMEOUT_MS = 6_000


def _common(session: str) -> dict[str, Any]:
    return {
        "client_id": session,
        "auto_offset_reset": "earliest",
        "fetch_max_wait_ms": 200,
        "request_timeout_ms": 3_000,
        "reconnect_backoff_max_ms": 500,
        "metadata_max_age_ms": 2_000,
    }


def _note_poll(
    scene: Scene, session: str, group: str, records: Iterable[ConsumerRecord], progress: Progress
) -> None:
    poll = Poll(
        session,
        group,
        scene.clock_s(),
        tuple((r.topic, r.partition, r.offset, (r.value or b"").decode()) for r in records),
    )
    scene.history.add(poll)
    progress.note(poll)


class AssignedReader:
    """Reads every partition from its start, again and again, alone."""

    def __init__(self, scene: Scene, name: str) -> None:
        self.name = name
        self.progress = Progress()  # of the newest session
        self._scene = scene
        self._chance = scene.chance(name)

    async def run(self) -> None:
        """Run sessions until the scene wants no more reads."""
        for count in range(10_000):
            if not self._scene.is_reading:
                return
            self.progress = Progress()
            await self._session(f"{self.name}.{count}")

    async def _session(self, session: str) -> None:
        scene = self._scene
        end_s = scene.clock_s() + self._chance.uniform(*SESSION_SECONDS)
        consumer = Consumer(scene.bootstrap, **_common(session))
        count = 0
        try:
            await consumer.start()
            while scene.is_reading and (scene.goal or scene.clock_s() < end_s):
                if count != len(scene.partitions):
                    count = len(scene.partitions)
                    consumer.assign(list(scene.partitions))
                records = await consumer.poll(timeout_ms=POLL_MS)
                if records:
                    _note_poll(scene, session, "", records, self.progress)
        except TidelogError as error:
            scene.note(session, f"starts over: {type(error).__name__}: {error}")
            await pause(0.3, lambda: scene.is_reading)
        finally:
            await consumer.close()


class _Listener(RebalanceListener):
    def __init__(self, scene: Scene, session: str) -> None:
        self._scene, self._session = scene, session

    def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._scene.history.add(
            Positioned(
                self._session,
                self._scene.clock_s(),
                tuple((p.topic, p.partition) for p in partitions),
            )
        )


class GroupMember:
    """A member of a group of our own consumers; all members share ``progress``."""

    def __init__(self, scene: Scene, name: str, group: str, progress: Progress) -> None:
        self.name = name
        self._scene = scene
        self._group = group
        self._progress = progress
        self._chance = scene.chance(name)

    async def run(self) -> None:
        """Run sessions until the scene wants no more reads."""
        for count in range(10_000):
            if not self._scene.is_reading:
                return
            await self._session(f"{self.name}.{count}")

    async def _session(self, session: str) -> None:
        scene = self._scene
        end_s = scene.clock_s() + self._chance.uniform(*SESSION_SECONDS)
        consumer = Consumer(
            scene.bootstrap,
            group_id=self._group,
            auto_commit_interval_ms=500,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=500,
            **_common(session),
        )
        topics: list[str] = []
        try:
            await consumer.start()
            while scene.is_reading and (scene.goal or scene.clock_s() < end_s):
                if topics != scene.topics():
                    topics = scene.topics()
                    consumer.subscribe(topics, listener=_Listener(scene, session))
                records = await consumer.poll(timeout_ms=POLL_MS)
                if records:
                    _note_poll(scene, session, self._group, records, self._progress)
        except TidelogError as error:
            scene.note(session, f"starts over: {type(error).__name__}: {error}")
            await pause(0.3, lambda: scene.is_reading)
        finally:
            try:
                await consumer.close()
            except TidelogError as error:
                scene.note(session, f"close: {type(error).__name__}: {error}")


async def read_finals(scene: Scene, *, timeout_s: float) -> list[PartitionKey]:
    """Read every partition from start to end into the history; return those that cannot be."""
    partitions = list(scene.partitions)
    got: dict[PartitionKey, list[tuple[int, str]]] = {name: [] for name in partitions}
    left = set(partitions)
    async with Consumer(scene.bootstrap, **_common("final")) as consumer:
        try:
            async with asyncio.timeout(timeout_s):
                starts = await consumer.beginning_offsets(partitions)
                ends = await consumer.end_offsets(partitions)
                consumer.assign(partitions)
                left = {name for name in partitions if starts[_key(name)] < ends[_key(name)]}
                while left:
                    for record in await consumer.poll(timeout_ms=POLL_MS):
                        name = PartitionKey(record.topic, record.partition)
                        got[name].append((record.offset, (record.value or b"").decode()))
                        if record.offset + 1 >= ends[_key(name)]:
                            left.discard(name)
        except (TidelogError, TimeoutError) as error:
            scene.note("final", f"{type(error).__name__}: {error}; left: {sorted(left)}")
            if len(left) == len(partitions):
                return sorted(left)
    for name in set(partitions) - left:
        start, end = starts[_key(name)], ends[_key(name)]
        scene.history.add(FinalLog(*name, start, end, tuple(got[name])))
    return sorted(left)


async def read_goal(scene: Scene, *, timeout_s: float) -> dict[PartitionKey, int]:
    """Return where every partition ends."""
    async with asyncio.timeout(timeout_s), Consumer(scene.bootstrap, **_common("ends")) as consumer:
        while True:
            try:
                ends = await consumer.end_offsets(list(scene.partitions))
            except TidelogError as error:
                scene.note("ends", f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.5)
            else:
                return {PartitionKey(*name): end for name, end in ends.items()}


def _key(name: PartitionKey) -> TopicPartition:
    return TopicPartition(name.topic, name.partition)
