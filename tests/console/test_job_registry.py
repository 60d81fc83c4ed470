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

from tests.support.waiting import eventually_async


@asynccontextmanager
async def opened() -> AsyncIterator[JobRegistry]:
    registry = JobRegistry()
    try:
        yield registry
    finally:
        await registry.close()


async def ended(job: Job) -> Job:
    await eventually_async(lambda: job.has_ended, "it ends")
    return job


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
        job = registry.start("alice", "t", work)
        await eventually_async(lambda: bool(job.steps), "it tells a step")
        assert (job.state, job.steps) == ("running", ["first"])
        may_end.set()
        await ended(job)
    assert (job.state, job.result, job.steps) == ("done", {"count": 2}, ["first", "second"])


async def test_one_visitor_verifies_a_topic_once_at_a_time() -> None:
    may_end = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def work(_: Report) -> dict[str, Any]:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(may_end.wait(), loop))
        return {}

    async with opened() as registry:
        first = registry.start("alice", "t", work)
        assert registry.start("alice", "t", work) is first
        other = registry.start("bob", "t", work)
        assert registry.of_owner("alice") == [first]
        assert registry.of_owner("bob") == [other]
        may_end.set()
        await ended(first)
        second = registry.start("alice", "t", work)
        assert registry.of_owner("alice") == [second, first]


async def test_failure_is_told_with_its_hint() -> None:
    async def fail(_: Report) -> dict[str, Any]:
        error = CorruptObject("a/b", "it is cut")
        error.hint = "restore it"
        raise error

    async def break_(_: Report) -> dict[str, Any]:
        raise ZeroDivisionError

    async with opened() as registry:
        failed = await ended(registry.start(None, "t", fail))
        broken = await ended(registry.start(None, "t", break_))
    assert failed.state == broken.state == "failed"
    assert (failed.problem or "").endswith("; restore it")
    assert "see the console's log" in (broken.problem or "")


async def test_jobs_are_limited_and_end_with_the_process() -> None:
    async with opened() as registry:
        jobs = [
            registry.start(None, f"t{number}", for_ever)
            for number in range(RUNNING_MAX + WAITING_MAX)
        ]
        with pytest.raises(HttpProblem, match="try again later") as refusal:
            registry.start(None, "t", for_ever)
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
        first = await ended(registry.start(None, "t", many))
        assert len(first.steps) == STEPS_MAX
        assert first.steps[-1] == str(STEPS_MAX + 49)
        for _ in range(JOBS_MAX):
            await ended(registry.start(None, "t", nothing))
        assert len(registry.of_owner(None)) == JOBS_MAX
        assert first not in registry.of_owner(None)
