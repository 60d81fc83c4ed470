"""The template deployed for real, by ``sam deploy``, to MiniStack; then nodes run against it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from tidelog import Admin, Producer

from tests.aws.conftest import PYTHON_VERSION
from tests.node.node_process import NodeProcess
from tools import sam
from tools.places import ROOT

STACK = "tidelog-test"
TOPIC = "flights"
SEGMENT_BYTES = 20_000
WAIT_SECONDS_MAX = 60.0

pytestmark = pytest.mark.usefixtures("aws_credentials")


@dataclass(frozen=True, slots=True)
class Deployment:
    """What ``sam deploy`` has made."""

    endpoint: str
    outputs: Mapping[str, str]

    @property
    def bucket(self) -> str:
        return self.outputs["ObjectStore"].removeprefix("s3://").partition("/")[0]

    def client(self, service: str) -> Any:
        return boto3.client(service, endpoint_url=self.endpoint, region_name=sam.REGION)

    def segments(self) -> set[str]:
        """Return the keys of the index objects in the bucket."""
        s3 = self.client("s3")
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        keys = [found["Key"] for page in pages for found in page.get("Contents", [])]
        s3.close()
        assert all(key.startswith("tidelog/") for key in keys)
        return {key for key in keys if key.endswith(".index")}

    def node(self, data_dir: Path, broker_id: int) -> NodeProcess:
        """Return a node of the cluster, not yet started."""
        return NodeProcess(
            data_dir,
            broker_id=broker_id,
            metadata_store=self.outputs["MetadataStore"],
            object_store=self.outputs["ObjectStore"],
            environment={"AWS_ENDPOINT_URL": self.endpoint},
            # What expires in here, the function has to expire.
            config={"log.retention.check.interval.ms": "3600000"},
        )


@pytest.fixture(scope="module")
def deployment(built_template: Path, ministack_endpoint: str) -> Deployment:
    environment = {
        "AWS_ENDPOINT_URL": ministack_endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }
    sam.sam(
        *("deploy", "--template-file", built_template, "--stack-name", STACK),
        *("--resolve-s3", "--region", sam.REGION),
        *("--capabilities", "CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"),
        *("--parameter-overrides", f"PythonVersion={PYTHON_VERSION} InstancesPerZone=1"),
        "NodeBundle=bundles/tidelog-node.tar.gz",
        environment=environment,
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        cloudformation = boto3.client("cloudformation", region_name=sam.REGION)
        (stack,) = cloudformation.describe_stacks(StackName=STACK)["Stacks"]
        cloudformation.close()
    assert stack["StackStatus"] == "CREATE_COMPLETE"
    outputs = {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}
    return Deployment(ministack_endpoint, outputs)


def eventually(what: str, is_so: Callable[[], bool]) -> None:
    """Return when it is so; fails after ``WAIT_SECONDS_MAX``."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline, f"not in {WAIT_SECONDS_MAX} s: {what}"
        time.sleep(0.2)


def produce(address: str, count: int) -> None:
    """Write records of 1 KB to partition 0, acknowledged by all replicas."""
    with Producer(address, acks="all", linger_ms=0).sync() as producer:
        for _ in range(count):
            producer.send(TOPIC, b"x" * 1000, partition=0).result()


def test_every_zone_has_a_group_of_machines_of_its_own(deployment: Deployment) -> None:
    autoscaling = deployment.client("autoscaling")
    groups = autoscaling.describe_auto_scaling_groups()["AutoScalingGroups"]
    autoscaling.close()
    ec2 = deployment.client("ec2")
    subnets = ec2.describe_subnets(SubnetIds=[group["VPCZoneIdentifier"] for group in groups])
    ec2.close()
    assert len({subnet["AvailabilityZone"] for subnet in subnets["Subnets"]}) == 3
    assert [group["DesiredCapacity"] for group in groups] == [1, 1, 1]


def test_the_bucket_tells_eventbridge_and_the_table_can_be_restored(
    deployment: Deployment,
) -> None:
    s3 = deployment.client("s3")
    told = s3.get_bucket_notification_configuration(Bucket=deployment.bucket)
    assert "EventBridgeConfiguration" in told
    policy = s3.get_bucket_policy(Bucket=deployment.bucket)["Policy"]
    assert "aws:SecureTransport" in policy
    s3.close()
    dynamodb = deployment.client("dynamodb")
    table = deployment.outputs["MetadataStore"].removeprefix("dynamodb://").partition("?")[0]
    backups = dynamodb.describe_continuous_backups(TableName=table)
    dynamodb.close()
    recovery = backups["ContinuousBackupsDescription"]["PointInTimeRecoveryDescription"]
    assert recovery["PointInTimeRecoveryStatus"] == "ENABLED"


@pytest.mark.skipif(
    not (ROOT / "functions/tidelog_functions/retention").is_dir(),
    reason="the retention function is not there",
)
def test_the_deployed_cluster_tiers_its_segments_and_expires_them_by_events(
    deployment: Deployment, tmp_path: Path
) -> None:
    first, second = (deployment.node(tmp_path / f"node-{n}", n) for n in (1, 2))
    with first as one, second, Admin(one.address).sync() as admin:
        configs = {"segment.bytes": str(SEGMENT_BYTES), "file.delete.delay.ms": "0"}
        admin.create_topic(TOPIC, partition_count=1, replication_factor=2, configs=configs)
        produce(one.address, 120)
        eventually("segments in the bucket", lambda: len(deployment.segments()) >= 5)
        before = deployment.segments()
        admin.alter_configs("topic", TOPIC, set={"retention.bytes": str(2 * SEGMENT_BYTES)})

        def are_gone() -> bool:
            # Every segment that follows is an event, and the last one is kept.
            produce(one.address, 20)
            return not before & deployment.segments()

        eventually("old segments deleted", are_gone)
        assert deployment.segments()
        start = next(iter(admin.list_offsets({(TOPIC, 0): "earliest"}).values()))
        assert start.offset > 0
    sqs = deployment.client("sqs")
    (letters,) = (
        sqs.get_queue_attributes(
            QueueUrl=deployment.outputs["DeadLetters"], AttributeNames=["All"]
        )["Attributes"]["ApproximateNumberOfMessages"],
    )
    sqs.close()
    assert letters == "0"
