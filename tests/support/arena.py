"""Three live nodes and their other clients, for something to be done to them.

<directory>/metadata.db, objects/     what the nodes share
<directory>/node<id>/                 a node's data
<directory>/clock-<id>, faults-<id>   how far its wall clock is off, which file calls fail
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tidelog import Consumer

from tests.faults.disk_faults import DiskFaults
from tests.faults.wall_clock import WallClock
from tests.support.node_process import NodeProcess
from tests.support.replicated_cluster import ReplicatedCluster, running

TOPIC = "witnessed"
LAPSED = "lease lapsed, the node is fenced"
TRACEBACK = "Traceback (most recent call last)"
WITNESS_SECONDS_MAX = 90.0
READ_SECONDS_MAX = 60.0
SLOW_SECONDS = 0.1  # what the others should not wait longer than
WINDOW_SECONDS = 1.0
CONFIG = {
    "broker.session.timeout.ms": "9000",  # the default: what was seen cost leases of this length
    "default.replication.factor": "3",
    "log.retention.check.interval.ms": "2000",
    "min.insync.replicas": "2",
    "remote.task.interval.ms": "1000",
    "replica.lag.time.max.ms": "10000",
}


@dataclass(frozen=True, slots=True)
class Sight:
    """What the other clients saw, ``time.monotonic`` seconds."""

    waits: tuple[tuple[float, float, str], ...]  # sent at, seconds, what
    acknowledged: Mapping[int, frozenset[int]]  # offsets by partition

    def slow_seconds(self, start: float, end: float) -> float:
        """Return how much of ``[start, end)`` passed in windows with a p99 above the limit."""
        windows: dict[int, list[float]] = {}
        for sent_at, seconds, _ in self.waits:
            first = int((sent_at - start) // WINDOW_SECONDS)
            last = int((sent_at + seconds - start) // WINDOW_SECONDS)
            for window in range(max(first, 0), last + 1):
                if start + window * WINDOW_SECONDS < end:
                    windows.setdefault(window, []).append(seconds)
        slow = [waits for waits in windows.values() if _p99(waits) > SLOW_SECONDS]
        return len(slow) * WINDOW_SECONDS

    def longest_seconds(self, start: float, end: float, what: str) -> float:
        """Return the longest wait that began in ``[start, end)``; 0 where there was none."""
        return max(
            (wait for at, wait, kind in self.waits if kind == what and start <= at < end),
            default=0.0,
        )


def _p99(waits: list[float]) -> float:
    return sorted(waits)[int(0.99 * (len(waits) - 1))]


class Arena:
    """``with``: three nodes run, other clients use them, and all acknowledged records are noted."""

    def __init__(
        self,
        directory: Path,
        *,
        config: Mapping[str, str] | None = None,
        has_http: bool = False,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.metadata_path = directory / "metadata.db"
        self.cluster = ReplicatedCluster(
            directory,
            config={**CONFIG, **(config or {})},
            metadata_store=f"sqlite://{self.metadata_path}",
            has_http=has_http,
        )
        self.nodes: Mapping[int, NodeProcess] = self.cluster.nodes
        self.faults = {
            node_id: DiskFaults(directory / f"faults-{node_id}") for node_id in self.nodes
        }
        self.clocks = {node_id: WallClock(directory / f"clock-{node_id}") for node_id in self.nodes}
        for node_id, node in self.nodes.items():
            node.environment |= self.faults[node_id].environment()
            node.environment |= self.clocks[node_id].environment()
        self._witness: subprocess.Popen[str] | None = None
        self._stack = ExitStack()

    @property
    def ports(self) -> list[int]:
        """Where the nodes listen."""
        return [node.port for node in self.nodes.values()]

    @property
    def objects_dir(self) -> Path:
        """The object store's folder."""
        return self.directory / "objects"

    def __enter__(self) -> Arena:
        with ExitStack() as stack:
            stack.enter_context(running(self.cluster))
            self.cluster.create(TOPIC, partitions=len(self.nodes))
            self._start_witness()
            stack.callback(self._end_witness)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def end_watch(self) -> Sight:
        """Have the other clients end; return what they saw. They are not started again."""
        self._end_witness()
        seen = json.loads((self.directory / "witness.json").read_text())
        return Sight(
            tuple((at, seconds, what) for at, seconds, what in seen["waits"]),
            {int(name): frozenset(offsets) for name, offsets in seen["acknowledged"].items()},
        )

    def count_lost(self, sight: Sight) -> int:
        """Return how many acknowledged records cannot be read any more."""
        return asyncio.run(self._count_lost(sight))

    async def _count_lost(self, sight: Sight) -> int:
        wanted = {(p, offset) for p, offsets in sight.acknowledged.items() for offset in offsets}
        ends = {p: max(offsets) for p, offsets in sight.acknowledged.items() if offsets}
        consumer = Consumer(
            self.cluster.addresses, auto_offset_reset="earliest", enable_auto_commit=False
        )
        async with consumer:
            consumer.assign([(TOPIC, partition) for partition in ends])
            with suppress(TimeoutError):
                async with asyncio.timeout(READ_SECONDS_MAX):
                    async for record in consumer:
                        wanted.discard((record.partition, record.offset))
                        if record.offset >= ends.get(record.partition, record.offset + 1):
                            del ends[record.partition]
                        if not ends:
                            break
        return len(wanted)

    def _start_witness(self) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.support.arena_witness",
            self.cluster.addresses,
            TOPIC,
        ]
        command += [str(len(self.nodes)), str(self.directory / "witness.json")]
        with (self.directory / "witness.log").open("wb") as log:
            self._witness = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._witness.stdout is not None
        if not self._witness.stdout.readline():
            raise RuntimeError((self.directory / "witness.log").read_text())

    def _end_witness(self) -> None:
        witness, self._witness = self._witness, None
        if witness is None:
            return
        assert witness.stdout is not None
        witness.terminate()
        try:
            witness.wait(WITNESS_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            witness.kill()
            witness.wait()
            raise
        finally:
            witness.stdout.close()


class MemoryWatch:
    """``with``: notes the most resident memory that any of the nodes has."""

    SECONDS = 0.1

    def __init__(self, nodes: Iterable[NodeProcess]) -> None:
        self._nodes = list(nodes)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.most_bytes = 0

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def now_bytes(self) -> int:
        """Return the resident memory of the node that has most of it."""
        sizes = [0]
        for node in self._nodes:
            with suppress(OSError, AssertionError):  # it is down
                sizes.append(node.rss_bytes())
        return max(sizes)

    def _run(self) -> None:
        while not self._is_over.wait(self.SECONDS):
            self.most_bytes = max(self.most_bytes, self.now_bytes())


def count_in_logs(nodes: Iterable[NodeProcess], words: str) -> int:
    """Return how often the nodes have logged the words."""
    return sum(node.log.count(words) for node in nodes)
