"""Nodes that hold nothing: a group of machines without instance storage, or tasks of Fargate.

What the templates say, and what the launcher makes of it. No machine and no task is started here.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs

import pytest
from tidelog_core.config import NodeConfig, parse_config
from tidelog_core.setting_values.client_zones import parse_cidr_zones
from tidelog_node.settings import parse_settings

from tests.aws.instance_metadata import metadata_service
from tests.aws.machines import NODE_PROGRAMS
from tests.aws.played_service import COMPLETED, played
from tests.aws.stacks import DISKLESS, FARGATE, NODES, OWN_VPC, nested_stacks
from tests.aws.templates import read_template
from tools import sam
from tools.places import ROOT

GROUP, TASKS = "Nodes/Group", "Nodes/Tasks"
ZONES = {"ClientZones": "10.0.0.0/8=us-east-1a"}
TASK_ADDRESS, TASK_HOST = "10.42.1.7", "ip-10-42-1-7.ec2.internal"


@pytest.fixture(scope="module")
def launcher() -> Iterator[ModuleType]:
    sys.path.insert(0, str(NODE_PROGRAMS))
    import tidelog_launch

    yield tidelog_launch
    sys.path.remove(str(NODE_PROGRAMS))


def allowed(role: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the statements of a role's policies by their names."""
    return {
        statement["Sid"]: statement
        for policy in role["Policies"]
        for statement in policy["PolicyDocument"]["Statement"]
    }


# -- which nodes there are -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "made"),
    [
        (NODES, {"Nodes/Zone1", "Nodes/Zone2", "Nodes/Zone3"}),
        (DISKLESS, {GROUP}),
        (FARGATE, {TASKS}),
        ({}, set()),
    ],
)
def test_one_parameter_says_where_nodes_run(parameters: dict[str, str], made: set[str]) -> None:
    assert {name for name in nested_stacks(parameters) if name.startswith("Nodes/")} == made


def test_machines_have_no_disk_but_the_root_and_spread_over_zones() -> None:
    stacks = nested_stacks({**DISKLESS, "NodesMax": "9", "CacheGb": "80"})
    instance = stacks[GROUP].properties("Instance")["LaunchTemplateData"]
    (disk,) = instance["BlockDeviceMappings"]
    assert disk["Ebs"] == {"VolumeType": "gp3", "VolumeSize": 80, "Encrypted": True}
    assert "mkfs" not in str(instance["UserData"])
    group = stacks[GROUP].properties("Instances")
    assert len(group["VPCZoneIdentifier"]) == 3
    assert (group["MinSize"], group["MaxSize"]) == (3, 9)
    assert "DesiredCapacity" not in group  # an update keeps what the load has asked for


@pytest.mark.parametrize("percent", ["0", "100"])
def test_one_node_is_never_of_spot_capacity(percent: str) -> None:
    group = nested_stacks({**DISKLESS, "SpotPercent": percent})[GROUP].properties("Instances")
    instances = group["MixedInstancesPolicy"]["InstancesDistribution"]
    assert instances["OnDemandBaseCapacity"] == 1
    assert instances["OnDemandPercentageAboveBaseCapacity"] == 100 - int(percent)
    tasks = nested_stacks({**FARGATE, "SpotPercent": percent})[TASKS].properties("Service")
    fixed, *spot = tasks["CapacityProviderStrategy"]
    assert (fixed["CapacityProvider"], fixed["Base"]) == ("FARGATE", 1)
    assert [one["CapacityProvider"] for one in spot] == ["FARGATE_SPOT"] * (percent == "100")


def test_tasks_keep_their_cache_on_the_disk_of_the_task() -> None:
    node = nested_stacks({**FARGATE, "CacheGb": "120"})[TASKS].properties("Node")
    assert node["EphemeralStorage"] == {"SizeInGiB": 120}
    (container,) = node["ContainerDefinitions"]
    assert container["ReadonlyRootFilesystem"] is True
    assert [one["ContainerPath"] for one in container["MountPoints"]] == ["/var/lib/tidelog"]
    # Docker gives the folder of a VOLUME of the image to its owner, else to root.
    dockerfile = (ROOT / "infra" / "container" / "Dockerfile").read_text()
    assert "\nVOLUME /var/lib/tidelog\n" in dockerfile
    assert container["StopTimeout"] == 120  # Fargate's longest


# -- what they may ---------------------------------------------------------------------------------


def test_a_task_may_what_a_node_needs_and_nothing_of_machines() -> None:
    role = nested_stacks(FARGATE)["Nodes"].properties("NodeRole")
    (trusted,) = role["AssumeRolePolicyDocument"]["Statement"]
    assert trusted["Principal"] == {"Service": "ecs-tasks.amazonaws.com"}
    node = {"Metadata", "BrokerIds", "ListSegments", "FindRulesThatExpireChains", "Segments"}
    assert set(allowed(role)) == node | {"KeyFirstPasswordAndTokens"}
    start = nested_stacks(FARGATE)[TASKS].properties("StartRole")
    assert set(allowed(start)) == {"ImageLogin", "Image", "Log"}


@pytest.mark.parametrize(
    ("image", "repository"),
    [
        ("123456789012.dkr.ecr.eu-west-1.amazonaws.com/tidelog:1.0", "tidelog"),
        ("123456789012.dkr.ecr.eu-west-1.amazonaws.com/tidelog@sha256:ab", "tidelog"),
        ("123456789012.dkr.ecr.eu-west-1.amazonaws.com.cn/team/tidelog:1", "team"),
    ],
)
def test_a_task_may_pull_its_own_image_alone(image: str, repository: str) -> None:
    """It may be of another account and region."""
    start = nested_stacks({**FARGATE, "NodeImage": image})[TASKS].properties("StartRole")
    arn = f"arn:aws:ecr:eu-west-1:123456789012:repository/{repository}"
    assert allowed(start)["Image"]["Resource"] == [arn, f"{arn}/*"]


def test_a_task_of_a_public_image_may_pull_no_private_one() -> None:
    start = nested_stacks({**FARGATE, "NodeImage": "ghcr.io/tide/tidelog:1"})[TASKS]
    assert set(allowed(start.properties("StartRole"))) == {"Log"}


def test_a_machine_may_complete_the_hook_of_its_own_group_alone() -> None:
    stacks = nested_stacks(DISKLESS)
    drained = allowed(stacks["Nodes"].properties("NodeRole"))["Drained"]
    assert drained["Action"] == "autoscaling:CompleteLifecycleAction"
    name = stacks[GROUP].properties("Instances")["AutoScalingGroupName"]
    assert drained["Resource"].endswith(f":autoScalingGroupName/{name}")
    for parameters in (NODES, FARGATE):
        assert "Drained" not in allowed(nested_stacks(parameters)["Nodes"].properties("NodeRole"))


def test_the_stack_reaches_what_its_nodes_call() -> None:
    def services(parameters: Mapping[str, str]) -> set[str]:
        return {
            one["Properties"]["ServiceName"].partition("us-east-1.")[2]
            for one in nested_stacks(parameters)["Network"].resources.values()
            if one["Type"] == "AWS::EC2::VPCEndpoint"
        }

    every = {"s3", "dynamodb", "logs", "secretsmanager"}
    machine = {"monitoring", "cloudformation"}
    assert services(DISKLESS) == every | machine | {"autoscaling"}
    assert services(FARGATE) == every | {"ecr.api", "ecr.dkr"}
    assert services(NODES) == every | machine


# -- health ----------------------------------------------------------------------------------------


def test_the_load_balancer_asks_nodes_of_machines_whether_they_are_ready() -> None:
    stacks = nested_stacks(DISKLESS)
    targets = stacks["Nodes"].properties("SecureTargets")
    asked = (targets["HealthCheckProtocol"], targets["HealthCheckPort"], targets["HealthCheckPath"])
    assert asked == ("HTTP", "9644", "/readyz")
    rule = stacks["Network"].properties("HealthRule")
    assert (rule["FromPort"], rule["ToPort"]) == (9644, 9644)
    assert rule["SourceSecurityGroupId"] == rule["GroupId"]  # and nobody else
    balancer = stacks["Nodes"].properties("Bootstrap")
    assert len(balancer["SecurityGroups"]) == 1


def test_nobody_ends_a_node_because_the_metadata_store_is_away() -> None:
    """Then /readyz says no, and the nodes go on acknowledging."""
    assert nested_stacks(DISKLESS)[GROUP].properties("Instances")["HealthCheckType"] == "EC2"
    (container,) = nested_stacks(FARGATE)[TASKS].properties("Node")["ContainerDefinitions"]
    assert "/livez" in str(container["HealthCheck"]["Command"])
    targets = nested_stacks(FARGATE)["Nodes"].properties("SecureTargets")
    assert (targets["HealthCheckProtocol"], targets["TargetType"]) == ("TCP", "ip")
    assert "HealthCheckPath" not in targets


# -- scaling ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "stack", "configuration"),
    [
        (DISKLESS, GROUP, "TargetTrackingConfiguration"),
        (FARGATE, TASKS, "TargetTrackingScalingPolicyConfiguration"),
    ],
)
def test_their_number_follows_cpu_and_bytes(
    parameters: dict[str, str], stack: str, configuration: str
) -> None:
    given = {**parameters, "CpuTarget": "40", "BytesTarget": "1000000"}
    policies = nested_stacks(given)[stack]
    by_cpu = policies.properties("ScaleByCpu")[configuration]
    assert by_cpu["TargetValue"] == 40
    assert "CPU" in by_cpu["PredefinedMetricSpecification"]["PredefinedMetricType"]
    by_bytes = policies.properties("ScaleByBytes")[configuration]
    assert by_bytes["TargetValue"] == 1_000_000
    metrics = by_bytes["CustomizedMetricSpecification"]["Metrics"]
    assert [one["ReturnData"] for one in metrics] == [False, False, True]
    assert metrics[-1]["Expression"] == "(produced + consumed) / 60"


def test_the_bytes_are_metrics_that_nodes_write_for_each_minute() -> None:
    from tidelog_node.monitoring.embedded_metrics import (
        DIMENSION,
        EMBEDDED_METRICS,
        INTERVAL_SECONDS,
        NAMESPACE,
    )

    assert INTERVAL_SECONDS == 60
    written = {one.name for one in EMBEDDED_METRICS}
    for parameters, stack in ((DISKLESS, GROUP), (FARGATE, TASKS)):
        policy = str(nested_stacks(parameters)[stack].properties("ScaleByBytes"))
        assert set(re.findall(r"'MetricName': '(\w+)'", policy)) <= written
        assert set(re.findall(r"'Namespace': '(\w+)'", policy)) == {NAMESPACE}
        assert f"{{'Name': '{DIMENSION}', 'Value': 'tidelog'}}" in policy


# -- the node's command line -----------------------------------------------------------------------


def unit(parameters: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the launcher's arguments and the environment that the machine's unit has."""
    data = nested_stacks(parameters)[GROUP].properties("Instance")["LaunchTemplateData"]
    text = str(data["UserData"])
    start = re.search(r"ExecStart=\S+ \S+ (.*?)\n\s*#", text, re.DOTALL)
    assert start is not None
    words = start[1].replace("\\\n", " ").replace("%i", "1").split()
    pairs = (
        pair.split("=", 1)
        for line in re.findall(r"Environment=(.*)", text)
        for pair in line.split()
    )
    return words, dict(pairs)


def container(parameters: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the launcher's arguments and the environment that the task has."""
    node = nested_stacks(parameters)[TASKS].properties("Node")
    (one,) = node["ContainerDefinitions"]
    environment = {pair["Name"]: str(pair["Value"]) for pair in one["Environment"]}
    return [str(word) for word in one["Command"]], environment


def launched(launcher: ModuleType, words: list[str], environment: Mapping[str, str]) -> Any:
    """Return the settings of the node that the launcher would start with these words."""
    # The stores' addresses are outputs of another stack.
    filled = [
        re.sub(r"^MetadataStore$", "dynamodb://t?region=us-east-1", word).replace(
            "=MetadataStore", "=dynamodb://t?region=us-east-1"
        )
        for word in words
    ]
    filled = [word.replace("ObjectStore", "s3://b/tidelog", 1) for word in filled]
    launch = launcher._parse(filled)
    command = launch.command(1001, address=TASK_ADDRESS, host=TASK_HOST, zone="us-east-1a")
    assert command[1:3] == ["-m", "tidelog_node"]
    return parse_settings(command[3:], environment)


def test_a_node_of_a_machine_understands_what_it_is_told(launcher: ModuleType) -> None:
    words, environment = unit({**DISKLESS, **ZONES})
    settings = launched(launcher, words, environment)
    assert (settings.rack, settings.http_host, settings.http_port) == (
        "us-east-1a",
        TASK_ADDRESS,
        9645,  # of the second process
    )
    (listener,) = settings.listeners.clients
    assert (listener.protocol, listener.advertised_host) == ("SASL_SSL", TASK_HOST)
    assert settings.config_overrides["log.diskless.enable"] == "true"
    assert settings.config_overrides["cost.machine.type"] == "m6i.large"
    config = parse_config(NodeConfig, settings.config_overrides)  # every name and value is one
    assert config.log_diskless_enable
    assert config.diskless_wal_max_age_ms == config.broker_unregister_after_ms == 600_000
    assert config.client_az_cidr_map == ZONES["ClientZones"]


@pytest.mark.parametrize(
    ("access", "advertised"),
    [
        ("open", [("PLAINTEXT", TASK_ADDRESS, 9092)]),
        ("both", [("PLAINTEXT", TASK_ADDRESS, 9092), ("SASL_SSL", TASK_HOST, 9292)]),
        ("secure", [("SASL_SSL", TASK_HOST, 9292)]),
    ],
)
def test_a_task_advertises_its_own_address(
    access: str, advertised: list[tuple[str, str, int]], launcher: ModuleType
) -> None:
    words, environment = container({**FARGATE, **ZONES, "ClientAccess": access})
    settings = launched(launcher, words, environment)
    found = [(one.protocol, one.advertised_host, one.port) for one in settings.listeners.clients]
    assert found == advertised
    assert {one.host for one in settings.listeners.clients} == {TASK_ADDRESS}
    assert settings.http_host == "127.0.0.1"  # for the health check of the container


def test_nodes_of_both_and_functions_have_the_same_settings() -> None:
    def settings(environment: Mapping[str, str]) -> dict[str, str]:
        named = {k: v for k, v in environment.items() if k.startswith("TIDELOG_CONFIG_")}
        return {k: v for k, v in named.items() if "_COST_MACHINE_" not in k}

    of_machines, of_tasks = (settings(told[1]) for told in (unit(DISKLESS), container(FARGATE)))
    assert of_machines == of_tasks
    given = read_template(sam.TEMPLATE)["Globals"]["Function"]["Environment"]["Variables"]
    functions = {
        name: chosen(value, DISKLESS)
        for name, value in given.items()
        if name.startswith("TIDELOG_CONFIG_")
    }
    assert functions == {name: of_machines[name] for name in functions}


def chosen(value: Any, parameters: Mapping[str, str]) -> str:
    """Return a value of the root template with these parameters."""
    if isinstance(value, Mapping) and "If" in value:
        condition, yes, no = value["If"]
        is_true = nested_stacks(parameters)[""].conditions[condition]
        return chosen(yes if is_true else no, parameters)
    if isinstance(value, Mapping):
        name = value["Ref"]
        default = read_template(sam.TEMPLATE)["Parameters"][name]["Default"]
        return str(parameters.get(name, default))
    return str(value)


def test_clients_of_the_subnets_that_the_stack_makes_have_their_zones() -> None:
    found = nested_stacks(DISKLESS)["Network"].outputs["ClientZones"]
    zones = parse_cidr_zones(found.replace("Subnet1.AvailabilityZone", "a"))
    assert zones
    assert nested_stacks({**DISKLESS, **OWN_VPC})["Network"].outputs["ClientZones"] == ""
    _, environment = unit({**DISKLESS, **ZONES})
    assert environment["TIDELOG_CONFIG_CLIENT_AZ_CIDR_MAP"] == ZONES["ClientZones"]


# -- broker ids, the end ---------------------------------------------------------------------------


def launch_of(launcher: ModuleType, data_dir: Path, *words: str) -> Any:
    common = ("--table", "t", "--processes-per-instance", "2", "--process", "0")
    return launcher._parse([*common, "--data-dir", str(data_dir), *words])


def test_ids_are_those_of_any_zone_and_the_ones_with_data_here_come_first(
    launcher: ModuleType, tmp_path: Path
) -> None:
    launch = launch_of(launcher, tmp_path)
    ids = launch.candidates(0)
    assert (ids[0], len(ids), max(ids)) == (1001, 999, 1999)
    assert launch.known(ids) == []  # a new machine asks for nothing before it claims
    (tmp_path / "broker-1007").mkdir()
    ids = launch.candidates(0)
    assert ids[:2] == [1007, 1001]
    assert launch.known(ids) == [1007]
    of_zone = launch_of(launcher, tmp_path, "--zone-number", "2")
    assert of_zone.candidates(2) == [201, 202, 203, 204]
    assert of_zone.known([201, 202]) == [201, 202]


def test_a_task_knows_itself_by_its_metadata(launcher: ModuleType) -> None:
    """The answer is the one of the ECS developer guide, shortened."""
    told = {
        "Cluster": "default",
        "TaskARN": "arn:aws:ecs:us-east-1:111122223333:task/default/e9028f8d5d8e4f258373e7b93ce9a3c3",
        "AvailabilityZone": "us-east-1b",
        "Containers": [
            {
                "Networks": [
                    {
                        "NetworkMode": "awsvpc",
                        "IPv4Addresses": [TASK_ADDRESS],
                        "PrivateDNSName": TASK_HOST,
                    }
                ]
            }
        ],
    }
    from tidelog_task import METADATA_VARIABLE, Task

    with played(json.dumps(told)) as (url, asked):
        task = Task.read({METADATA_VARIABLE: f"{url}/v4/1"})
    assert asked == ["/v4/1/task"]
    assert task == Task("e9028f8d5d8e4f258373e7b93ce9a3c3", TASK_ADDRESS, TASK_HOST, "us-east-1b")
    assert not task.is_lasting  # so its id is released when it stops
    with pytest.raises(OSError, match="no task of ECS"):
        Task.read({})


@pytest.mark.usefixtures("aws_credentials")
def test_the_last_process_to_drain_completes_the_hook(
    launcher: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidelog_hook import TerminationHook

    group = nested_stacks(DISKLESS)[GROUP]
    name = group.properties("Instances")["AutoScalingGroupName"]
    hook_name = group.properties("Drain")["LifecycleHookName"]
    hooks = [
        TerminationHook(name, hook_name, folder=tmp_path, process=number, processes=2)
        for number in (0, 1)
    ]
    with played(COMPLETED) as (url, asked):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        assert not hooks[1].drained("i-1")
        assert asked == []
        assert hooks[0].drained("i-1")
    (request,) = (parse_qs(one) for one in asked)
    assert request["Action"] == ["CompleteLifecycleAction"]
    assert request["AutoScalingGroupName"] == ["tidelog-diskless"]
    assert (request["LifecycleHookName"], request["InstanceId"]) == (["drain"], ["i-1"])
    assert request["LifecycleActionResult"] == ["CONTINUE"]
    words, _ = unit(DISKLESS)
    launch = launcher._parse(words)
    assert (launch.group, launch.hook) == (name, hook_name)


@pytest.mark.usefixtures("aws_credentials")
def test_a_hook_that_cannot_be_completed_is_left_to_its_time_limit(
    launcher: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from tidelog_hook import TerminationHook

    refusal = (
        "<ErrorResponse><Error><Type>Sender</Type><Code>ValidationError</Code>"
        "<Message>No active Lifecycle Action found</Message></Error></ErrorResponse>"
    )
    with played(refusal, status=400) as (url, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        hook = TerminationHook("g", "drain", folder=tmp_path, process=0, processes=1)
        assert hook.drained("i-1")
    assert "it will time out" in caplog.text


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ({"autoscaling/target-lifecycle-state": "InService"}, False),
        ({"autoscaling/target-lifecycle-state": "Terminated"}, True),
        ({"spot/instance-action": '{"action": "terminate"}'}, True),
        ({}, False),
    ],
)
def test_a_machine_sees_its_end(values: dict[str, str], ends: bool, launcher: ModuleType) -> None:
    from tidelog_instance import InstanceMetadata

    service = metadata_service(values)
    try:
        metadata = InstanceMetadata(f"http://127.0.0.1:{service.server_port}")
        assert metadata.is_terminating() is ends
    finally:
        service.shutdown()
        service.server_close()


def test_the_machines_script_is_valid_bash(tmp_path: Path) -> None:
    data = nested_stacks(DISKLESS)[GROUP].properties("Instance")["LaunchTemplateData"]
    script = tmp_path / "user-data.sh"
    script.write_text(str(data["UserData"]))
    subprocess.run(["bash", "-n", script], check=True)


def test_the_image_has_the_program_that_the_task_runs() -> None:
    node = nested_stacks(FARGATE)[TASKS].properties("Node")
    (one,) = node["ContainerDefinitions"]
    assert one["EntryPoint"] == ["python3", "/opt/tidelog/launch/tidelog_launch.py"]
    folder = ROOT / "infra" / "container"
    assert "\nCOPY infra/node /opt/tidelog/launch\n" in (folder / "Dockerfile").read_text()
    ignored = (folder / "Dockerfile.dockerignore").read_text().splitlines()
    assert ignored[:2] != ["*", "infra"]
    assert "!infra/node" in ignored
