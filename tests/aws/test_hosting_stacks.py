"""The stacks of nodes that hold nothing, made by MiniStack's CloudFormation, alone and as a whole.

MiniStack has no Application Auto Scaling, so that part of the Fargate stack is left out, and it
starts no machines and no tasks.
"""

from __future__ import annotations

import pytest

from tests.aws.cloud import Cloud, without_splits
from tests.aws.stacks import DISKLESS, FARGATE, nested_stacks
from tools import sam

ZONES = {"ClientZones": "10.0.0.0/8=us-east-1a"}
SCALING = "  # -- scaling"  # begins the last part of the template

# The same resources are held against CloudFormation's schemas in tests/aws/test_schemas.py.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("aws_credentials")]


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
    cloud.create("fargate", without_splits(template), given)
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


def test_a_network_and_the_nodes_in_it(cloud: Cloud) -> None:
    """As the root stack makes them, which gives the network's outputs to the nodes."""
    root = nested_stacks(DISKLESS)[""].resources
    given = {
        stack: {key: str(value) for key, value in root[stack]["Properties"]["Parameters"].items()}
        for stack in ("Network", "Nodes")
    }
    template, rest = (sam.INFRA / "network.yaml").read_text().split("  HealthRule:")
    outputs = rest[rest.index("\nOutputs:") :]  # MiniStack has no rules beside their group
    cloud.create("network", template + outputs, given["Network"])
    network = cloud.outputs("network")
    taken = {key: value for key, value in network.items() if key in given["Nodes"]}
    template = (sam.INFRA / "nodes.yaml").read_text()
    group_url = cloud.upload("diskless.yaml", (sam.INFRA / "diskless.yaml").read_text())
    template = template.replace("TemplateURL: diskless.yaml", f"TemplateURL: {group_url}")
    cloud.create("nodes", template, {**given["Nodes"], **taken, "ClusterName": "whole"})

    scaling = cloud.client("autoscaling")
    (group,) = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=["whole-diskless"])[
        "AutoScalingGroups"
    ]
    ec2 = cloud.client("ec2")
    subnets = ec2.describe_subnets(SubnetIds=group["VPCZoneIdentifier"].split(","))["Subnets"]
    zones = {one["CidrBlock"]: one["AvailabilityZone"] for one in subnets}
    assert len(set(zones.values())) == 3
    # The nodes know the zone of a client by its address.
    assert dict(pair.split("=") for pair in network["ClientZones"].split(",")) == zones
    balancing = cloud.client("elbv2")
    targets = balancing.describe_target_groups()["TargetGroups"]
    (secure,) = [one for one in targets if one.get("HealthCheckPath") == "/readyz"]
    assert (secure["HealthCheckProtocol"], secure["HealthCheckPort"]) == ("HTTP", "9644")
