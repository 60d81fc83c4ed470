"""The bucket and its events on LocalStack: what S3 and EventBridge do, by a second server.

LocalStack runs no functions. The rule's target is a queue instead of the retention function,
and the test calls the handler with the events in the queue. Bucket, pattern and dead letters are
those of the templates, deployed by LocalStack's CloudFormation. LocalStack stores the setting of
a rule's own dead letters (for events that could not be delivered) and ignores it.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from tidelog import Admin, Producer
from tidelog_core.objects.s3 import S3ObjectStore
from tidelog_core.objects.store import ObjectStore
from tidelog_functions.events import ObjectCreated, UnknownEvent, parse_event
from tidelog_functions.local.events import object_created
from tidelog_functions.retention.handler import handle as retain

from tests.aws.buckets import make_bucket
from tests.aws.s3_contract import BUCKET, S3Contract
from tests.aws.stacks import nested_stacks
from tests.aws.templates import read_template
from tests.support.function_world import Steps
from tests.support.node_process import NodeProcess
from tools import sam

PREFIX = "tidelog"
SEGMENT_BYTES = 20_000
RECORD_BYTES = 1_000
TRIES = 3  # as the function's MaximumRetryAttempts has it, with the first
WAIT_SECONDS_MAX = 60.0
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": sam.REGION,
    "AWS_DEFAULT_REGION": sam.REGION,
}

pytestmark = pytest.mark.localstack


@pytest.mark.slow  # MiniStack has conditional writes too
class TestS3ObjectStoreOnLocalStack(S3Contract):
    """A second server's idea of S3."""

    foreign_starts = ("t/",)  # It compares keys as a URL has them, where S3 compares the keys.

    @pytest.fixture(autouse=True)
    def _fresh(self, localstack_endpoint: str, aws_credentials: None) -> None:
        make_bucket(localstack_endpoint, BUCKET)
        self.endpoint, self.prefix = localstack_endpoint, uuid.uuid4().hex

    def open_store(self) -> ObjectStore:
        return S3ObjectStore(BUCKET, prefix=self.prefix, endpoint=self.endpoint)


@dataclass(slots=True)
class Deployed:
    """The bucket, and the queues behind its events."""

    endpoint: str
    bucket: str
    events: str  # URL of the queue
    dead_letters: str
    sqs: Any

    @property
    def objects_url(self) -> str:
        return f"s3://{self.bucket}/{PREFIX}"

    def store(self, *, prefix: str = PREFIX, multipart_threshold: int = 1 << 30) -> S3ObjectStore:
        """Return the store of the nodes."""
        return S3ObjectStore(
            self.bucket,
            prefix=prefix,
            endpoint=self.endpoint,
            multipart_threshold=multipart_threshold,
            part_size_bytes=5 << 20,
        )

    def object_keys(self) -> set[str]:
        """Return what is in the bucket, below the prefix."""

        async def run() -> set[str]:
            store = self.store()
            try:
                return {found.key async for found in store.list("")}
            finally:
                await store.close()

        return asyncio.run(run())

    def receive(self, queue: str) -> list[Any]:
        """Return messages that are there or arrive in a moment."""
        answer = self.sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=1)
        messages: list[Any] = answer.get("Messages", [])
        return messages

    def take_events(self, are_enough: Callable[[list[Any]], bool]) -> list[Any]:
        """Return the events that arrive until there are enough."""
        events: list[Any] = []
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not are_enough(events):
            assert time.monotonic() < deadline, events
            for message in self.receive(self.events):
                events.append(json.loads(message["Body"]))
                self.sqs.delete_message(
                    QueueUrl=self.events, ReceiptHandle=message["ReceiptHandle"]
                )
        return events


@pytest.fixture(scope="module")
def deployed(localstack_endpoint: str) -> Iterator[Deployed]:
    def client(service: str) -> Any:
        return boto3.client(
            service,
            endpoint_url=localstack_endpoint,
            region_name=sam.REGION,
            aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        )

    cloudformation, sqs = client("cloudformation"), client("sqs")
    cloudformation.create_stack(StackName="events", TemplateBody=json.dumps(events_template()))
    cloudformation.get_waiter("stack_create_complete").wait(
        StackName="events", WaiterConfig={"Delay": 1, "MaxAttempts": int(WAIT_SECONDS_MAX)}
    )
    (stack,) = cloudformation.describe_stacks(StackName="events")["Stacks"]
    cloudformation.close()
    outputs = {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}
    yield Deployed(
        localstack_endpoint,
        bucket=outputs["SegmentBucket"],
        events=outputs["Events"],
        dead_letters=outputs["DeadLetters"],
        sqs=sqs,
    )
    sqs.close()


def events_template() -> dict[str, Any]:
    """Return the part of the templates that LocalStack can run, a queue for the function."""
    root = read_template(sam.TEMPLATE)["Resources"]
    function = root["RetentionFunction"]["Properties"]
    event = function["Events"]["SegmentTiered"]["Properties"]
    assert function["EventInvokeConfig"]["MaximumRetryAttempts"] == TRIES - 1
    queue_arn = {"GetAtt": "Events.Arn"}
    stacks = nested_stacks({"Prefix": PREFIX})
    resources = {
        "SegmentBucket": dict(stacks["Data"].resources["SegmentBucket"]),
        "DeadLetters": dict(stacks[""].resources["DeadLetters"]),
        "DeadLettersPolicy": root["DeadLettersPolicy"],
        "Events": {
            "Type": "AWS::SQS::Queue",
            "Properties": {
                "RedrivePolicy": {
                    "deadLetterTargetArn": {"GetAtt": "DeadLetters.Arn"},
                    "maxReceiveCount": TRIES,
                }
            },
        },
        "SegmentTiered": {
            "Type": "AWS::Events::Rule",
            "Properties": {
                "EventPattern": event["Pattern"],
                "Targets": [{"Id": "retention", "Arn": queue_arn}],
            },
        },
    }
    document = {
        "Parameters": {"Prefix": {"Type": "String", "Default": PREFIX}},
        "Resources": resources,
        "Outputs": {
            name: {"Value": {"Ref": name}} for name in ("SegmentBucket", "Events", "DeadLetters")
        },
    }
    long_form: dict[str, Any] = _long_form(document)
    return long_form


def _long_form(value: Any) -> Any:
    """Return JSON that CloudFormation takes, in one stack where there are two."""
    if isinstance(value, list):
        return [_long_form(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value == {"GetAtt": "Data.Outputs.BucketName"}:
        return {"Ref": "SegmentBucket"}
    if "GetAtt" in value:
        return {"Fn::GetAtt": value["GetAtt"].split(".")}
    if "Sub" in value:
        return {"Fn::Sub": value["Sub"]}
    return {name: _long_form(one) for name, one in value.items()}


def created(events: list[Any]) -> list[ObjectCreated]:
    """Return what the events say to the handler."""
    parsed = [one for event in events for one in parse_event(event)]
    assert all(isinstance(one, ObjectCreated) for one in parsed)
    return [one for one in parsed if isinstance(one, ObjectCreated)]


@pytest.mark.usefixtures("aws_credentials")
async def test_index_objects_and_nothing_else_are_events(deployed: Deployed) -> None:
    folder = f"cluster/by-hand-{uuid.uuid4()}/0"

    store, in_parts = deployed.store(), deployed.store(multipart_threshold=0)
    elsewhere = deployed.store(prefix="elsewhere")
    try:
        await elsewhere.put(f"{folder}/1.index", b"of somebody else")
        await store.put("cluster/cluster.json", b"{}")
        await store.put(f"{folder}/1.log", b"segment")
        await store.put(f"{folder}/1.index", b"index")
        await in_parts.put(f"{folder}/2.log", b"segment")
        await in_parts.put(f"{folder}/2.index", b"index")
        await store.delete([f"{folder}/1.index", f"{folder}/1.log"])
        await store.put(f"{folder}/3.index", b"index")
    finally:
        for one in (store, in_parts, elsewhere):
            await one.close()
    keys = {f"{PREFIX}/{folder}/{number}.index" for number in (1, 2, 3)}
    events = deployed.take_events(lambda events: keys <= {one.key for one in created(events)})
    assert sorted(one.key for one in created(events)) == sorted(keys)
    # The embedded run calls the handlers with events that say the same.
    local = [object_created(deployed.bucket, key, now_ms=0) for key in keys]
    assert set(created(events)) == set(created(local))


@pytest.fixture(scope="module")
def node(deployed: Deployed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that tiers to the bucket and leaves it to the function to expire."""
    folder = tmp_path_factory.mktemp("localstack-node")
    process = NodeProcess(
        folder / "node",
        metadata_store=f"sqlite://{folder}/metadata.db",
        object_store=deployed.objects_url,
        config={"remote.task.interval.ms": "100", "log.retention.check.interval.ms": "3600000"},
        environment={"AWS_ENDPOINT_URL": deployed.endpoint, **CREDENTIALS},
    )
    with process:
        yield process


@pytest.fixture
def function(
    deployed: Deployed,
    node: NodeProcess,
    aws_credentials: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The environment of the function."""
    assert node.metadata_store is not None
    monkeypatch.setenv("AWS_ENDPOINT_URL", deployed.endpoint)
    monkeypatch.setenv("TIDELOG_METADATA", node.metadata_store)
    monkeypatch.setenv("TIDELOG_OBJECTS", deployed.objects_url)


def fill(node: NodeProcess, deployed: Deployed, topic: str) -> list[Any]:
    """Seal a few segments, of which one is to be kept; return their events."""
    configs = {"segment.bytes": str(SEGMENT_BYTES), "file.delete.delay.ms": "0"}
    with (
        Admin(node.address).sync() as admin,
        Producer(node.address, acks="all", linger_ms=0).sync() as producer,
    ):
        admin.create_topic(topic, partition_count=1, replication_factor=1, configs=configs)
        for _ in range(5 * SEGMENT_BYTES // RECORD_BYTES):
            producer.send(topic, b"x" * RECORD_BYTES, partition=0).result()
        local = node.data_dir / f"{topic}-0"
        sealed_count = len(list(local.glob("*.log"))) - 1
        assert sealed_count > 3
        events = deployed.take_events(lambda events: len(events) >= sealed_count)
        admin.alter_configs("topic", topic, set={"retention.bytes": str(SEGMENT_BYTES)})
    return events


def indexes(deployed: Deployed, topic: str) -> set[str]:
    keys = {
        key
        for key in deployed.object_keys()
        if f"/{topic}-" in key and key.endswith((".index", ".log"))
    }
    found = {key for key in keys if key.endswith(".index")}
    # Each with its segment, and no segment without.
    assert keys == {
        f"{key.removesuffix('index')}{end}" for key in found for end in ("index", "log")
    }
    return found


@pytest.mark.usefixtures("function")
def test_retention_deletes_by_the_events_that_the_bucket_sends(
    deployed: Deployed, node: NodeProcess
) -> None:
    events = fill(node, deployed, "orders")
    tiered = indexes(deployed, "orders")
    assert {one.key for one in created(events)} == {f"{PREFIX}/{key}" for key in tiered}
    deleted = 0
    # Reordered, and each of them twice.
    for event in [*reversed(events), *events]:
        summary = retain(event, Steps())
        assert summary["failed"] == {}
        deleted += int(str(summary["segment_deleted_count"]))
    left = indexes(deployed, "orders")
    assert left < tiered
    assert deleted == len(tiered - left)
    # The newest are left, and the log begins with them.
    assert left == set(sorted(tiered)[-len(left) :])
    first_left = min(int(key.rpartition("/")[2].split("-")[0]) for key in left)
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    with Admin(node.address).sync() as admin:
        while admin.list_offsets({("orders", 0): "earliest"})["orders", 0].offset != first_left:
            assert time.monotonic() < deadline  # The node looks a few times a second.
            time.sleep(0.05)


@pytest.mark.usefixtures("function")
def test_an_event_that_fails_ends_in_the_dead_letters_and_can_be_replayed_from_there(
    deployed: Deployed, node: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    *_, event = fill(node, deployed, "payments")
    before = indexes(deployed, "payments")
    deployed.sqs.send_message(QueueUrl=deployed.events, MessageBody=json.dumps(event))
    with monkeypatch.context() as patched:
        patched.setenv("TIDELOG_OBJECTS", "s3://another-bucket/tidelog")  # deployed wrongly
        letter = fail_until_dead(deployed)
    assert json.loads(letter["Body"]) == event
    assert indexes(deployed, "payments") == before
    record = {"eventSource": "aws:sqs", "messageId": letter["MessageId"], "body": letter["Body"]}
    summary = retain({"Records": [record]}, Steps())
    assert summary["segment_deleted_count"] == len(before - indexes(deployed, "payments"))
    assert summary["segment_deleted_count"] != 0


def fail_until_dead(deployed: Deployed) -> Any:
    """Call the function as often as it is tried; return the dead letter."""
    tries = 0
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while time.monotonic() < deadline:
        for message in deployed.receive(deployed.events):
            tries += 1
            with pytest.raises(UnknownEvent, match="another-bucket"):
                retain(json.loads(message["Body"]), Steps())
            deployed.sqs.change_message_visibility(
                QueueUrl=deployed.events,
                ReceiptHandle=message["ReceiptHandle"],
                VisibilityTimeout=0,
            )
        if letters := deployed.receive(deployed.dead_letters):
            (letter,) = letters
            assert tries == TRIES
            return letter
    raise AssertionError(f"no dead letter after {tries} tries")
