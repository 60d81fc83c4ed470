"""Jobs of the admin API as they are built for Lambda, and where the metadata is in DynamoDB."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import boto3
import pytest
from tidelog_core.errors import TidelogError
from tidelog_core.metadata.stores.dynamodb import DynamoDbMetadataStore
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.objects.s3 import S3ObjectStore
from tidelog_core.objects.store import ObjectStore
from tidelog_functions.admin_jobs.run import Outcome

from tests.aws.buckets import REGION, make_bucket
from tests.aws.lambda_runtime import BuiltFunction
from tests.aws.test_dynamodb_store import new_table
from tests.aws.test_template import SCHEDULED, handler_of, job_patterns, resource_of
from tests.support.admin_calls import an_event
from tests.support.http_answers import Asked, HttpAnswers
from tests.support.job_world import JobWorld, Looks
from tests.support.store_proxy import STORE_PASSES, StoreBehaviour, StoreProxy
from tests.support.tiered_partition import TOPIC, TieredPartition
from tests.support.waiting import eventually

BUCKET = "tidelog-admin-jobs"
AT_ONCE = {"file.delete.delay.ms": "0"}


@asynccontextmanager
async def job_world(
    folder: Path, dynamodb: str, *, objects: ObjectStore, objects_url: str, seen_at: str = ""
) -> AsyncIterator[JobWorld]:
    """A filled partition; runs see the table at ``seen_at`` if that is given."""
    table = await new_table(dynamodb)
    store = DynamoDbMetadataStore(table, region=REGION, endpoint=dynamodb)
    endpoint = quote(seen_at or dynamodb, safe="")
    try:
        partition = TieredPartition(store, objects, folder, configs=AT_ONCE)
        await partition.create()
        url = f"dynamodb://{table}?region={REGION}&endpoint={endpoint}"
        made = JobWorld(partition, url, objects_url)
        await made.fill(4)
        yield made
    finally:
        await objects.close()
        await store.close()


@asynccontextmanager
async def in_a_folder(folder: Path, dynamodb: str, seen_at: str = "") -> AsyncIterator[JobWorld]:
    objects = FolderObjectStore(folder / "objects")
    url = f"file://{folder}/objects"
    async with job_world(
        folder, dynamodb, objects=objects, objects_url=url, seen_at=seen_at
    ) as jobs:
        yield jobs


def items(jobs: JobWorld, dynamodb: str) -> set[tuple[str, str, str]]:
    """Return collection, key and last write of every item in the table."""
    table = jobs.settings.metadata_url.removeprefix("dynamodb://").partition("?")[0]
    client = boto3.client("dynamodb", endpoint_url=dynamodb, region_name=REGION)
    with closing(client):
        found = client.scan(TableName=table, ConsistentRead=True)["Items"]
    return {(one["pk"]["S"], one["sk"]["S"], str(one.get("w", one.get("n")))) for one in found}


@pytest.mark.usefixtures("aws_credentials")
@pytest.mark.parametrize(
    "looks", [1_000, pytest.param(1, marks=pytest.mark.slow)], ids=["in-two-runs", "step-by-step"]
)
async def test_an_erasure_writes_only_what_its_role_allows(
    tmp_path: Path, dynamodb_local_endpoint: str, looks: int
) -> None:
    async with in_a_folder(tmp_path, dynamodb_local_endpoint) as jobs:
        before = items(jobs, dynamodb_local_endpoint)
        job_id = await jobs.add_erasure()
        await jobs.run(job_id, Looks(1))
        await jobs.run_to_end(job_id, lambda: Looks(looks))
        await jobs.check_erased(job_id)
        written = {pk for pk, _, _ in before ^ items(jobs, dynamodb_local_endpoint)}
        assert {"admin-job", "rewrite-claim", "#changelog"} <= written
        for collection in written:
            assert any(fnmatchcase(collection, p) for p in job_patterns()), collection


@pytest.mark.usefixtures("aws_credentials")
@pytest.mark.parametrize(
    "part", ["throttled_part", pytest.param("lost_part", marks=pytest.mark.slow)]
)
async def test_an_erasure_whose_store_is_throttled_or_loses_answers_is_whole_in_the_end(
    tmp_path: Path, dynamodb_local_endpoint: str, part: str
) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    async with (
        StoreProxy(dynamodb_local_endpoint, random.Random(seed)) as proxy,
        in_a_folder(tmp_path, dynamodb_local_endpoint, seen_at=proxy.url) as jobs,
    ):
        job_id = await jobs.add_erasure()
        await jobs.run(job_id, Looks(1))
        await jobs.honour()
        proxy.behave(StoreBehaviour(**{part: 0.2}, hold_s=0.0))  # type: ignore[arg-type]
        for number in range(20):
            if number == 4:  # Lambda tries again for hours, and so outlives it.
                proxy.behave(STORE_PASSES)
            try:
                if (await jobs.run(job_id)).outcome is Outcome.ENDED:
                    break
            except TidelogError:
                pass
            await jobs.let_hold_lapse(job_id)
        proxy.behave(STORE_PASSES)
        assert proxy.counts
        await jobs.check_erased(job_id)


@pytest.mark.slow
async def test_the_built_functions_start_a_job_continue_it_and_show_its_receipt(
    tmp_path: Path,
    built_template: Path,
    dynamodb_local_endpoint: str,
    ministack_endpoint: str,
    aws_credentials: None,
) -> None:
    make_bucket(ministack_endpoint, BUCKET)
    prefix = uuid4().hex
    objects = S3ObjectStore(BUCKET, prefix=prefix, endpoint=ministack_endpoint)
    invoked: list[str] = []

    def invoke(asked: Asked) -> tuple[int, bytes]:
        assert asked.headers["x-amz-invocation-type"] == "Event"
        assert asked.path.startswith("/2015-03-31/functions/the-jobs/invocations")
        invoked.append(asked.body)
        return 202, b""

    async with job_world(
        tmp_path,
        dynamodb_local_endpoint,
        objects=objects,
        objects_url=f"s3://{BUCKET}/{prefix}",
    ) as jobs:
        with HttpAnswers(invoke) as aws_lambda:
            environment = {
                "AWS_ENDPOINT_URL": ministack_endpoint,
                "AWS_ENDPOINT_URL_LAMBDA": aws_lambda.url,
                "AWS_REGION": REGION,
                "AWS_DEFAULT_REGION": REGION,
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
                "TIDELOG_METADATA": jobs.settings.metadata_url,
                "TIDELOG_OBJECTS": jobs.settings.objects_url,
                "TIDELOG_ADMIN_JOBS_FUNCTION": "the-jobs",
                "AWS_LAMBDA_FUNCTION_NAME": "the-jobs",
            }
            folder = built_template.parent
            with (
                BuiltFunction(
                    folder, resource_of("admin"), handler_of("admin"), environment
                ) as admin,
                BuiltFunction(
                    folder, resource_of("admin_jobs"), handler_of("admin_jobs"), environment
                ) as runner,
            ):
                body = {"topic": TOPIC, "key_base64": "azE=", "timeout_seconds": 1}
                started = admin.invoke(an_event("POST", "/erasures", body))
                assert started["statusCode"] == 202, started
                job = json.loads(started["body"])
                assert invoked == [json.dumps({"job_id": job["job_id"]})]
                event = json.loads(invoked[0])
                assert runner.invoke(event)["outcome"] == "paused"  # for a leader
                eventually(lambda: runner.invoke(event)["outcome"] == "ended", "the wait ends")
                assert runner.invoke(event)["outcome"] == "not taken"
                assert runner.invoke(SCHEDULED) == {
                    "started": [], "removed_count": 0, "next_due_ms": None,
                }  # fmt: skip
                shown = admin.invoke(an_event("GET", f"/jobs/{job['job_id']}"))
                receipt = admin.invoke(an_event("GET", f"/jobs/{job['job_id']}/receipt"))
    shown = json.loads(shown["body"])
    assert (shown["state"], shown["problem"]) == ("done", None)
    assert shown["result"]["removed_records"] == len(jobs.offsets)
    (partition,) = json.loads(receipt["body"])["partitions"]
    assert partition["problems"] == ["no leader has taken the request up"]  # None is there.
