"""The stacks of nodes that hold nothing, made by MiniStack's CloudFormation.

MiniStack has no Application Auto Scaling, so that part of the Fargate stack is left out, and it
starts no machines and no tasks.
"""

from __future__ import annotations

from typing import Any

import boto3
import pytest

from tests.aws.stacks import DISKLESS, FARGATE, nested_stacks
from tests.support.waiting import eventually
from tools import sam

ZONES = {"ClientZones": "10.0.0.0/8=us-east-1a"}
SCALING = "  # -- scaling"  # begins the last part of the template

# The same resources are held against CloudFormation's schemas in tests/aws/test_schemas.py.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("aws_credentials")]


class Cloud:
    """MiniStack's services."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    def client(self, service: str) -> Any:
        return boto3.client(service, endpoint_url=self._endpoint, region_name=sam.REGION)

    def create(self, name: str, template: str, parameters: dict[str, str]) -> None:
        """Make a stack, and wait until it is there."""
        given = [{"ParameterKey": k, "ParameterValue": v} for k, v in parameters.items()]
        formation = self.client("cloudformation")
        formation.create_stack(
            StackName=name,
            TemplateBody=template,
            Parameters=given,
            Capabilities=["CAPABILITY_IAM"],
        )

        def status() -> str:
            (found,) = formation.describe_stacks(StackName=name)["Stacks"]
            return str(found["StackStatus"])

        eventually(lambda: status() == "CREATE_COMPLETE", status)


@pytest.fixture
def cloud(ministack_endpoint: str) -> Cloud:
    return Cloud(ministack_endpoint)


def test_a_group_of_machines_with_its_hook_and_policies(cloud: Cloud) -> None:
    nodes = nested_stacks({**DISKLESS, **ZONES})["Nodes"].resources["Group"]["Properties"]
    given = {key: str(value) for key, value in nodes["Parameters"].items()}
    cloud.create("diskless", (sam.INFRA / "diskless.yaml").read_text(), given)
    scaling = cloud.client("autoscaling")
    (group,) = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=["tidelog-diskless"])[
        "AutoScalingGroups"
    ]
    assert (group["MinSize"], group["MaxSize"]) == (3, 6)
    (hook,) = scaling.describe_lifecycle_hooks(AutoScalingGroupName="tidelog-diskless")[
        "LifecycleHooks"
    ]
    assert hook["LifecycleTransition"] == "autoscaling:EC2_INSTANCE_TERMINATING"
    policies = scaling.describe_policies(AutoScalingGroupName="tidelog-diskless")["ScalingPolicies"]
    targets = sorted(one["TargetTrackingConfiguration"]["TargetValue"] for one in policies)
    assert targets == [50, 25_000_000]


def test_a_service_of_tasks(cloud: Cloud) -> None:
    tasks = nested_stacks({**FARGATE, **ZONES})["Nodes"].resources["Tasks"]["Properties"]
    given = {key: str(value) for key, value in tasks["Parameters"].items()}
    template, _, scaling = (sam.INFRA / "fargate.yaml").read_text().partition(SCALING)
    assert scaling.count("Type: AWS::") == scaling.count("Type: AWS::ApplicationAutoScaling::") == 3
    cloud.create("fargate", template, given)
    ecs = cloud.client("ecs")
    made = cloud.client("cloudformation").list_stack_resources(StackName="fargate")
    ids = {
        one["LogicalResourceId"]: one["PhysicalResourceId"]
        for one in made["StackResourceSummaries"]
    }
    cluster, service = ids["Tasks"], ids["Service"]
    (found,) = ecs.describe_services(cluster=cluster, services=[service])["services"]
    assert found["status"] == "ACTIVE"
    node = ecs.describe_task_definition(taskDefinition=found["taskDefinition"])["taskDefinition"]
    assert node["networkMode"] == "awsvpc"
    assert (node["cpu"], node["memory"]) == ("1024", "2048")
    (container,) = node["containerDefinitions"]
    assert container["entryPoint"][0] == "python3"
