"""The node's side of the inspection worker.

Inspection costs by the record, and a megabyte can hold millions of them. Small batches are
inspected in the event loop, within an ``InspectionBudget``, all others by a process, one at a time.
The clients' hosts take turns, and one host may have half of the waiting bytes: many connections or
large batches of one host do not keep the others from their turn. While a batch waits or is
inspected, nothing more of its connection is handled (``HeldReply``). A cancelled caller leaves the
queue at once; if its batch is being inspected, the process is killed and started again for the next
one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from tidelog_core.config import TopicConfig
from tidelog_core.errors import TidelogError
from tidelog_core.log.append_checks import CheckedBatches
from tidelog_core.log.segments.time_search import BatchSearch
from tidelog_core.records.batch import (
    HEADER_SIZE,
    InspectionBudget,
    InspectionBudgetExceeded,
    find_record,
)

from tidelog_node.fairness.host_lock import HostLock
from tidelog_node.inspection.host_bytes import HostBytes
from tidelog_node.inspection.messages import (
    Checked,
    CheckJob,
    Found,
    FramesFound,
    FramesJob,
    Job,
    SearchJob,
)
from tidelog_node.inspection.worker_process import NotInspected, WorkerProcess
from tidelog_node.node_health import NodeHealth
from tidelog_node.processes.piped_messages import encode_message
from tidelog_node.processes.worker_version import VersionWatch

__all__ = ["NODE", "BatchInspector", "NotInspected"]

T = TypeVar("T")

MODULE = "tidelog_node.inspection.worker"
JOB_SECONDS_MAX = 60.0  # for one batch; the worst take 20 on an idle machine
QUEUED_BYTES_MAX = 67_108_864  # of batches that wait for the process; one host may have half
NODE = ""  # the host of the node's own inspections
# They bound the event loop's work for one batch to about 2 ms.
RECORDS_MAX, DECOMPRESSED_BYTES_MAX = 2_000, 1_048_576


class BatchInspector:
    """Inspects batches, heavy ones in a process. For the tasks of one event loop."""

    def __init__(self, health: NodeHealth | None = None) -> None:
        """``health`` gets the reason why no process can serve."""
        versions = VersionWatch(health or NodeHealth(), "inspection worker")
        self._turns = HostLock()
        self._queued = HostBytes(QUEUED_BYTES_MAX)
        self._process = WorkerProcess(MODULE, versions=versions)
        self._closes: list[Callable[[], Awaitable[None]]] = []

    def close_with_it(self, close: Callable[[], Awaitable[None]]) -> None:
        """Have other processes that inspect batches killed with this one."""
        self._closes.append(close)

    async def close(self) -> None:
        """Kill the process, and those that are to be killed with it."""
        for close in self._closes:
            await close()
        await self._process.end()

    async def check(
        self, batches: memoryview, config: TopicConfig, *, now_ms: int, host: str
    ) -> CheckedBatches:
        """Check as ``check_produced`` does, without limits. ``batches`` must not change.

        Raises as it does, and ``NotInspected``.
        """
        answer = await self._do(CheckJob(len(batches), config, now_ms), batches, host)
        assert isinstance(answer, Checked)
        if answer.converted is None:
            return batches, answer.headers
        return bytearray(answer.converted), answer.headers

    async def find(
        self, batch: bytes, timestamp_ms: int | None, start_offset: int, *, host: str = NODE
    ) -> Found:
        """Return the result of ``find_record``. Raises as it does, and ``NotInspected``."""
        try:
            return find_record(batch, timestamp_ms, start_offset, _budget())
        except InspectionBudgetExceeded:
            job = SearchJob(len(batch), timestamp_ms, start_offset)
            answer = await self._do(job, memoryview(batch), host)
            assert answer is None or isinstance(answer, tuple)
            return answer

    async def frames(self, batch: memoryview, parts: tuple[str, ...], *, host: str) -> FramesFound:
        """Return the result of ``frames_of``. Raises as it does, and ``NotInspected``."""
        answer = await self._do(FramesJob(len(batch), parts), batch, host)
        assert isinstance(answer, FramesFound)
        return answer

    async def search(self, search_log: Callable[[BatchSearch], T], *, host: str = NODE) -> T:
        """Run ``search_log`` and return its result; heavy batches are inspected in the process.

        ``search_log`` is called again after each such batch: the log may have changed since.
        """
        known: dict[_Search, Found] = {}

        def search_batch(batch: bytes, timestamp_ms: int | None, start_offset: int) -> Found:
            key = _Search(batch[:HEADER_SIZE], timestamp_ms, start_offset)
            if key in known:
                return known[key]
            try:
                return find_record(batch, timestamp_ms, start_offset, _budget())
            except InspectionBudgetExceeded:
                raise _Unknown(key, batch) from None

        while True:
            try:
                return search_log(search_batch)
            except _Unknown as unknown:
                key, batch = unknown.key, unknown.batch
                found = await self.find(batch, key.timestamp_ms, key.start_offset, host=host)
                known[key] = found

    async def _do(self, job: Job, batches: memoryview, host: str) -> object:
        size_bytes = len(batches)
        if not self._queued.take(host, size_bytes):
            raise NotInspected("too many bytes of batches wait to be inspected")
        try:
            async with self._turns.turn(host):
                answer = await self._process.ask(
                    encode_message(job), batches, seconds_max=JOB_SECONDS_MAX
                )
        finally:
            self._queued.give_back(host, size_bytes)
        if isinstance(answer, TidelogError):
            raise answer
        return answer


def _budget() -> InspectionBudget:
    return InspectionBudget(
        records=RECORDS_MAX, headers=RECORDS_MAX, size_bytes=DECOMPRESSED_BYTES_MAX
    )


class _Search(NamedTuple):
    """The key of one inspection: a batch's header and the search in it."""

    header: bytes
    timestamp_ms: int | None
    start_offset: int


class _Unknown(Exception):
    """The search needs the inspection of this batch."""

    def __init__(self, key: _Search, batch: bytes) -> None:
        super().__init__("a batch must be inspected")
        self.key = key
        self.batch = batch
