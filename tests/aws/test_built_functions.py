"""The functions as they are built, under Lambda's runtime client, against DynamoDB and S3.

Each process has its own folder and the layer on its path, and nothing else. So a package, or a
description of an AWS service, that the layer lacks is missed here as it would be on Lambda.
``make test-aws`` runs this; ``tests/functions`` has what the functions do, in the test's process.
"""

from __future__ import annotations

import ast
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tidelog_core.metadata.stores.dynamodb import DynamoDbMetadataStore
from tidelog_core.objects.s3 import S3ObjectStore

from tests.aws.buckets import REGION, make_bucket
from tests.aws.lambda_runtime import BuiltFunction
from tests.aws.test_template import JOB_ENVIRONMENT, SCHEDULED, handler_of, resource_of
from tests.support.emr_server import served
from tests.support.function_world import DAY_MS, FunctionWorld
from tools.places import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # for `sam build`

BUCKET = "tidelog-built-functions"
EXPIRING = {"retention.ms": "3600000", "file.delete.delay.ms": "0"}


@dataclass(frozen=True, slots=True)
class Deployed:
    """A table and a prefix of a bucket, and the environment of the functions that use them."""

    world: FunctionWorld
    environment: Mapping[str, str]


@pytest.fixture
async def deployed(
    dynamodb_local_endpoint: str, ministack_endpoint: str, aws_credentials: None
) -> AsyncIterator[Deployed]:
    make_bucket(ministack_endpoint, BUCKET)
    name = f"built-{uuid.uuid4().hex}"
    store = DynamoDbMetadataStore(name, region=REGION, endpoint=dynamodb_local_endpoint)
    objects = S3ObjectStore(BUCKET, prefix=name, endpoint=ministack_endpoint)
    environment = {
        "AWS_ENDPOINT_URL": ministack_endpoint,
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "TIDELOG_METADATA": f"dynamodb://{name}?region={REGION}&endpoint={dynamodb_local_endpoint}",
        "TIDELOG_OBJECTS": f"s3://{BUCKET}/{name}",
        **JOB_ENVIRONMENT,
    }
    try:
        await store.create_table()
        world = FunctionWorld(store, objects)
        await world.start()
        yield Deployed(world, environment)
    finally:
        await objects.close()
        await store.close()


def invoked(
    built_template: Path, name: str, environment: Mapping[str, str], event: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the answer of a function of its own."""
    folder = built_template.parent
    with BuiltFunction(folder, resource_of(name), handler_of(name), environment) as function:
        answer: dict[str, Any] = function.invoke(event)
    return answer


async def test_the_built_scrub_lists_the_bucket(built_template: Path, deployed: Deployed) -> None:
    world = deployed.world
    topic = await world.create_topic()
    await world.copy(topic, 0)
    await world.put_orphan(topic, 0)
    answer = invoked(built_template, "scrub", deployed.environment, SCHEDULED)
    assert answer.get("failed") == {}, answer
    assert (answer["is_finished"], answer["young_count"]) == (True, 2)


async def test_the_built_retention_removes_old_segments_and_deleted_topics(
    built_template: Path, deployed: Deployed
) -> None:
    world = deployed.world
    kept, gone = [await world.create_topic(name, configs=EXPIRING) for name in ("a", "b")]
    await world.copy(kept, 0, age_ms=DAY_MS)
    await world.copy(kept, 10)
    await world.copy(gone, 0)
    world.clock.now_ms -= DAY_MS
    tombstone = await world.delete_topic(gone)
    answer = invoked(built_template, "retention", deployed.environment, SCHEDULED)
    assert answer.get("failed") == {}, answer
    assert answer["is_finished"]
    (left,) = await world.segments(kept.topic_id)
    keys = world.keys(kept, left)
    assert await world.present() == {keys.log, keys.index}
    assert await world.store.get(tombstone.item_id) is None


async def test_the_built_admin_api_shows_a_topic(built_template: Path, deployed: Deployed) -> None:
    request = {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": "/topics/events",
        "rawQueryString": "",
        "headers": {"accept": "application/json"},
        "requestContext": {
            "http": {"method": "GET", "path": "/topics/events", "sourceIp": "127.0.0.1"},
            "authorizer": {"iam": {"userArn": "arn:aws:iam::000000000000:user/admin"}},
            "requestId": "1",
            "stage": "$default",
        },
        "isBase64Encoded": False,
    }
    await deployed.world.create_topic("events")
    answer = invoked(built_template, "admin", deployed.environment, request)
    assert answer["statusCode"] == 200, answer
    assert '"events"' in answer["body"]


async def test_the_built_start_of_jobs_reads_the_tier(
    built_template: Path, deployed: Deployed
) -> None:
    topic = await deployed.world.create_topic("t", configs={"cleanup.policy": "compact"})
    await deployed.world.copy(topic, 0, size=100)
    with served() as emr:
        environment = {**deployed.environment, "AWS_ENDPOINT_URL_EMR_SERVERLESS": emr.url}
        answer = invoked(built_template, "jobs", environment, SCHEDULED)
    assert answer["run_id"] == "run-0", answer


def services_called(*folders: Path) -> Iterator[str]:
    """Yield the AWS services whose clients the modules make."""
    for path in (path for folder in folders for path in sorted(folder.rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                first = node.args[0] if node.args else None
                if node.func.attr == "client" and isinstance(first, ast.Constant):
                    yield str(first.value)


def test_the_layer_describes_every_service_that_functions_call(built_template: Path) -> None:
    folders = [ROOT / "core" / "tidelog_core", ROOT / "functions" / "tidelog_functions"]
    called = set(services_called(*folders))
    assert {"dynamodb", "emr-serverless", "lambda", "s3"} <= called
    data = built_template.parent / "CoreLayer" / "python" / "botocore" / "data"
    assert called <= {path.name for path in data.iterdir()}
