"""Runs of jobs in threads of the process that serves the API."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from tidelog_core.metadata.admin_jobs import JobState
from tidelog_functions.admin_jobs.threads import ThreadStarter

from tests.support.job_world import JobWorld
from tests.support.tiered_partition import tiered_partition
from tests.support.waiting import eventually_async


async def test_a_job_that_waits_is_started_again_when_it_is_due(tmp_path: Path) -> None:
    """Without a sweep: that would come seconds later."""
    async with tiered_partition(tmp_path, configs={"file.delete.delay.ms": "0"}) as partition:
        urls = f"sqlite://{tmp_path}/metadata.db", f"file://{tmp_path}/objects"
        jobs = JobWorld(partition, *urls)
        await jobs.fill(2)
        starter = ThreadStarter(jobs.settings)
        job_id = await jobs.add_erasure(timeout_seconds=3_600)
        await starter.start(job_id)

        async def waits() -> bool:
            return bool((await jobs.job(job_id)).steps)

        async def is_done() -> bool:
            return (await jobs.job(job_id)).state is JobState.DONE

        await eventually_async(waits, "it waits for a leader")
        await jobs.honour()
        await eventually_async(is_done, "it is done")
        await jobs.check_erased(job_id)
        await starter.close()
        await starter.start(uuid4())  # Nothing is started any more.
