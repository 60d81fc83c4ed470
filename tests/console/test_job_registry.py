"""Jobs of the console: how many there are, what is told of them, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tidelog_console.job_registry import (
    JOBS_MAX,
    RUNNING_MAX,
    STEPS_MAX,
    WAITING_MAX,
    Job,
    JobRegistry,
    Report,
)
from tidelog_core.errors import CorruptObject
from tidelog_functions.admin.problems import HttpProblem

SECONDS_MAX = 20.0


@asynccontextmanager
async def opened() -> AsyncIterator[JobRegistry]:
    registry = JobRegistry()
    try:
        yield registry
    finally:
        await registry.close()


async def end_of(registry: JobRegistry, job: Job) -> dict[str, Any]:
    async with asyncio.timeout(SECONDS_MAX):
        while not job.has_ended:
            await registry.wait(job.job_id, after_step=len(job.steps), seconds=SECONDS_MAX)
    return job.document(after_step=0)


async def for_ever(_: Report) -> dict[str, Any]:
    await asyncio.Event().wait()
    return {}


async def test_steps_are_told_as_they_come_and_the_result_at_the_end() -> None:
    may_end = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def work(report: Report) -> dict[str, Any]:
        report.step("first")
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(may_end.wait(), loop))
        report.step("second")
        return {"count": 2}

    async with opened() as registry:
        job = registry.start("test", work)
        async with asyncio.timeout(SECONDS_MAX):
            found = await registry.wait(job.job_id, after_step=0, seconds=SECONDS_MAX)
        assert found.document(after_step=0)["steps"] == ["first"]
        assert found.state == "running"
        again = await registry.wait(job.job_id, after_step=1, seconds=0)
        assert again.document(after_step=1)["steps"] == []
        may_end.set()
        document = await end_of(registry, job)
    assert (document["state"], document["result"]) == ("done", {"count": 2})
    assert document["steps"] == ["first", "second"]


async def test_failure_is_told_with_its_hint() -> None:
    async def fail(_: Report) -> dict[str, Any]:
        error = CorruptObject("a/b", "it is cut")
        error.hint = "restore it"
        raise error

    async def break_(_: Report) -> dict[str, Any]:
        raise ZeroDivisionError

    async with opened() as registry:
        failed = await end_of(registry, registry.start("test", fail))
        broken = await end_of(registry, registry.start("test", break_))
    assert failed["state"] == broken["state"] == "failed"
    assert failed["problem"].endswith("; restore it")
    assert "see the console's log" in broken["problem"]


async def test_jobs_are_limited_and_end_with_the_process() -> None:
    async with opened() as registry:
        jobs = [registry.start("test", for_ever) for _ in range(RUNNING_MAX + WAITING_MAX)]
        with pytest.raises(HttpProblem, match="try again later") as refusal:
            registry.start("test", for_ever)
        assert refusal.value.status == 409
    assert {job.state for job in jobs} == {"failed"}


async def test_old_jobs_and_many_steps_are_forgotten() -> None:
    async def many(report: Report) -> dict[str, Any]:
        for number in range(STEPS_MAX + 50):
            report.step(str(number))
        return {}

    async def nothing(_: Report) -> dict[str, Any]:
        return {}

    async with opened() as registry:
        first = registry.start("test", many)
        document = await end_of(registry, first)
        assert len(document["steps"]) == STEPS_MAX
        assert document["steps"][-1] == str(STEPS_MAX + 49)
        for _ in range(JOBS_MAX):
            await end_of(registry, registry.start("test", nothing))
        with pytest.raises(HttpProblem, match="no job"):
            await registry.wait(first.job_id, after_step=0, seconds=0)
