"""The clients of a run, from their start to their end: first those that write, then the readers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from tests.chaos.administering import administer
from tests.chaos.checker import Anomaly, Kind
from tests.chaos.consumers import AssignedReader, GroupMember, read_goal
from tests.chaos.history import Outcome, PartitionKey
from tests.chaos.librdkafka.processes import SessionProcesses
from tests.chaos.options import ChaosOptions
from tests.chaos.producers import produce
from tests.chaos.scene import Delivered, Progress, Scene, close_writes
from tests.chaos.sharing import ShareReader
from tests.chaos.transactions import CommittedReader, Processor, write_transactions
from tests.chaos.watchdog import where_is

ENOUGH_SECONDS_MAX = 180.0
DRAIN_SECONDS_MAX = 90.0
READERS_END_SECONDS_MAX = 90.0
CLOSE_SECONDS_MAX = 20.0
SHARE_READERS = 2


class Clients:
    """Starts the clients and ends them, writers first."""

    def __init__(self, scene: Scene, options: ChaosOptions, *, source: str, shared: str) -> None:
        """``source`` is the topic at the pipeline's beginning, ``shared`` the share group's."""
        self._scene = scene
        self._options = options
        self._source = source
        self._shared = shared
        self._writers: list[asyncio.Task[None]] = []
        self._readers: list[asyncio.Task[None]] = []
        self._assigned = AssignedReader(scene, "reader")
        self._groups = {"tidelog-group": Progress(), "librdkafka-group": Progress()}
        self._piped = Progress()
        self._delivered = Delivered()

    def start(self) -> None:
        """Start everyone."""
        scene, options, source, piped = self._scene, self._options, self._source, self._piped
        rate_per_s = options.rate_per_s
        for number in range(options.producer_count):
            name = f"p{number}"
            self._write(name, produce(scene, name, rate_per_s=rate_per_s))
        self._write("k0", self._librdkafka("k0", "produce", rate_per_s=rate_per_s))
        factor, configs = options.replication_factor, options.topic_configs
        self._write("admin", administer(scene, replication_factor=factor, configs=configs))
        self._write("t0", write_transactions(scene, "t0", rate_per_s=rate_per_s))
        self._write("kt0", self._librdkafka("kt0", "write_transactions", rate_per_s=rate_per_s))
        self._read("x0", Processor(scene, "x0", source, piped).run())
        self._read("kx0", self._librdkafka("kx0", "process", progress=piped, source=source))
        self._read("committed", CommittedReader(scene, "committed").run())
        self._read("reader", self._assigned.run())
        for number in range(SHARE_READERS):
            sharer = ShareReader(scene, f"sharer{number}", self._shared, self._delivered)
            self._read(f"sharer{number}", sharer.run())
        ours, theirs = self._groups
        for number in range(2):
            member = GroupMember(scene, f"member{number}", ours, self._groups[ours])
            self._read(member.name, member.run())
        self._read(
            "kmember",
            self._librdkafka("kmember", "consume", progress=self._groups[theirs], group=theirs),
        )

    def _write(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._writers.append(asyncio.create_task(work, name=name))

    def _read(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._readers.append(asyncio.create_task(work, name=name))

    def _librdkafka(
        self, client: str, role: str, *, progress: Progress | None = None, **settings: Any
    ) -> Coroutine[Any, Any, None]:
        scene = self._scene
        is_wanted: Callable[[], bool] = (
            (lambda: scene.is_writing) if progress is None else (lambda: scene.is_reading)
        )
        return SessionProcesses(
            scene,
            client,
            role,
            log_path=self._options.directory / f"librdkafka-{client}.log",
            is_wanted=is_wanted,
            progress=progress,
            **settings,
        ).run()

    async def do_enough(self) -> list[Anomaly]:
        """Return when as much has been written as is asked for; what is missing in the end."""
        deadline_s = self._scene.clock_s() + ENOUGH_SECONDS_MAX
        while missing := self._not_done():
            if self._scene.clock_s() > deadline_s:
                return [Anomaly(Kind.STALLED, "clients", missing)]
            await asyncio.sleep(0.1)
        return []

    def _not_done(self) -> str:
        history, options = self._scene.history, self._options
        writes = sum(one.outcome is Outcome.OK for one in history.writes)
        transactions = sum(one.outcome is Outcome.OK for one in history.transactions)
        if writes >= options.writes_min and transactions >= options.transactions_min:
            return ""
        return f"{writes} records and {transactions} transactions in all"

    async def end_writers(self) -> None:
        """Let the producers finish what they have; nothing is under way on return."""
        self._scene.is_writing = False
        await asyncio.gather(*self._writers)
        close_writes(self._scene)

    async def end_readers(self) -> list[Anomaly]:
        """Let the readers come to the ends; return which of them do not in time."""
        scene = self._scene
        scene.goal = await read_goal(scene, timeout_s=DRAIN_SECONDS_MAX)
        deadline_s = scene.clock_s() + DRAIN_SECONDS_MAX
        missing = self._missing()
        while missing and scene.clock_s() < deadline_s:
            await asyncio.sleep(0.1)
            missing = self._missing()
        scene.is_reading = False
        found = [
            Anomaly(Kind.STALLED, reader, ", ".join(f"{n}: {far}" for n, far in left.items()))
            for reader, left in missing.items()
        ]
        return found + await self._close_readers()

    async def _close_readers(self) -> list[Anomaly]:
        """Wait for the readers to end; return those that do not, and where they hang."""
        done, hanging = await asyncio.wait(self._readers, timeout=READERS_END_SECONDS_MAX)
        for task in done:
            task.result()
        found = [
            Anomaly(Kind.STALLED, task.get_name(), f"does not end: {where_is(task)}")
            for task in hanging
        ]
        for task in hanging:
            task.cancel()
        return found

    def _missing(self) -> dict[str, dict[PartitionKey, str]]:
        goal = self._scene.goal
        left: dict[str, dict[PartitionKey, str]] = {"reader": self._assigned.progress.missing(goal)}
        for group, progress in self._groups.items():
            left[group] = progress.missing(goal)
        source = {name: end for name, end in goal.items() if name.topic == self._source}
        left["pipeline"] = self._piped.missing(source)
        shared = {name: end for name, end in goal.items() if name.topic == self._shared}
        left["share group"] = self._delivered.missing(shared)
        return {reader: missing for reader, missing in left.items() if missing}

    async def close(self) -> None:
        """End everyone, in order if that goes soon."""
        self._scene.is_writing = self._scene.is_reading = False
        everyone = [*self._writers, *self._readers]
        _, hanging = await asyncio.wait(everyone, timeout=CLOSE_SECONDS_MAX)
        for task in hanging:
            task.cancel()
        await asyncio.gather(*everyone, return_exceptions=True)
