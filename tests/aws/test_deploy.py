"""The template deployed for real, by ``sam deploy``, to MiniStack; then nodes run against it.

MiniStack checks every call against IAM's policies: the functions have the roles that the
template gives them, the nodes have a user with the policy of their role.
"""

from __future__ import annotations

import dataclasses
import json
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from tidelog import Admin, Producer, Sasl
from tidelog_core.errors import AuthenticationFailed

from tests.aws.http_api import HttpApi
from tests.support.certificates import Authority
from tests.support.emr_server import EmrServer, served
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually
from tools import lambda_python, ministack, sam
from tools.places import ToolAbsent
from tools.ports import free_port

STACK = "tidelog-test"
SEGMENT_BYTES = 20_000
CONFIGS = {"segment.bytes": str(SEGMENT_BYTES), "file.delete.delay.ms": "0"}
WAIT_SECONDS_MAX = 120.0
JOB_SECONDS_MAX = 300.0  # MiniStack starts the function's process first
EVENT_SECONDS = 2.0  # a function that is running handles an event in this time

# Deploying is part of whichever test comes first.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # stacks on MiniStack

ROOT = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
SPOKE_HTTP = ("X-Forwarded-Proto", "http")


@dataclass(frozen=True, slots=True)
class Deployment:
    """What ``sam deploy`` has made."""

    endpoint: str
    outputs: Mapping[str, str]
    authority: Authority
    node_certificate: str  # ARN of its secret

    @property
    def bucket(self) -> str:
        return self.outputs["ObjectStore"].removeprefix("s3://").partition("/")[0]

    @property
    def admin_api(self) -> HttpApi:
        context = self.authority.client_context()
        return HttpApi(self.endpoint, self.outputs["AdminApiUrl"], sam.REGION, context)

    def client(self, service: str, credentials: Mapping[str, str] | None = None) -> Any:
        """Return a client, root's where no credentials are given."""
        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name=sam.REGION,
            verify=str(self.authority.trusted),
            **{name.lower(): value for name, value in (credentials or ROOT).items()},
        )

    def segments(self, topic: str) -> set[str]:
        """Return the keys of the topic's index objects."""
        s3 = self.client("s3")
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        keys = [found["Key"] for page in pages for found in page.get("Contents", [])]
        s3.close()
        assert all(key.startswith("tidelog/") for key in keys)
        return {key for key in keys if f"/{topic}-" in key and key.endswith(".index")}

    def dead_letter_count(self) -> int:
        """Return how many events the functions failed to handle."""
        sqs = self.client("sqs")
        queue = sqs.get_queue_attributes(
            QueueUrl=self.outputs["DeadLetters"], AttributeNames=["ApproximateNumberOfMessages"]
        )
        sqs.close()
        return int(queue["Attributes"]["ApproximateNumberOfMessages"])

    @contextmanager
    def retention_by_clock(self, schedule: str) -> Iterator[None]:
        """Have only the clock call retention, by this schedule, and no event of the bucket."""
        events = self.client("events")
        rules = [rule for rule in events.list_rules()["Rules"] if "Retention" in rule["Name"]]
        (by_event,) = (rule["Name"] for rule in rules if rule.get("EventPattern"))
        (clock,) = (rule for rule in rules if rule.get("ScheduleExpression"))
        events.disable_rule(Name=by_event)
        events.put_rule(Name=clock["Name"], ScheduleExpression=schedule)
        try:
            yield
        finally:
            events.put_rule(Name=clock["Name"], ScheduleExpression=clock["ScheduleExpression"])
            events.enable_rule(Name=by_event)
            events.close()

    def node_credentials(self) -> dict[str, str]:
        """Return the environment of a new user with exactly the rights of the nodes' role."""
        iam = self.client("iam")
        (role,) = (
            found["RoleName"]
            for found in iam.list_roles()["Roles"]
            if "NodeRole" in found["RoleName"]
        )
        policy = iam.get_role_policy(RoleName=role, PolicyName="node")["PolicyDocument"]
        iam.close()
        return self.user(policy)

    def api_caller(self, *resources: str) -> dict[str, str]:
        """Return the environment of a new user who may call these resources of the admin API.

        A resource is ``<stage>/<method>/<path>``. Source: API Gateway developer guide.
        """
        api = self.outputs["AdminApiUrl"].removeprefix("https://").partition(".")[0]
        allowed = [f"arn:aws:execute-api:{sam.REGION}:*:{api}/{one}" for one in resources]
        statement = {"Effect": "Allow", "Action": "execute-api:Invoke", "Resource": allowed}
        return self.user({"Version": "2012-10-17", "Statement": [statement]})

    def operator(self) -> dict[str, str]:
        """Return the environment of a session with the role of the API's administrator."""
        sts = self.client("sts")
        made = sts.assume_role(RoleArn=self.outputs["AdminOperatorRole"], RoleSessionName="alice")
        sts.close()
        return {
            "AWS_ACCESS_KEY_ID": made["Credentials"]["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": made["Credentials"]["SecretAccessKey"],
            "AWS_SESSION_TOKEN": made["Credentials"]["SessionToken"],
        }

    def user(self, policy: object) -> dict[str, str]:
        """Return the environment of a new user with this policy alone."""
        iam = self.client("iam")
        name = f"user-{uuid.uuid4().hex}"
        iam.create_user(UserName=name)
        iam.put_user_policy(UserName=name, PolicyName="all", PolicyDocument=json.dumps(policy))
        key = iam.create_access_key(UserName=name)["AccessKey"]
        iam.close()
        return {
            "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
        }

    def node(
        self,
        data_dir: Path,
        broker_id: int,
        credentials: Mapping[str, str],
        config: Mapping[str, str] | None = None,
    ) -> NodeProcess:
        """Return a node of the cluster, not yet started."""
        return NodeProcess(
            data_dir,
            broker_id=broker_id,
            metadata_store=self.outputs["MetadataStore"],
            object_store=self.outputs["ObjectStore"],
            environment={
                "AWS_ENDPOINT_URL": self.endpoint,
                "AWS_REGION": sam.REGION,
                "AWS_DEFAULT_REGION": sam.REGION,
                **trust(self.authority),
                **credentials,
            },
            # What expires in here, the function has to expire.
            config={"log.retention.check.interval.ms": "3600000", **(config or {})},
        )


def trust(authority: Authority) -> dict[str, str]:
    """Return the environment of a process whose AWS clients trust it, botocore's and obstore's."""
    return {"AWS_CA_BUNDLE": str(authority.trusted), "SSL_CERT_FILE": str(authority.trusted)}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def emr() -> Iterator[EmrServer]:
    with served() as server:
        yield server


@pytest.fixture(scope="module")
def endpoint(
    authority: Authority, emr: EmrServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Give MiniStack over TLS: the bucket's policy refuses other requests."""
    server = ministack.serve_with_iam(
        tmp_path_factory.mktemp("ministack"),
        node_pem=authority.node_pem("ministack"),
        authority=authority.trusted,
        emr_url=emr.url,
    )
    try:
        with server as url:
            yield url
    except ToolAbsent as absent:
        pytest.skip(str(absent))


@pytest.fixture(scope="module")
def deployment(built_template: Path, endpoint: str, authority: Authority) -> Deployment:
    empty = Deployment(endpoint, {}, authority, "")
    secrets = empty.client("secretsmanager")
    pem = authority.node_pem().read_text()
    certificate: str = secrets.create_secret(Name="tidelog-node", SecretString=pem)["ARN"]
    secrets.close()
    outputs = deployed(
        *(empty, built_template, STACK),
        "InstancesPerZone=1",
        f"NodeCertificate={certificate}",
        "ImageId=ami-0123456789abcdef0",
        "NodeBundle=bundles/tidelog-node.tar.gz",
    )
    return dataclasses.replace(empty, outputs=outputs, node_certificate=certificate)


def deployed(
    cloud: Deployment, built_template: Path, stack: str, *parameters: str
) -> dict[str, str]:
    """Deploy a stack and return its outputs."""
    python = lambda_python.closest().minor
    sam.sam(
        *("deploy", "--template-file", built_template, "--stack-name", stack),
        *("--resolve-s3", "--region", sam.REGION),
        *("--capabilities", "CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"),
        *("--parameter-overrides", f"PythonVersion={python}", *parameters),
        environment={"AWS_ENDPOINT_URL": cloud.endpoint, **trust(cloud.authority), **ROOT},
    )
    cloudformation = cloud.client("cloudformation")
    (found,) = cloudformation.describe_stacks(StackName=stack)["Stacks"]
    cloudformation.close()
    assert found["StackStatus"] == "CREATE_COMPLETE"
    return {output["OutputKey"]: output["OutputValue"] for output in found["Outputs"]}


def produce(address: str, topic: str, count: int) -> None:
    """Write records of 1 KB to partition 0, acknowledged by all replicas."""
    with Producer(address, acks="all", linger_ms=0).sync() as producer:
        for _ in range(count):
            producer.send(topic, b"x" * 1000, partition=0).result()


def produce_segments(deployment: Deployment, address: str, topic: str) -> set[str]:
    """Write until a few segments are in the bucket, and return them."""
    produce(address, topic, 80)
    eventually(lambda: len(deployment.segments(topic)) >= 3, "segments in the bucket")
    return deployment.segments(topic)


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
    node.list_objects_v2(Bucket=deployment.bucket)
    # MiniStack has one listener. It learns the client's protocol from the header of a proxy.
    node.meta.events.register(
        "before-sign.s3", lambda request, **_: request.headers.add_header(*SPOKE_HTTP)
    )
    with pytest.raises(ClientError, match=r"AccessDenied.*explicit deny"):
        node.list_objects_v2(Bucket=deployment.bucket)
    node.close()


def test_a_node_writes_nothing_beside_the_prefix(deployment: Deployment) -> None:
    node = deployment.client("s3", deployment.node_credentials())
    node.put_object(Bucket=deployment.bucket, Key="tidelog/.staging/object", Body=b"x")
    with pytest.raises(ClientError, match="AccessDenied"):
        node.put_object(Bucket=deployment.bucket, Key="elsewhere/object", Body=b"x")
    node.delete_object(Bucket=deployment.bucket, Key="tidelog/.staging/object")
    node.close()


def test_a_node_may_signal_the_stack_of_its_zone_and_no_other(deployment: Deployment) -> None:
    cloudformation = deployment.client("cloudformation")
    stacks = [stack["StackId"] for stack in cloudformation.describe_stacks()["Stacks"]]
    cloudformation.close()
    zones = [stack for stack in stacks if "-Zone" in stack]
    assert len(zones) == 3
    node = deployment.client("cloudformation", deployment.node_credentials())
    for stack in stacks:
        # No update is waiting, which only callers with the right to signal learn.
        problem = "ValidationError" if stack in zones else "AccessDenied"
        with pytest.raises(ClientError, match=problem):
            node.signal_resource(
                StackName=stack, LogicalResourceId="Instances", UniqueId="i-1", Status="SUCCESS"
            )
    node.close()


async def test_a_secured_node_has_the_key_and_the_first_user_of_the_stacks_secrets(
    deployment: Deployment, tmp_path: Path
) -> None:
    """With the rights of the nodes' role, and the settings that zone.yaml gives nodes."""
    port = free_port()
    config = {
        "listeners": f"SASL_SSL://127.0.0.1:{port}",
        "ssl.keystore.location": deployment.node_certificate,
        "authorizer.class.name": "tidelog.acl",
        "super.users": "User:admin",
        "bootstrap.admin.user": "admin",
        "bootstrap.admin.password.location": deployment.outputs["AdminSecret"],
    }
    secrets = deployment.client("secretsmanager")
    (key,) = [
        one for one in secrets.list_secrets()["SecretList"] if one["Name"].endswith("/tokens")
    ]
    config["delegation.token.secret.key.location"] = key["ARN"]
    password = secrets.get_secret_value(SecretId=deployment.outputs["AdminSecret"])["SecretString"]
    secrets.close()
    assert len(password) == 40
    node = deployment.node(tmp_path / "node", 301, deployment.node_credentials(), config)
    node.port = port
    with node:
        context = deployment.authority.client_context()
        sasl = Sasl("SCRAM-SHA-512", "admin", password)
        async with Admin(node.address, ssl=context, sasl=sasl) as admin:
            await admin.list_topics()
            token = await admin.create_delegation_token()
        async with Admin(node.address, ssl=context, sasl=token.sasl()) as by_token:
            await by_token.list_topics()
        with pytest.raises(AuthenticationFailed):
            await Admin(
                node.address, ssl=context, sasl=Sasl("SCRAM-SHA-512", "admin", "wrong")
            ).start()
    assert password not in node.log


@pytest.fixture(scope="module")
def nodes(
    deployment: Deployment, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[NodeProcess]]:
    """Two nodes of the cluster, running."""
    folder = tmp_path_factory.mktemp("nodes")
    credentials = deployment.node_credentials()
    first, second = (deployment.node(folder / f"node-{n}", n, credentials) for n in (1, 2))
    with first, second:
        yield [first, second]


def test_the_deployed_cluster_tiers_its_segments_and_expires_them_by_events(
    deployment: Deployment, nodes: list[NodeProcess]
) -> None:
    address, topic = nodes[0].address, "by-event"
    with Admin(address).sync() as admin:
        admin.create_topic(topic, partition_count=1, replication_factor=2, configs=CONFIGS)
        before = produce_segments(deployment, address, topic)
        admin.alter_configs("topic", topic, set={"retention.bytes": str(2 * SEGMENT_BYTES)})

        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while before & deployment.segments(topic):
            assert time.monotonic() < deadline, "old segments are there"
            # Each further segment is an event. Few at a time: an event that finds no free process
            # of the function starts another one.
            produce(address, topic, 20)
            time.sleep(EVENT_SECONDS)
        assert deployment.segments(topic)
        start = next(iter(admin.list_offsets({(topic, 0): "earliest"}).values()))
        assert start.offset > 0
    assert deployment.dead_letter_count() == 0


def test_the_admin_api_does_what_iam_and_acls_allow_its_signed_callers(
    deployment: Deployment, nodes: list[NodeProcess]
) -> None:
    api, topic = deployment.admin_api, {"name": "by-api", "assignments": [[1, 2]]}
    writer = deployment.api_caller("*/*/topics", "*/*/topics/*")
    for refused in (
        None,  # not signed
        deployment.api_caller("*/GET/*"),  # may not write
        deployment.api_caller("*/*/groups"),  # of other things
        {**writer, "AWS_SECRET_ACCESS_KEY": "guessed"},
        deployment.node_credentials(),
    ):
        assert api.call("POST", "/topics", topic, credentials=refused)[0] == 403
    # IAM lets this one through, but no ACL allows it anything.
    status, problem = api.call("POST", "/topics", topic, credentials=writer)
    assert (status, problem["error"]) == (403, "TOPIC_AUTHORIZATION_FAILED")
    assert api.call("GET", "/topics/by-api", credentials=writer)[0] == 403
    assert api.call("GET", "/topics", credentials=writer)[1]["topics"] == []
    operator = deployment.operator()
    assert api.call("GET", "/topics/by-api", credentials=operator)[0] == 404
    assert api.call("POST", "/topics", topic, credentials=operator)[0] == 201
    status, found = api.call("GET", "/topics/by-api", credentials=operator)
    assert (status, found["name"]) == (200, "by-api")
    produce(nodes[1].address, "by-api", 1)
    assert api.call("DELETE", "/topics/by-api", credentials=operator)[0] == 200
    assert api.call("GET", "/topics?limit=0", credentials=operator)[0] == 400


def test_the_schema_registry_is_behind_the_same_authorization_and_writes_the_bucket(
    deployment: Deployment, nodes: list[NodeProcess]
) -> None:
    api, root = deployment.admin_api, "/schema-registry"
    schema = {"schema": '"int"'}
    path = f"{root}/subjects/by-api-value/versions"
    caller = deployment.api_caller(f"*/*{root}/*")
    for refused in (None, deployment.api_caller("*/*/topics"), deployment.node_credentials()):
        assert api.call("POST", path, schema, credentials=refused)[0] == 403
    status, said = api.call("POST", path, schema, credentials=caller)
    assert (status, said["error_code"]) == (403, 40301)  # IAM lets it through, but no ACL.
    operator = deployment.operator()
    status, made = api.call("POST", path, schema, credentials=operator)
    assert (status, made.get("id")) == (200, 1), made
    assert api.call("GET", f"{root}/subjects", credentials=operator) == (200, ["by-api-value"])
    assert api.call("GET", f"{root}/subjects", credentials=caller) == (200, [])
    s3 = deployment.client("s3")
    listed = s3.list_objects_v2(Bucket=deployment.bucket, Prefix="tidelog/")
    s3.close()
    assert sum("/schemas/" in one["Key"] for one in listed["Contents"]) == 2


@pytest.mark.slow  # tests/aws/test_admin_jobs.py has the built functions without a stack
def test_the_admin_api_has_a_job_run_to_its_end(
    deployment: Deployment, nodes: list[NodeProcess]
) -> None:
    api, operator = deployment.admin_api, deployment.operator()
    status, job = api.call("POST", "/verifications", {"topics": []}, credentials=operator)
    assert status == 202, job
    path = f"/jobs/{job['job_id']}?after_step=100&wait_seconds=10"

    def shown() -> dict[str, Any]:
        found: dict[str, Any] = api.call("GET", path, credentials=operator)[1]
        return found

    eventually(
        lambda: shown()["state"] in ("done", "failed"),
        lambda: f"the job ends: {shown()}",
        seconds=JOB_SECONDS_MAX,
    )
    found = shown()
    assert (found["state"], found["problem"]) == ("done", None)
    assert found["caller"] == f"User:{deployment.outputs['AdminOperatorRole']}"


@pytest.mark.slow  # the clock of a rule has minutes
def test_the_clock_expires_what_no_event_does(
    deployment: Deployment, nodes: list[NodeProcess]
) -> None:
    address, topic = nodes[0].address, "by-clock"
    with Admin(address).sync() as admin:
        admin.create_topic(topic, partition_count=1, replication_factor=2, configs=CONFIGS)
        before = produce_segments(deployment, address, topic)
        with deployment.retention_by_clock("rate(1 minute)"):  # no rule can be faster
            admin.alter_configs("topic", topic, set={"retention.bytes": str(SEGMENT_BYTES)})
            eventually(lambda: bool(before - deployment.segments(topic)), "old ones deleted")
        assert deployment.segments(topic)
    assert deployment.dead_letter_count() == 0


@pytest.mark.slow  # a stack of its own: each segment of the other tests would be an event for jobs
def test_a_deployed_stack_with_jobs_starts_one_when_a_segment_makes_it_due(
    built_template: Path, endpoint: str, authority: Authority, emr: EmrServer, tmp_path: Path
) -> None:
    empty = Deployment(endpoint, {}, authority, "")
    name = f"{STACK}-jobs"
    outputs = deployed(empty, built_template, name, "JobArtefacts=bundles/jobs-1")
    stack = dataclasses.replace(empty, outputs=outputs)
    assert outputs["JobApplication"] == "app"
    configs = {**CONFIGS, "cleanup.policy": "compact"}
    with stack.node(tmp_path / "node", 1, ROOT) as node, Admin(node.address).sync() as admin:
        admin.create_topic("orders", partition_count=1, replication_factor=1, configs=configs)
        with Producer(node.address, acks="all", linger_ms=0).sync() as producer:
            for number in range(60):
                producer.send("orders", b"x" * 1000, key=b"%d" % (number % 3)).result()
        eventually(lambda: bool(emr.runs), "a run is started", WAIT_SECONDS_MAX)
    (run,) = emr.runs
    submit = run["jobDriver"]["sparkSubmit"]
    assert submit["entryPoint"] == "s3://bundles/jobs-1/compact.py"
    stores = [outputs["MetadataStore"], outputs["ObjectStore"]]
    assert submit["entryPointArguments"][1:4:2] == stores
    assert submit["entryPointArguments"][-2:] == ["--topic", "orders"]
    iam, logs = stack.client("iam"), stack.client("logs")
    roles = {role["Arn"]: role for role in iam.list_roles()["Roles"]}
    trusted = str(roles[run["executionRoleArn"]]["AssumeRolePolicyDocument"])
    assert "emr-serverless.amazonaws.com" in trusted
    monitoring = run["configurationOverrides"]["monitoringConfiguration"]
    group = monitoring["cloudWatchLoggingConfiguration"]["logGroupName"]
    found = logs.describe_log_groups(logGroupNamePrefix=group)["logGroups"]
    assert [one["logGroupName"] for one in found] == [f"/tidelog/{name}/spark"]
    iam.close()
    logs.close()
    assert stack.dead_letter_count() == 0
