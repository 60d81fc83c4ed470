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

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from tidelog_core.config import TopicConfig
from tidelog_core.errors import ErrorCode, TidelogError
from tidelog_core.log.append_checks import CheckedBatches
from tidelog_core.log.time_search import BatchSearch
from tidelog_core.records.batch import (
    HEADER_SIZE,
    InspectionBudget,
    InspectionBudgetExceeded,
    find_record,
)

from tidelog_node.host_lock import HostLock
from tidelog_node.inspection.host_bytes import HostBytes
from tidelog_node.inspection.messages import Checked, CheckJob, Found, Job, SearchJob
from tidelog_node.inspection.schema_frames import (
    FramesFound,
    FramesJob,
    Problem,
    RecordsRefused,
    SchemaSource,
    ValuesJob,
)
from tidelog_node.piped_messages import encode_message, receive_message, send_bytes

logger = logging.getLogger(__name__)

T = TypeVar("T")

VALUES_SECONDS_MAX = 20.0  # to read one batch by its schemas; a megabyte takes a second
JOB_SECONDS_MAX = 60.0  # for one batch; the worst take 20 on an idle machine
ATTEMPTS_MAX = 2  # the process may end after idling just when a job comes
QUEUED_BYTES_MAX = 67_108_864  # of batches that wait for the process; one host may have half
NODE = ""  # the host of the node's own inspections
# They bound the event loop's work for one batch to about 2 ms.
RECORDS_MAX, DECOMPRESSED_BYTES_MAX = 2_000, 1_048_576


class NotInspected(TidelogError):
    """The batch could not be inspected just now; a retry of the same request may succeed."""

    code = ErrorCode.request_timed_out


class InspectionTooLong(NotInspected):
    """The inspection took too long, and was ended."""


class BatchInspector:
    """Inspects batches, heavy ones in a process. For the tasks of one event loop."""

    def __init__(self) -> None:
        self._turns = HostLock()
        self._queued = HostBytes(QUEUED_BYTES_MAX)
        self._process: asyncio.subprocess.Process | None = None

    async def close(self) -> None:
        """Kill the process."""
        await self._end()

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

    async def values(
        self,
        batch: memoryview,
        parts: tuple[str, ...],
        schemas: tuple[SchemaSource, ...],
        *,
        host: str,
    ) -> list[Problem]:
        """Return the result of ``problems_of``. Raises as it does, and ``NotInspected``.

        A schema can be made so that a small value takes it years. Such a batch is refused: its
        producer is not to try it again.
        """
        job = ValuesJob(len(batch), parts, schemas)
        try:
            answer = await self._do(job, batch, host, seconds_max=VALUES_SECONDS_MAX)
        except InspectionTooLong:
            text = f"its schemas take more than {VALUES_SECONDS_MAX:.0f} s to check it"
            raise RecordsRefused([(0, text)]) from None
        assert isinstance(answer, list)
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

    async def _do(
        self,
        job: Job,
        batches: memoryview,
        host: str,
        *,
        seconds_max: float = JOB_SECONDS_MAX,
    ) -> object:
        size_bytes = len(batches)
        if not self._queued.take(host, size_bytes):
            raise NotInspected("too many bytes of batches wait to be inspected")
        try:
            async with self._turns.turn(host):
                answer = await self._ask(encode_message(job), batches, seconds_max)
        finally:
            self._queued.give_back(host, size_bytes)
        if isinstance(answer, TidelogError):
            raise answer
        return answer

    async def _ask(self, message: bytes, batches: memoryview, seconds_max: float) -> object:
        problem: Exception = EOFError()
        for _ in range(ATTEMPTS_MAX):
            try:
                process = await self._started()
            except OSError as error:
                problem = error
                break
            assert process.stdin is not None
            assert process.stdout is not None
            is_through = False
            try:
                async with asyncio.timeout(seconds_max):
                    process.stdin.write(message)
                    await send_bytes(process.stdin, batches)
                    answer = await receive_message(process.stdout)
                is_through = True
                return answer
            except TimeoutError as error:
                problem = error
                break
            except (EOFError, ConnectionError) as error:
                problem = error
            finally:
                if not is_through:
                    await self._end()
        logger.warning("batch not inspected", extra={"reason": repr(problem)})
        if isinstance(problem, TimeoutError):
            raise InspectionTooLong(f"the batch takes more than {seconds_max:.0f} s to inspect")
        raise NotInspected(f"the process that inspects batches failed: {problem!r}")

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is not None:
            self._process = None
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tidelog_node.inspection.worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        return self._process

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


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
