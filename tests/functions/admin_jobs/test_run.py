"""Runs of jobs: interrupted after every step, killed, doubled and cancelled, with whole results."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from tidelog_core.errors import StoreUnavailable
from tidelog_core.metadata import records
from tidelog_core.metadata.admin_jobs import JobState, admin_job_key
from tidelog_core.metadata.store import ABSENT, Write
from tidelog_functions.admin_jobs import states
from tidelog_functions.admin_jobs.handler import sweep
from tidelog_functions.admin_jobs.run import Outcome, Run, run_job
from tidelog_functions.admin_jobs.store import (
    CALLER_UNENDED_MAX,
    JOBS_MAX,
    UNENDED_MAX,
    JobNotFound,
    TooManyJobs,
)
from tidelog_functions.invocation import TimeLimit

from tests.support.job_world import CALLER, JobWorld, Looks, in_a_thread
from tests.support.tiered_partition import TOPIC, tiered_partition
from tests.support.waiting import eventually_async

AT_ONCE = {"file.delete.delay.ms": "0"}
# Runs a job in a process that ends at one of its looks at the time, as by SIGKILL.
DIE = """
import asyncio, os, sys
from uuid import UUID
from tidelog_core.config import NodeConfig
from tidelog_functions.admin_jobs.run import run_job
from tidelog_functions.admin_jobs.work import do_work
from tidelog_functions.invocation import FunctionSettings, TimeLimit

class Death:
    left = int(sys.argv[4]) + 1  # the first look is the limit's own

    def get_remaining_time_in_millis(self):
        self.left -= 1
        return os._exit(9) if self.left < 0 else 900_000

settings = FunctionSettings(
    metadata_url=sys.argv[1], objects_url=sys.argv[2], node_config=NodeConfig()
)
asyncio.run(run_job(settings, UUID(sys.argv[3]), TimeLimit(Death()), do_work))
"""


@asynccontextmanager
async def world(folder: Path, segments: int = 4, **configs: str) -> AsyncIterator[JobWorld]:
    async with tiered_partition(folder, configs=AT_ONCE | configs) as partition:
        made = JobWorld(partition, f"sqlite://{folder}/metadata.db", f"file://{folder}/objects")
        await made.fill(segments)
        yield made


async def test_an_erasure_interrupted_after_every_step_has_one_whole_receipt(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as jobs:
        job_id = await jobs.add_erasure()
        assert await jobs.run_to_end(job_id, lambda: Looks(1)) > 4
        await jobs.check_erased(job_id)


async def test_a_search_and_a_verification_interrupted_after_every_step_count_everything_once(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as jobs:
        search = await jobs.add_erasure(is_dry_run=True)
        assert await jobs.run_to_end(search, lambda: Looks(1)) > 2
        (row,) = (await jobs.result(search))["found"]
        assert (row["records"], row["segments"], row["searched_segments"]) == (4, 2, 4)
        check = await jobs.add_verification()
        assert await jobs.run_to_end(check, lambda: Looks(1)) > 2
        found = await jobs.result(check)
        assert (found["ok"], found["segments"]) == (True, 4)
        steps = (await jobs.job(check)).steps
        assert set(steps) == {f"verifying {TOPIC}-0 (1 of 1)"}


async def test_a_verification_interrupted_after_every_step_names_damage_once(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as jobs:
        for log in sorted((tmp_path / "objects").rglob("*.log"))[:2]:
            data = log.read_bytes()
            log.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        for context in (Looks, lambda: Looks(1)):
            job_id = await jobs.add_verification(TOPIC)
            await jobs.run_to_end(job_id, context)
            found = await jobs.result(job_id)
            assert (found["ok"], found["problem_count"], found["segments"]) == (False, 2, 4)
            assert len({problem["object"] for problem in found["problems"]}) == 2


def died(jobs: JobWorld, job_id: UUID, *, at: int) -> bool:
    """Run the job in a process of its own, and return whether it died at that look."""
    urls = jobs.settings.metadata_url, jobs.settings.objects_url
    command = [sys.executable, "-c", DIE, *urls, str(job_id), str(at)]
    return subprocess.run(command, check=False).returncode == 9


@pytest.mark.parametrize(
    "ats", [(3,), pytest.param(tuple(range(1, 40)), marks=pytest.mark.slow)], ids=["one", "every"]
)
async def test_an_erasure_whose_process_is_killed_loses_and_doubles_nothing(
    tmp_path: Path, ats: tuple[int, ...]
) -> None:
    for at in ats:
        (tmp_path / str(at)).mkdir()
        async with world(tmp_path / str(at)) as jobs:
            job_id = await jobs.add_erasure()
            await jobs.run(job_id, Looks(1))  # requested
            await jobs.honour()
            was_killed = await asyncio.to_thread(died, jobs, job_id, at=at)
            if was_killed:
                assert (await jobs.run(job_id)).outcome is Outcome.NOT_TAKEN
                await jobs.let_hold_lapse(job_id)
                await jobs.run_to_end(job_id)
            await jobs.check_erased(job_id)
        if not was_killed:
            assert at > 5
            return


async def test_of_two_events_only_one_does_the_work(tmp_path: Path) -> None:
    async with world(tmp_path, 2) as jobs:
        job_id = await jobs.add_verification()
        outcomes = await asyncio.gather(*(jobs.run(job_id) for _ in range(3)))
        assert sorted(one.outcome.value for one in outcomes) == ["ended", "not taken", "not taken"]
        assert (await jobs.run(job_id)).outcome is Outcome.NOT_TAKEN
        with pytest.raises(JobNotFound):
            await jobs.run(uuid4())


@pytest.mark.parametrize("at", [2, 3, 4])
async def test_a_run_that_comes_back_after_another_took_its_job_changes_nothing(
    tmp_path: Path, at: int
) -> None:
    async with world(tmp_path) as jobs:
        job_id = await jobs.add_erasure()
        await jobs.run(job_id, Looks(1))
        await jobs.honour()

        async def other_run() -> None:
            await jobs.let_hold_lapse(job_id)
            await jobs.run_to_end(job_id)

        def stand_still(number: int) -> None:
            if number == at:
                in_a_thread(other_run)

        assert (await jobs.run(job_id, Looks(at=stand_still))).outcome is Outcome.LOST
        result = await jobs.result(job_id)
        assert result["removed_records"] == len(jobs.offsets)
        done = [receipt for receipt in await jobs.receipts() if receipt["is_done"]]
        assert [one["erasure_id"] for one in done] == [result["erasure_id"]]
        assert await jobs.partition.problems() == []


async def test_a_job_that_dies_again_and_again_is_given_up(tmp_path: Path) -> None:
    async with world(tmp_path, 1) as jobs:
        job_id = await jobs.add_verification()
        for _ in range(states.LOST_MAX + 1):
            assert await jobs.jobs.take(job_id, str(uuid4())) is not None
            await jobs.let_hold_lapse(job_id)
        assert (await jobs.run(job_id)).outcome is Outcome.ENDED
        job = await jobs.job(job_id)
        assert job.state is JobState.FAILED
        assert "given up after 6 runs without progress" in job.problem


async def test_a_job_that_no_run_gets_a_step_further_is_given_up(tmp_path: Path) -> None:
    """Else a run that is too short for a step would start the next one for ever."""
    async with world(tmp_path, 1) as jobs:

        async def stand_still(run: Run) -> str:
            run.move_to('{"at":1}')
            run.require_time()
            return "{}"

        job_id = await jobs.add_verification()
        for stuck_seconds in (60.0, 0.0):
            outcomes = [
                (
                    await run_job(
                        jobs.settings,
                        job_id,
                        TimeLimit(Looks(0)),
                        stand_still,
                        stuck_seconds=stuck_seconds,
                    )
                ).outcome
                for _ in range(states.LOST_MAX + 1)
            ]
            ended = Outcome.CONTINUES if stuck_seconds else Outcome.ENDED
            assert outcomes == [Outcome.CONTINUES] * states.LOST_MAX + [ended]
        job = await jobs.job(job_id)
        assert job.state is JobState.FAILED
        assert "a step takes longer than a run; given up after 6 runs" in job.problem


async def test_an_erasure_does_not_go_on_in_another_topic_of_the_same_name(
    tmp_path: Path,
) -> None:
    """Else its receipt would say that partitions are done which nobody has searched."""
    async with world(tmp_path) as jobs:
        job_id = await jobs.add_erasure()
        assert (await jobs.run(job_id, Looks(1))).outcome is Outcome.CONTINUES
        store = jobs.partition.store
        item = await store.get(records.topic_key(TOPIC))
        assert item is not None
        other = dataclasses.replace(records.Topic.from_item(item), topic_id=uuid4())
        partition = await jobs.partition.stored_partition()
        moved = dataclasses.replace(partition, topic_id=other.topic_id, version=0)
        await store.commit([records.put(other), records.put(moved)])
        assert (await jobs.run(job_id)).outcome is Outcome.ENDED
        job = await jobs.job(job_id)
        assert job.state is JobState.FAILED
        assert "was deleted and created again during the erasure" in job.problem


async def test_what_passes_is_tried_again_and_what_does_not_is_reported(tmp_path: Path) -> None:
    async with world(tmp_path, 1) as jobs:

        async def throttled(run: Run) -> str:
            raise StoreUnavailable("the store is throttled")

        async def broken(run: Run) -> str:
            raise ZeroDivisionError

        job_id = await jobs.add_verification()
        for number in range(states.LOST_MAX + 1):
            with pytest.raises(StoreUnavailable):
                await run_job(jobs.settings, job_id, TimeLimit(Looks()), throttled)
            job = await jobs.job(job_id)
            if number == 0:
                assert (job.state, job.holder) == (JobState.WAITING, "")
                assert job.steps == ("trying again: StoreUnavailable: the store is throttled",)
                assert (await jobs.run(job_id)).outcome is Outcome.NOT_TAKEN  # It backs off.
            if number < states.LOST_MAX:
                await jobs.let_hold_lapse(job_id)
        assert job.state is JobState.FAILED
        assert "throttled; given up" in job.problem
        job_id = await jobs.add_verification()
        result = await run_job(jobs.settings, job_id, TimeLimit(Looks()), broken)
        assert result.outcome is Outcome.ENDED
        assert "failed unexpectedly" in (await jobs.job(job_id)).problem
        job_id = await jobs.add_verification("nowhere")
        assert (await jobs.run(job_id)).outcome is Outcome.ENDED
        assert "there is no topic 'nowhere'" in (await jobs.job(job_id)).problem


async def test_a_long_wait_gives_the_job_back_until_it_is_over(tmp_path: Path) -> None:
    async with world(tmp_path, 1, **{"file.delete.delay.ms": "3600000"}) as jobs:
        job_id = await jobs.add_erasure()
        await jobs.run(job_id, Looks(1))
        await jobs.honour()
        result = await jobs.run(job_id)
        assert result.outcome is Outcome.PAUSED
        job = await jobs.job(job_id)
        assert (job.state, job.due_ms) == (JobState.WAITING, result.due_ms)
        assert (await jobs.run(job_id)).outcome is Outcome.NOT_TAKEN
        assert (await jobs.receipts())[0]["partitions"][0]["problems"] == [
            "the erasure has not ended"
        ]


async def test_no_run_waits_for_a_replica_and_the_wait_is_told_once(tmp_path: Path) -> None:
    """An invocation that waits costs as much as one that works."""
    async with world(tmp_path) as jobs:
        job_id = await jobs.add_erasure(timeout_seconds=3_600)
        began = time.monotonic()
        for _ in range(3):
            result = await jobs.run(job_id)
            assert (result.outcome, (await jobs.job(job_id)).holder) == (Outcome.PAUSED, "")
            assert result.due_ms > jobs.jobs.clock_ms() - 5_000
            await jobs.let_hold_lapse(job_id)
        assert time.monotonic() - began < 60
        job = await jobs.job(job_id)
        assert job.steps == ("waiting: events-0: no leader has taken the request up",)
        assert job.lost_count == 0
        assert await jobs.run_to_end(job_id) == 1
        await jobs.check_erased(job_id)


async def test_waits_for_another_process_end_together_however_many_runs_they_span(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as jobs:
        jobs.partition.clock.now_ms = jobs.jobs.clock_ms()
        job_id = await jobs.add_erasure(timeout_seconds=1)
        began = time.monotonic()
        async with jobs.partition.tier().claimed():
            assert await jobs.run_to_end(job_id) > 1
        result = await jobs.result(job_id)
        assert time.monotonic() - began >= 1
        (problem,) = result["partitions"][0]["problems"]
        assert "is being rewritten by another process" in problem


async def test_a_cancelled_job_ends_at_its_next_step_and_keeps_no_key(tmp_path: Path) -> None:
    async with world(tmp_path) as jobs:
        job_id = await jobs.add_erasure()

        async def cancel() -> None:
            await jobs.jobs.change(
                job_id, lambda job: states.cancelled(job, now_ms=jobs.jobs.clock_ms())
            )

        def interfere(number: int) -> None:
            if number == 1:
                in_a_thread(cancel)

        result = await jobs.run(job_id, Looks(at=interfere))
        assert result.outcome is Outcome.ENDED
        job = await jobs.job(job_id)
        assert (job.state, job.request) == (
            JobState.CANCELLED,
            '{"topic":"events","dry_run":false,"timeout_seconds":1}',
        )
        waiting = await jobs.add_erasure()
        await jobs.jobs.change(waiting, lambda job: states.cancelled(job, now_ms=job.due_ms))
        assert (await jobs.job(waiting)).state is JobState.CANCELLED
        assert (await jobs.run(waiting)).outcome is Outcome.NOT_TAKEN


async def test_a_hold_is_renewed_while_the_work_blocks_and_the_run_hears_that_it_is_cancelled(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, 1) as jobs:
        job_id = await jobs.add_verification()
        renewed: list[int] = []

        async def block(run: Run) -> str:
            first = (await jobs.job(job_id)).due_ms

            async def look() -> None:
                # In the thread's turn: this loop stands still.
                while (due_ms := (await jobs.job(job_id)).due_ms) == first:
                    pass
                renewed.append(due_ms)
                await jobs.jobs.change(job_id, lambda job: states.cancelled(job, now_ms=0))

            in_a_thread(look)
            # The thread hears of it at its next renewal.
            await eventually_async(lambda: run.hold.is_cancelled, "it is cancelled")
            run.require_time()
            return "{}"

        limit = TimeLimit(Looks())
        result = await run_job(jobs.settings, job_id, limit, block, renew_seconds=0.02)
        assert result.outcome is Outcome.ENDED
        assert len(renewed) == 1
        assert (await jobs.job(job_id)).state is JobState.CANCELLED


async def test_jobs_are_limited_and_old_ones_are_removed(tmp_path: Path) -> None:
    async with world(tmp_path, 1) as jobs:
        unended = [
            await jobs.add_verification(caller=f"User:{number // CALLER_UNENDED_MAX}")
            for number in range(UNENDED_MAX)
        ]
        with pytest.raises(TooManyJobs, match="the cluster has 20 jobs that wait or run"):
            await jobs.add_verification()
        for job_id in unended:
            await jobs.jobs.change(job_id, lambda job: states.cancelled(job, now_ms=job.due_ms))
        for _ in range(JOBS_MAX):
            job_id = await jobs.add_verification()
            await jobs.jobs.change(job_id, lambda job: states.cancelled(job, now_ms=job.due_ms))
        kept = await jobs.jobs.list()
        assert len(kept) == JOBS_MAX
        assert unended[0] not in {job.job_id for job in kept}
        assert {job.caller for job in kept} == {CALLER}


class Started:
    """Notes the jobs that are to be started."""

    def __init__(self) -> None:
        self.ids: list[UUID] = []

    async def start(self, job_id: UUID) -> None:
        self.ids.append(job_id)


async def test_the_schedule_starts_what_nobody_works_on_and_removes_what_is_old(
    tmp_path: Path,
) -> None:
    async with world(tmp_path, 1) as jobs:
        new, stuck, running, old = [await jobs.add_verification() for _ in range(4)]
        await jobs.jobs.take(running, "somebody")
        await jobs.jobs.change(old, lambda job: states.cancelled(job, now_ms=0))
        for job_id, due_ms in ((stuck, 1), (old, 1)):
            await jobs.jobs.change(
                job_id, lambda job, due_ms=due_ms: dataclasses.replace(job, due_ms=due_ms)
            )
        damaged = Write(admin_job_key(uuid4()), {"kind": "of a newer version"}, ABSENT)
        await jobs.partition.store.commit([dataclasses.replace(damaged, is_logged=False)])
        starter = Started()
        summary = await sweep(jobs.settings, starter)
        assert starter.ids == [stuck]
        assert summary["removed_count"] == 1
        assert {job.job_id for job in await jobs.jobs.list()} == {new, stuck, running}
