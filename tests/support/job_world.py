"""Jobs of the admin API on a partition's tier in real stores, run as Lambda would run them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

from tidelog_core.clock import wall_clock_ms
from tidelog_core.config import NodeConfig
from tidelog_core.metadata import records
from tidelog_core.metadata.admin_jobs import AdminJob, JobKind, admin_job_key
from tidelog_core.metadata.erasures import LocalErasure, local_erasure_key
from tidelog_core.tier.keys import is_whole_receipt
from tidelog_functions.admin_jobs.requests import ErasureRequest, VerificationRequest
from tidelog_functions.admin_jobs.run import Outcome, RunResult, run_job
from tidelog_functions.admin_jobs.states import new_job
from tidelog_functions.admin_jobs.store import JobStore
from tidelog_functions.admin_jobs.work import do_work
from tidelog_functions.invocation import FunctionSettings, TimeLimit

from tests.support.compacted_tier import plain
from tests.support.random_logs import RandomLog
from tests.support.tiered_partition import CLUSTER_ID, TOPIC, TieredPartition

KEY = b"k1"
CALLER = "User:alice"
RUNS_MAX = 1_000


class Looks:
    """A context whose time is over after ``count`` looks of a run; ``at`` is called at each."""

    def __init__(self, count: int = 1_000_000, at: Callable[[int], None] = lambda _: None) -> None:
        self._count, self._at = count, at
        self._number = -1  # the first look is the limit's own

    def get_remaining_time_in_millis(self) -> int:
        self._number += 1
        if self._number > 0:
            self._at(self._number)
        return 900_000 if self._number <= self._count else 0


class JobWorld:
    """One cluster with a tiered partition, and its jobs."""

    def __init__(self, partition: TieredPartition, metadata_url: str, objects_url: str) -> None:
        self.partition = partition
        self.settings = FunctionSettings(
            metadata_url=metadata_url, objects_url=objects_url, node_config=NodeConfig()
        )
        self.jobs = JobStore(partition.store, wall_clock_ms)
        self.offsets: list[int] = []  # of the key's records

    async def fill(self, segments: int) -> None:
        """Copy segments of three records, of which every other segment has two of the key."""
        log = RandomLog()
        for number in range(segments):
            keys = ("k1", "k2", "k1") if number % 2 == 0 else ("k2", "k3", "k2")
            self.offsets += [log.end_offset + at for at, key in enumerate(keys) if key == "k1"]
            await self.partition.copy([plain(log, *keys)])

    async def add(self, kind: JobKind, request: str, caller: str = CALLER) -> UUID:
        job = new_job(uuid4(), kind, request, caller=caller, now_ms=wall_clock_ms())
        return (await self.jobs.add(job)).job_id

    async def add_verification(self, *topics: str, caller: str = CALLER) -> UUID:
        return await self.add(JobKind.VERIFICATION, VerificationRequest(topics).to_json(), caller)

    async def add_erasure(
        self, key: bytes = KEY, *, is_dry_run: bool = False, timeout_seconds: int = 1
    ) -> UUID:
        request = ErasureRequest(TOPIC, key, is_dry_run=is_dry_run, timeout_seconds=timeout_seconds)
        return await self.add(JobKind.ERASURE, request.to_json())

    async def run(self, job_id: UUID, context: Looks | None = None) -> RunResult:
        """Run the job once."""
        return await run_job(self.settings, job_id, TimeLimit(context or Looks()), do_work)

    async def run_to_end(self, job_id: UUID, context: Callable[[], Looks] = Looks) -> int:
        """Run the job until it has ended, each time with a new context; return the runs."""
        for count in range(1, RUNS_MAX):
            await self.honour()
            result = await self.run(job_id, context())
            if result.outcome is Outcome.ENDED:
                return count
            if result.outcome is Outcome.PAUSED:
                await self.let_hold_lapse(job_id)
        raise AssertionError(f"not ended after {RUNS_MAX} runs: {await self.job(job_id)}")

    async def job(self, job_id: UUID) -> AdminJob:
        return await self.jobs.get(job_id)

    async def result(self, job_id: UUID) -> dict[str, Any]:
        """Return the result of a job that must be done."""
        job = await self.job(job_id)
        assert (job.state.value, job.problem) == ("done", ""), job
        found: dict[str, Any] = json.loads(job.result)
        return found

    async def let_hold_lapse(self, job_id: UUID) -> None:
        """Have it be later than the hold of a run that has died lasts."""
        item = await self.partition.store.get(admin_job_key(job_id))
        assert item is not None
        lapsed = dataclasses.replace(AdminJob.from_item(item), due_ms=wall_clock_ms())
        await self.partition.store.commit([records.put(lapsed, is_logged=False)])

    async def honour(self) -> None:
        """Have the partition's leader carry out a request of an erasure, if there is one."""
        store, topic_id = self.partition.store, self.partition.topic.topic_id
        item = await store.get(local_erasure_key(topic_id, 0))
        if item is not None:
            request = LocalErasure.from_item(item)
            end = max((one.end_offset for one in await self.partition.finished()), default=0)
            await store.commit(
                [records.put(dataclasses.replace(request, up_to=end, honoured=(1,)))]
            )

    async def receipts(self) -> list[dict[str, Any]]:
        """Return the whole receipts in the bucket."""
        keys = filter(is_whole_receipt, await self.receipt_keys())
        return [json.loads(await self.partition.objects.get(key)) for key in keys]

    async def receipt_keys(self) -> list[str]:
        """Return the keys of receipts and of parts of them."""
        prefix = f"{CLUSTER_ID}/{TOPIC}-{self.partition.topic.topic_id}/erasure-"
        return [one.key async for one in self.partition.objects.list(prefix)]

    async def check_erased(self, job_id: UUID) -> None:
        """Check that each of the key's records is gone, and in the one receipt once."""
        result = await self.result(job_id)
        assert (result["is_done"], result["found"]) == (True, True)
        assert result["removed_records"] == len(self.offsets)
        (receipt,) = await self.receipts()
        assert len(await self.receipt_keys()) == 1
        assert receipt["is_done"]
        removed = [
            offset
            for one in receipt["partitions"][0]["segments_replaced"]
            for offset in one["removed_offsets"]
        ]
        assert removed == self.offsets
        assert KEY not in {record.key for record in await self.partition.stored_records()}
        assert await self.partition.object_keys() == await self.partition.named_keys()
        assert await self.partition.problems() == []
        assert "key" not in json.loads((await self.job(job_id)).request)


def in_a_thread(work: Callable[[], Any]) -> Any:
    """Return what the coroutine function returns, run in a thread and a loop of its own."""
    import threading

    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(work())))
    thread.start()
    thread.join()
    return found[0]
