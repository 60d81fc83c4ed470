"""The template deployed for real, by ``sam deploy``, to MiniStack; then nodes run against it.

MiniStack holds every call to IAM's policies: the functions act under the roles that the
template gives them, the nodes under a user with the policy of their role.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from tidelog import Admin, Producer

from tests.node.node_process import NodeProcess
from tools import lambda_python, ministack, sam
from tools.places import ToolAbsent

STACK = "tidelog-test"
TOPIC = "flights"
SEGMENT_BYTES = 20_000
WAIT_SECONDS_MAX = 120.0

pytestmark = pytest.mark.usefixtures("aws_credentials")


@dataclass(frozen=True, slots=True)
class Deployment:
    """What ``sam deploy`` has made."""

    endpoint: str
    outputs: Mapping[str, str]

    @property
    def bucket(self) -> str:
        return self.outputs["ObjectStore"].removeprefix("s3://").partition("/")[0]

    def client(self, service: str, credentials: Mapping[str, str] | None = None) -> Any:
        """Return a client, root's where no credentials are given."""
        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name=sam.REGION,
            **{name.lower(): value for name, value in (credentials or {}).items()},
        )

    def segments(self) -> set[str]:
        """Return the keys of the index objects in the bucket."""
        s3 = self.client("s3")
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        keys = [found["Key"] for page in pages for found in page.get("Contents", [])]
        s3.close()
        assert all(key.startswith("tidelog/") for key in keys)
        return {key for key in keys if key.endswith(".index")}

    @contextmanager
    def plain_http(self) -> Iterator[None]:
        """Suspend the policy of the bucket, which refuses what is not TLS; MiniStack's is not."""
        s3 = self.client("s3")
        policy = s3.get_bucket_policy(Bucket=self.bucket)["Policy"]
        s3.delete_bucket_policy(Bucket=self.bucket)
        try:
            yield
        finally:
            s3.put_bucket_policy(Bucket=self.bucket, Policy=policy)
            s3.close()

    def node_credentials(self) -> dict[str, str]:
        """Return the environment of somebody who may do what the nodes' role may, and no more."""
        iam = self.client("iam")
        (role,) = (
            found["RoleName"]
            for found in iam.list_roles()["Roles"]
            if "NodeRole" in found["RoleName"]
        )
        policy = iam.get_role_policy(RoleName=role, PolicyName="node")["PolicyDocument"]
        user = f"node-{uuid.uuid4().hex}"
        iam.create_user(UserName=user)
        iam.put_user_policy(UserName=user, PolicyName="node", PolicyDocument=json.dumps(policy))
        key = iam.create_access_key(UserName=user)["AccessKey"]
        iam.close()
        return {
            "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
        }

    def node(self, data_dir: Path, broker_id: int, credentials: Mapping[str, str]) -> NodeProcess:
        """Return a node of the cluster, not yet started."""
        return NodeProcess(
            data_dir,
            broker_id=broker_id,
            metadata_store=self.outputs["MetadataStore"],
            object_store=self.outputs["ObjectStore"],
            environment={"AWS_ENDPOINT_URL": self.endpoint, **credentials},
            # What expires in here, the function has to expire.
            config={"log.retention.check.interval.ms": "3600000"},
        )


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    try:
        with ministack.serve_with_iam(tmp_path_factory.mktemp("ministack")) as url:
            yield url
    except ToolAbsent as absent:
        pytest.skip(str(absent))


@pytest.fixture(scope="module")
def deployment(built_template: Path, endpoint: str) -> Deployment:
    python = lambda_python.closest().minor
    environment = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }
    sam.sam(
        *("deploy", "--template-file", built_template, "--stack-name", STACK),
        *("--resolve-s3", "--region", sam.REGION),
        *("--capabilities", "CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"),
        *("--parameter-overrides", f"PythonVersion={python} InstancesPerZone=1"),
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
    return Deployment(endpoint, outputs)


def eventually(what: str, is_so: Callable[[], bool]) -> None:
    """Return when it is so; fails after ``WAIT_SECONDS_MAX``."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline, f"not in {WAIT_SECONDS_MAX} s: {what}"
        time.sleep(1.0)


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


def test_the_bucket_takes_no_request_without_tls(deployment: Deployment) -> None:
    node = deployment.client("s3", deployment.node_credentials())
    with pytest.raises(ClientError, match=r"AccessDenied.*explicit deny"):
        node.list_objects_v2(Bucket=deployment.bucket)
    with deployment.plain_http():
        node.list_objects_v2(Bucket=deployment.bucket)
    node.close()


def test_a_node_writes_nothing_beside_the_prefix(deployment: Deployment) -> None:
    node = deployment.client("s3", deployment.node_credentials())
    with deployment.plain_http():
        node.put_object(Bucket=deployment.bucket, Key="tidelog/.staging/object", Body=b"x")
        with pytest.raises(ClientError, match="AccessDenied"):
            node.put_object(Bucket=deployment.bucket, Key="elsewhere/object", Body=b"x")
        node.delete_object(Bucket=deployment.bucket, Key="tidelog/.staging/object")
    node.close()


@pytest.mark.timeout(300)
def test_the_deployed_cluster_tiers_its_segments_and_expires_them_by_events(
    deployment: Deployment, tmp_path: Path
) -> None:
    credentials = deployment.node_credentials()
    first, second = (deployment.node(tmp_path / f"node-{n}", n, credentials) for n in (1, 2))
    with deployment.plain_http(), first as one, second, Admin(one.address).sync() as admin:
        configs = {"segment.bytes": str(SEGMENT_BYTES), "file.delete.delay.ms": "0"}
        admin.create_topic(TOPIC, partition_count=1, replication_factor=2, configs=configs)
        produce(one.address, 80)
        eventually("segments in the bucket", lambda: len(deployment.segments()) >= 3)
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
