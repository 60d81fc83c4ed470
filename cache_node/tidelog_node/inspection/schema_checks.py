"""The node's side of the schema workers.

Hosts take turns of ``slice_seconds`` of CPU time, and one host may have half of the waiting bytes.
Nothing can come in between while one value is checked, and a large one may take 10 seconds. So
batches with large values have a process of their own, and delay each other only. There, hosts whose
values take long leave half of the time to others (``slow_host_lock``).
A schema that takes more time or memory than it may is refused: at once to the batch that it took
too long for, and for a while to later ones of the host, without a look at them. A turn runs to its
end also if its caller leaves: a client cannot hide what its schema costs by hanging up.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Sequence
from functools import partial

from tidelog_core.errors import TidelogError

from tidelog_node.fairness.host_lock import HostLock
from tidelog_node.inspection.costly_schemas import REFUSED_SECONDS, CostlySchemas
from tidelog_node.inspection.host_bytes import HostBytes
from tidelog_node.inspection.messages import FramesFound, Problem, RecordsRefused, SchemaUse
from tidelog_node.inspection.schema_frames import PROBLEMS_MAX
from tidelog_node.inspection.schema_messages import (
    NO_MEMORY,
    NO_TIME,
    NamesJob,
    SchemaSource,
    TooCostly,
    ValueLimits,
    ValuesChecked,
    ValuesJob,
)
from tidelog_node.inspection.slow_host_lock import SlowHostLock
from tidelog_node.inspection.worker_process import NotInspected, WorkerDied, WorkerProcess
from tidelog_node.node_health import NodeHealth
from tidelog_node.processes.piped_messages import encode_message
from tidelog_node.processes.worker_version import VersionWatch

logger = logging.getLogger(__name__)

MODULE = "tidelog_node.inspection.schema_worker"
LIMITS = ValueLimits()
DATA_BYTES_MAX = 640 << 20  # of the process: the largest batch takes 160 MiB, and Python 30
LARGE_BYTES = 262_144  # a value that may take more than two seconds
TURN_SECONDS_MAX = 60.0  # on the clock, also if the machine is busy
QUEUED_BYTES_MAX = 67_108_864
FATAL = "it ends the process that works with it"
# What the worker ends by if a schema takes too much: its timer, Rust and C++ without memory.
_REASONS = {
    -signal.SIGPROF: NO_TIME,
    -signal.SIGABRT: NO_MEMORY,
    -signal.SIGSEGV: FATAL,
    -signal.SIGBUS: FATAL,
    1: FATAL,  # An error that nobody expects. A retry would start the next process for it.
}


class _Lane:
    """A process, and the hosts that wait for it."""

    def __init__(self, turns: HostLock, versions: VersionWatch) -> None:
        self.turns = turns
        self.process = WorkerProcess(MODULE, str(DATA_BYTES_MAX), versions=versions)


class SchemaChecks:
    """Has schemas worked with in processes. For the tasks of one event loop."""

    def __init__(self, health: NodeHealth | None = None) -> None:
        """``health`` gets the reason why no process can serve."""
        versions = VersionWatch(health or NodeHealth(), "schema worker")
        self._lane = _Lane(HostLock(), versions)
        self._large_lane = _Lane(SlowHostLock(), versions)  # for batches with large values
        self._queued = HostBytes(QUEUED_BYTES_MAX)
        self._costly = CostlySchemas(time.monotonic)
        self._tasks: set[asyncio.Task[object]] = set()

    async def close(self) -> None:
        """Kill the processes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for lane in (self._lane, self._large_lane):
            await lane.process.end()

    async def values(
        self,
        batch: memoryview,
        parts: tuple[str, ...],
        schemas: tuple[SchemaSource, ...],
        frames: FramesFound,
        *,
        host: str,
    ) -> list[Problem]:
        """Return the records that their schemas do not allow. ``batch`` must not change.

        ``frames`` is what ``frames_of`` has found in it.
        Raises ``RecordsRefused`` if a schema is too costly: the producer is not to try again.
        Raises ``NotInspected``, and as ``check_values`` does.
        """
        uses = frames.uses
        lane = self._large_lane if frames.largest_bytes > LARGE_BYTES else self._lane
        self._require_affordable(schemas, uses, host)
        if not self._queued.take(host, len(batch)):
            raise NotInspected("too many bytes of batches wait to be inspected")
        try:
            problems: list[Problem] = []
            start: int | None = 0
            spent_seconds = 0.0
            while start is not None and len(problems) < PROBLEMS_MAX:
                job = ValuesJob(len(batch), parts, schemas, LIMITS, start, spent_seconds)
                answer = await self._turn(lane, job, batch, host)
                if isinstance(answer, TooCostly):
                    raise _refusal(answer, uses)
                assert isinstance(answer, ValuesChecked)
                problems += answer.problems
                start, spent_seconds = answer.next_start, answer.spent_seconds
        finally:
            self._queued.give_back(host, len(batch))
        return sorted(problems)[:PROBLEMS_MAX]

    async def names(self, schema: SchemaSource, *, host: str) -> list[str]:
        """Return the record names that subjects of the schema may have.

        Raises ``RecordsRefused`` if it is too costly, ``TooManyNames``, and ``NotInspected``.
        """
        self._require_affordable([schema], (), host)
        job = NamesJob(0, schema, LIMITS.open_seconds)
        answer = await self._turn(self._lane, job, memoryview(b""), host)
        if isinstance(answer, TooCostly):
            raise _refusal(answer, ())
        assert isinstance(answer, list)
        return answer

    def _require_affordable(
        self, schemas: Sequence[SchemaSource], uses: Sequence[SchemaUse], host: str
    ) -> None:
        found = self._costly.any_of(host, (one.schema_id for one in schemas))
        if found is not None:
            raise _refusal(found, uses)
        self._require_few(host)

    def _require_few(self, host: str) -> None:
        if self._costly.has_too_many(host):
            raise NotInspected(
                "too many schemas of this client's host took too much to check: it has to wait up "
                f"to {REFUSED_SECONDS / 60:.0f} minutes"
            )

    async def _turn(
        self, lane: _Lane, job: ValuesJob | NamesJob, batch: memoryview, host: str
    ) -> object:
        """Return the answer of the process to one job."""
        await lane.turns.acquire(host)
        task: asyncio.Task[object] = asyncio.get_running_loop().create_task(
            self._work(lane, job, batch, host)
        )
        self._tasks.add(task)
        task.add_done_callback(partial(self._end_turn, lane))
        answer = await asyncio.shield(task)
        if isinstance(answer, TidelogError):
            raise answer
        return answer

    def _end_turn(self, lane: _Lane, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        lane.turns.release()

    async def _work(
        self, lane: _Lane, job: ValuesJob | NamesJob, batch: memoryview, host: str
    ) -> object:
        # While it waited for its turn, another batch may have shown what a schema costs.
        found = self._costly.any_of(host, _schema_ids(job))
        if found is not None:
            return found
        self._require_few(host)
        answer: object
        try:
            answer = await lane.process.ask(
                encode_message(job), batch, seconds_max=TURN_SECONDS_MAX
            )
        except WorkerDied as died:
            reason = _REASONS.get(died.exit_status)
            if reason is None:
                raise NotInspected(f"the process that checks schemas failed: {died}") from None
            answer = TooCostly(died.schema_id, reason)
        if isinstance(answer, TooCostly):
            self._costly.note(host, answer)
            logger.warning(
                "schema refused",
                extra={"schema_id": answer.schema_id, "reason": answer.reason, "host": host},
            )
        return answer


def _schema_ids(job: ValuesJob | NamesJob) -> list[int]:
    schemas = (job.schema,) if isinstance(job, NamesJob) else job.schemas
    return [one.schema_id for one in schemas]


def _refusal(costly: TooCostly, uses: Sequence[SchemaUse]) -> RecordsRefused:
    """Return the error that names the first records of the schema."""
    text = (
        f"schema {costly.schema_id} is refused for {REFUSED_SECONDS / 60:.0f} minutes: "
        f"{costly.reason}; use a simpler one, or set tidelog.schema.validation.level=id"
    )
    indexes = {index for one in uses if one.schema_id == costly.schema_id for index in one.indexes}
    return RecordsRefused([(index, text) for index in sorted(indexes or {0})])
