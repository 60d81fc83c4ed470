"""When a compaction job is started, and that there is one of it. Called as Lambda calls it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws
from tidelog_core.errors import InvalidConfig
from tidelog_core.metadata import records
from tidelog_core.metadata.records import JobStart, SegmentMeta, Topic
from tidelog_functions.events import UnknownEvent
from tidelog_functions.invocation import PartitionsFailed
from tidelog_functions.jobs.emr import EmrJobs, JobNotStarted
from tidelog_functions.jobs.handler import COMPACTION_JOB, handle
from tidelog_functions.jobs.job_starts import (
    GRACE_MS,
    TOPICS_NAMED_MAX,
    DuePartition,
    claim_start,
    decide,
    last_start,
)
from tidelog_functions.jobs.settings import JobSettings, parse_job_settings
from tidelog_functions.local.events import object_created, scheduled

from tests.support.emr_server import EmrServer, served
from tests.support.function_world import FunctionWorld, Steps, folder_world

SCHEDULE = scheduled("compaction", now_ms=0)
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.5"}
ROLE = "arn:aws:iam::123456789012:role/job"


@pytest.fixture
def emr() -> Iterator[EmrServer]:
    with served() as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emr: EmrServer) -> Path:
    """A folder for both stores, which the environment names, with EMR's address."""
    for name, value in {
        "TIDELOG_METADATA": f"sqlite://{tmp_path}/metadata.db",
        "TIDELOG_OBJECTS": f"file://{tmp_path}/objects",
        "TIDELOG_JOB_APPLICATION": "app",
        "TIDELOG_JOB_ROLE": ROLE,
        "TIDELOG_JOB_ENTRY_POINT": "s3://artefacts/compact.py",
        "TIDELOG_JOB_SPARK_PARAMETERS": "--conf spark.executor.cores=4",
        "TIDELOG_JOB_LOG_GROUP": "/tidelog/jobs",
        "TIDELOG_JOB_TIMEOUT_MINUTES": "60",
        "AWS_ENDPOINT_URL_EMR_SERVERLESS": emr.url,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def in_world(folder: Path, run: Callable[[FunctionWorld], Coroutine[Any, Any, Any]]) -> Any:
    async def main() -> Any:
        async with folder_world(folder) as world:
            return await run(world)

    return asyncio.run(main())


async def tier(
    world: FunctionWorld, topic: Topic, base: int, *, size: int, is_clean: bool
) -> SegmentMeta:
    """Tier a segment that compaction has been through, or has not."""
    segment = await world.copy(topic, base, size=size)
    if is_clean:
        segment = dataclasses.replace(segment, compacted_up_to=segment.end_offset)
        await world.store.commit([records.put(segment, is_logged=False)])
    return segment


def topic_of(folder: Path, *, dirty: int, name: str = "t", clean: int = 100, **configs: str) -> str:
    """Make a topic with a clean and a dirty segment; return the dirty one's index key."""

    async def run(world: FunctionWorld) -> str:
        topic = await world.create_topic(name, configs={**COMPACTED, **configs})
        await tier(world, topic, 0, size=clean, is_clean=True)
        segment = await tier(world, topic, 10, size=dirty, is_clean=False)
        return world.keys(topic, segment).index

    return str(in_world(folder, run))


def created(folder: Path, key: str) -> dict[str, object]:
    return object_created(f"{folder}/objects", key, now_ms=0)


def test_a_run_starts_when_the_dirty_ratio_is_crossed(folder: Path, emr: EmrServer) -> None:
    topic_of(folder, dirty=100)
    assert handle(SCHEDULE, Steps())["decision"] == "nothing is due"
    assert emr.runs == []
    topic_of(folder, dirty=101, name="u")
    answer = handle(SCHEDULE, Steps())
    assert (answer["due_count"], answer["run_id"]) == (1, "run-0")
    [run] = emr.runs
    assert run["name"] == COMPACTION_JOB
    assert run["executionRoleArn"] == ROLE
    assert run["executionTimeoutMinutes"] == 60
    assert run["jobDriver"]["sparkSubmit"] == {
        "entryPoint": "s3://artefacts/compact.py",
        "entryPointArguments": [
            *("--metadata", f"sqlite://{folder}/metadata.db"),
            *("--objects", f"file://{folder}/objects"),
            *("--topic", "u"),
        ],
        "sparkSubmitParameters": "--conf spark.executor.cores=4",
    }
    monitoring = run["configurationOverrides"]["monitoringConfiguration"]
    assert monitoring["cloudWatchLoggingConfiguration"]["logGroupName"] == "/tidelog/jobs"


def test_an_index_object_has_its_own_partition_looked_at(folder: Path, emr: EmrServer) -> None:
    topic_of(folder, dirty=500, name="other")
    key = topic_of(folder, dirty=50)
    assert handle(created(folder, key), Steps())["due_count"] == 0
    key = topic_of(folder, dirty=500, name="due")
    assert handle(created(folder, key), Steps())["run_id"] == "run-0"
    arguments = emr.runs[0]["jobDriver"]["sparkSubmit"]["entryPointArguments"]
    assert arguments[-2:] == ["--topic", "due"]


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_only_topics_that_are_compacted_are_looked_at(
    folder: Path, emr: EmrServer, policy: str
) -> None:
    topic_of(folder, dirty=500, **{"cleanup.policy": policy})
    handle(SCHEDULE, Steps())
    assert len(emr.runs) == (policy != "delete")


def test_what_has_waited_for_the_lag_is_due_whatever_the_ratio(
    folder: Path, emr: EmrServer
) -> None:
    topic_of(folder, dirty=1, **{"max.compaction.lag.ms": "1"})
    assert handle(SCHEDULE, Steps())["run_id"] == "run-0"


def test_no_second_run_starts_while_one_is_under_way(folder: Path, emr: EmrServer) -> None:
    key = topic_of(folder, dirty=500)
    handle(SCHEDULE, Steps())
    for state in ("SUBMITTED", "PENDING", "SCHEDULED", "RUNNING", "CANCELLING", "QUEUED"):
        emr.end(0, state)
        assert handle(created(folder, key), Steps())["decision"] == "run run-0 is under way"
    emr.end(0, "FAILED")
    # It has failed at once: another is started once the claim's time is over.
    assert "starting a run" in str(handle(SCHEDULE, Steps())["decision"])
    expire_claim(folder)
    assert handle(SCHEDULE, Steps())["run_id"] == "run-1"


def expire_claim(folder: Path) -> None:
    async def run(world: FunctionWorld) -> None:
        claim = await last_start(world.store, COMPACTION_JOB)
        assert claim is not None
        older = dataclasses.replace(claim, claimed_ms=claim.claimed_ms - GRACE_MS)
        await world.store.commit([records.put(older, is_logged=False)])

    in_world(folder, run)


def test_of_many_invocations_at_once_one_starts_a_run(folder: Path, emr: EmrServer) -> None:
    topic_of(folder, dirty=500)
    with ThreadPoolExecutor(6) as executor:
        answers = list(executor.map(lambda _: handle(SCHEDULE, Steps()), range(6)))
    assert len(emr.runs) == 1
    assert sorted(str(one["run_id"]) for one in answers) == ["None"] * 5 + ["run-0"]


def test_an_answer_that_is_lost_starts_no_second_run(folder: Path, emr: EmrServer) -> None:
    topic_of(folder, dirty=500)
    emr.loses_answers = 2
    assert handle(SCHEDULE, Steps())["run_id"] == "run-0"
    assert len(emr.runs) == 1


def test_a_refused_run_is_an_error_and_the_next_invocation_tries_again(
    folder: Path, emr: EmrServer
) -> None:
    topic_of(folder, dirty=500)
    emr.refuses = True
    with pytest.raises(JobNotStarted, match="ValidationException"):
        handle(SCHEDULE, Steps())
    emr.refuses = False
    assert handle(SCHEDULE, Steps())["run_id"] == "run-0"


def test_an_item_that_cannot_be_read_hides_nothing_else(folder: Path, emr: EmrServer) -> None:
    topic_of(folder, dirty=500, name="a")

    async def run(world: FunctionWorld) -> None:
        topic = await world.create_topic("b", configs=COMPACTED)
        segment = await world.copy(topic, 0)
        await world.corrupt(segment.item_id)

    in_world(folder, run)
    with pytest.raises(PartitionsFailed, match="b-0"):
        handle(SCHEDULE, Steps())
    assert len(emr.runs) == 1


def test_settings_and_events_that_are_wrong_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnknownEvent):
        handle({"source": "nobody"}, Steps())
    with pytest.raises(InvalidConfig) as raised:
        parse_job_settings({"TIDELOG_JOB_TIMEOUT_MINUTES": "4"})
    assert len(raised.value.problems) == 5
    monkeypatch.delenv("TIDELOG_JOB_ROLE")
    with pytest.raises(InvalidConfig, match="TIDELOG_JOB_ROLE"):
        handle(SCHEDULE, Steps())


def test_the_decision_follows_from_what_is_known() -> None:
    due = [DuePartition("b", 0, 1, 1.0), DuePartition("a", 1, 1, 1.0), DuePartition("a", 0, 1, 1.0)]
    claim = JobStart(job="j", token="t", claimed_ms=1000)
    assert decide(due, (), None, now_ms=0).topics == ("a", "b")
    assert not decide([], (), None, now_ms=0).is_start
    assert not decide(due, ("run",), None, now_ms=0).is_start
    assert not decide(due, (), claim, now_ms=1000 + GRACE_MS - 1).is_start
    assert decide(due, (), claim, now_ms=1000 + GRACE_MS).is_start
    many = [DuePartition(f"t{n}", 0, 1, 1.0) for n in range(TOPICS_NAMED_MAX + 1)]
    assert decide(many, (), None, now_ms=0).topics == ()


async def test_a_claim_is_taken_by_one_of_those_who_read_the_same(folder: Path) -> None:
    async with folder_world(folder) as world:
        for _ in range(2):
            last = await last_start(world.store, "j")
            first = await claim_start(world.store, "j", last, now_ms=1)
            assert first is not None
            assert await claim_start(world.store, "j", last, now_ms=1) is None
            assert await last_start(world.store, "j") == first


@mock_aws
def test_requests_have_the_shapes_that_emr_serverless_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    client = boto3.client("emr-serverless", region_name="us-east-1")
    application = client.create_application(name="a", releaseLabel="emr-7.10.0", type="SPARK")
    settings = JobSettings(
        application_id=application["applicationId"],
        role_arn=ROLE,
        entry_point="s3://artefacts/compact.py",
        spark_parameters="",
        log_group="/tidelog/jobs",
        timeout_minutes=60,
    )
    jobs = EmrJobs(client, settings)
    run_id = jobs.start(COMPACTION_JOB, ["--topic", "t"], token="one")
    assert jobs.under_way(COMPACTION_JOB) == []  # moto's runs have ended when they begin
    run = client.get_job_run(applicationId=settings.application_id, jobRunId=run_id)["jobRun"]
    assert run["jobDriver"]["sparkSubmit"]["entryPointArguments"] == ["--topic", "t"]
    client.close()
