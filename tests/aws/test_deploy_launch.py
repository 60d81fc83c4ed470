"""The launcher on a machine of the cluster: real processes, DynamoDB's table, real nodes.

Only the instance metadata service is played here, by a small HTTP server.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tidelog_node.settings import parse_settings

from tests.aws.machines import LAUNCHER, NODE_PROGRAMS, WAIT_SECONDS_MAX, machines
from tests.aws.stacks import NODES, nested_stacks
from tests.aws.templates import read_template, template_paths
from tests.support.waiting import eventually
from tools import lambda_python, node_bundle, sam
from tools.places import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("aws_credentials"),
]  # machines' processes on MiniStack


@pytest.fixture(scope="module")
def launcher() -> Iterator[ModuleType]:
    sys.path.insert(0, str(NODE_PROGRAMS))  # as for a program in that folder
    spec = importlib.util.spec_from_file_location("tidelog_launch", LAUNCHER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(NODE_PROGRAMS))


def owners(dynamodb: Any, table: str) -> dict[int, str]:
    found = dynamodb.scan(TableName=table, ConsistentRead=True)["Items"]
    return {int(item["broker_id"]["N"]): item["owner"]["S"] for item in found}


def test_processes_that_start_together_get_different_ids(
    launcher: ModuleType, dynamodb: Any, broker_id_table: str
) -> None:
    def claim(number: int) -> int | None:
        ids = launcher.BrokerIds(dynamodb, broker_id_table, owner=f"i-{number}/0", claim_seconds=60)
        claimed: int | None = ids.claim([101, 102, 103, 104, 105, 106])
        return claimed

    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(claim, range(8)))
    assert sorted(broker_id for broker_id in taken if broker_id is not None) == list(
        range(101, 107)
    )
    assert taken.count(None) == 2


def test_a_process_that_starts_again_gets_its_own_id(
    launcher: ModuleType, dynamodb: Any, broker_id_table: str
) -> None:
    one, two = (
        launcher.BrokerIds(dynamodb, broker_id_table, owner=f"i-1/{process}", claim_seconds=60)
        for process in (0, 1)
    )
    assert (one.claim([101, 102]), two.claim([101, 102])) == (101, 102)
    one.release(101)
    assert two.claim([101, 102]) == 102


def test_a_lapsed_claim_can_be_taken_and_is_lost_for_its_owner(
    launcher: ModuleType, dynamodb: Any, broker_id_table: str
) -> None:
    gone = launcher.BrokerIds(dynamodb, broker_id_table, owner="i-1/0", claim_seconds=-1)
    successor = launcher.BrokerIds(dynamodb, broker_id_table, owner="i-2/0", claim_seconds=60)
    assert gone.claim([101]) == 101
    assert successor.claim([101]) == 101
    with pytest.raises(launcher.ClaimLost):
        gone.renew(101)
    with pytest.raises(launcher.ClaimLost):
        gone.release(101)
    assert owners(dynamodb, broker_id_table) == {101: "i-2/0"}


def test_a_machine_that_replaces_a_lost_one_becomes_its_broker(
    tmp_path: Path, dynamodb: Any, broker_id_table: str, dynamodb_local_endpoint: str
) -> None:
    with machines(tmp_path, dynamodb_local_endpoint, broker_id_table) as machine:
        first, second = machine("i-1"), machine("i-2")
        first.start()
        first.await_node()
        second.start()
        eventually(lambda: "waiting for one" in second.log, "it waits")
        assert owners(dynamodb, broker_id_table) == {201: "i-1/0"}
        first.vanish()
        second.await_node()
        assert owners(dynamodb, broker_id_table) == {201: "i-2/0"}
        assert (second.data_dir / "broker-201").is_dir()


def test_an_instance_that_is_to_be_terminated_drains_and_gives_its_id_back(
    tmp_path: Path, dynamodb: Any, broker_id_table: str, dynamodb_local_endpoint: str
) -> None:
    with (
        systemd(tmp_path) as notifications,
        machines(tmp_path, dynamodb_local_endpoint, broker_id_table) as machine,
    ):
        instance = machine("i-1")
        instance.environment["NOTIFY_SOCKET"] = str(tmp_path / "notify")
        instance.start()
        assert notifications.recv(100).startswith(b"READY=1")
        instance.await_node()
        instance.terminate()
        eventually(lambda: notifications.recv(100).startswith(b"STOPPING=1"), "it says so")
        assert "node stopped" in instance.log
        assert owners(dynamodb, broker_id_table) == {}


def test_a_launcher_that_is_stopped_stops_its_node_and_keeps_its_id(
    tmp_path: Path, dynamodb: Any, broker_id_table: str, dynamodb_local_endpoint: str
) -> None:
    with machines(tmp_path, dynamodb_local_endpoint, broker_id_table) as machine:
        instance = machine("i-1")
        instance.start()
        instance.await_node()
        assert instance.process is not None
        instance.process.terminate()
        assert instance.process.wait(WAIT_SECONDS_MAX) == 0, instance.log
        assert "node stopped" in instance.log
        assert owners(dynamodb, broker_id_table) == {201: "i-1/0"}
        instance.start()
        instance.await_node(count=2)


@pytest.mark.slow  # a terminated instance's systemd hears the first and the last word above
def test_systemd_hears_that_the_node_answers_until_it_hangs(
    tmp_path: Path, broker_id_table: str, dynamodb_local_endpoint: str
) -> None:
    with (
        systemd(tmp_path) as notifications,
        machines(tmp_path, dynamodb_local_endpoint, broker_id_table) as machine,
    ):
        instance = machine("i-1")
        instance.environment["NOTIFY_SOCKET"] = str(tmp_path / "notify")
        instance.start()
        assert notifications.recv(100).startswith(b"READY=1")
        assert "ready" in instance.log
        for _ in range(2):
            assert notifications.recv(100) == b"WATCHDOG=1"
        with instance.node_suspended():
            eventually(lambda: "the node does not answer" in instance.log, "it is noticed")
            notifications.setblocking(False)
            while True:  # what was sent before
                try:
                    assert notifications.recv(100) == b"WATCHDOG=1"
                except BlockingIOError:
                    break
            notifications.settimeout(1.5)  # longer than the node is left alone
            with pytest.raises(TimeoutError):
                notifications.recv(100)
        notifications.settimeout(WAIT_SECONDS_MAX)
        assert notifications.recv(100) == b"WATCHDOG=1"
        instance.terminate()
        eventually(lambda: notifications.recv(100).startswith(b"STOPPING=1"), "it says so")


@contextmanager
def systemd(folder: Path) -> Iterator[socket.socket]:
    """Listen as systemd does; see sd_notify(3)."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(folder / "notify"))
        listening.settimeout(WAIT_SECONDS_MAX)
        yield listening


@pytest.mark.slow
def test_a_machine_runs_from_the_bundle_alone(
    tmp_path: Path, broker_id_table: str, dynamodb_local_endpoint: str
) -> None:
    path = tmp_path / "bundle.tar.gz"
    python = lambda_python.closest()
    node_bundle.write_bundle(path, python_version=python.minor)
    with tarfile.open(path) as bundle:
        bundle.extractall(tmp_path / "opt", filter="data")
    with machines(tmp_path, dynamodb_local_endpoint, broker_id_table) as machine:
        instance = machine("i-1")
        instance.environment["PYTHONPATH"] = str(tmp_path / "opt" / "packages")
        # It knows none of the packages that the tests have.
        programs, program = tmp_path / "opt", str(python.program)
        instance.start(python=program, launcher=programs / LAUNCHER.name)
        instance.await_node()
        waits = instance.wait_in_sync(WAIT_SECONDS_MAX, python=program, programs=programs)
        log, _ = waits.communicate()
        assert waits.returncode == 0, log


def test_the_bundle_has_what_a_node_needs() -> None:
    """All dependencies but those of the command line and of the console beside `tidelog up`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {
        re.split(r"[<>=\[]", requirement)[0]
        for requirement in (
            *project["dependencies"],
            *project["optional-dependencies"]["node"],
        )
    }
    assert needed - {"typer", "rich", "jinja2"} <= set(node_bundle.REQUIREMENTS)


def test_functions_and_machines_run_the_same_python() -> None:
    assert node_bundle.PYTHON_VERSION == sam.PYTHON_VERSION


SECURITY = {
    "ClientAccess": "secure",
    "NodeCertificate": "arn:aws:secretsmanager:us-east-1:1:secret:node",
    "AdminUser": "admin",
    "AdminSecret": "arn:aws:secretsmanager:us-east-1:1:secret:admin",
    "TokenSecret": "arn:aws:secretsmanager:us-east-1:1:secret:tokens",
    "Authorizer": "tidelog.acl",
    "AuthorizerDryRun": "false",
}


def _user_data() -> str:
    template = read_template(ROOT / "infra" / "zone.yaml")
    data = template["Resources"]["Instance"]["Properties"]["LaunchTemplateData"]["UserData"]
    text: str = data["Fn::Base64"]["Sub"]
    return text


def test_the_machines_units_say_only_what_launcher_and_node_understand(
    launcher: ModuleType, tmp_path: Path
) -> None:
    """The variables of the unit and the words behind ``--`` are parsed as on the machine."""
    text = re.sub(r"\$\{\w*(Number|Zone|Instance|First|Ms)\}", "1", _user_data())
    text = text.replace("${PrivateLinkHost}", "").replace("${InstanceType}", "i4i.2xlarge")
    text = text.replace("${ClusterName}", "tidelog")
    for name, value in SECURITY.items():
        text = text.replace(f"${{{name}}}", value)
    text = text.replace("${MetadataStore}", "dynamodb://t?region=us-east-1")
    text = text.replace("${ObjectStore}", "s3://bucket/tidelog")
    start = re.search(r"ExecStart=\S+ \S+ (.*?)\n\s*#", text, re.DOTALL)
    assert start is not None
    words = start[1].replace("\\\n", " ").replace("%i", "1").split()
    launch = launcher._parse(words)
    command = launch.command(101, address="10.0.0.1", host="ip-10-0-0-1", zone="us-east-1a")
    assert command[1:3] == ["-m", "tidelog_node"]
    assert launch.candidates(2)[0] == 101
    environment = dict(
        pair.split("=", 1)
        for line in re.findall(r"Environment=(.*)", text)
        for pair in line.split()
    )
    settings = parse_settings(command[3:], environment)
    assert settings.broker_id == 101
    (listener,) = settings.listeners.clients
    assert (listener.protocol, listener.port) == ("SASL_SSL", launch.secure_port_first + 1)
    assert (listener.host, listener.advertised_host) == ("10.0.0.1", "ip-10-0-0-1")
    assert not listener.is_open
    assert settings.config_overrides["bootstrap.admin.user"] == "admin"
    assert settings.config_overrides["cost.machine.type"] == "i4i.2xlarge"
    assert settings.config_overrides["cost.machine.nodes"] == "1"
    assert settings.config_overrides["authorizer.class.name"] == "tidelog.acl"
    assert settings.listeners.nodes.port == launch.inter_broker_port_first + 1
    assert settings.metadata_store_url == "dynamodb://t?region=us-east-1"
    assert settings.config_overrides["min.insync.replicas"] == "2"


@pytest.mark.parametrize(
    ("access", "protocols"),
    [("open", ["PLAINTEXT"]), ("both", ["PLAINTEXT", "SASL_SSL"]), ("secure", ["SASL_SSL"])],
)
def test_a_nodes_listeners_are_those_of_the_access_of_clients(
    access: str, protocols: list[str], launcher: ModuleType
) -> None:
    launch = launcher._parse(
        [
            *("--table", "t", "--zone-number", "1", "--processes-per-instance", "1"),
            *("--process", "0", "--data-dir", "d", "--client-access", access),
        ]
    )
    command = launch.command(101, address="10.0.0.1", host="ip-10-0-0-1", zone="a")
    listeners = parse_settings(command[3:], {}).listeners.clients
    assert [one.protocol for one in listeners] == protocols
    ports = {"PLAINTEXT": 9092, "SASL_SSL": 9292}
    assert [one.port for one in listeners] == [ports[one] for one in protocols]


def linked(launcher: ModuleType, zone: int, process: int) -> Any:
    return launcher._parse(
        [
            *("--table", "t", "--zone-number", str(zone), "--processes-per-instance", "2"),
            *("--process", str(process), "--data-dir", "d", "--client-access", "both"),
            "--private-link-host=kafka.example.org",
        ]
    )


def test_each_broker_has_a_port_of_its_own_for_clients_of_privatelink(
    launcher: ModuleType,
) -> None:
    ports = []
    for zone in (1, 2, 3):
        for number in range(launcher.PRIVATE_LINK_NODES_MAX):
            launch, broker_id = linked(launcher, zone, number % 2), 100 * zone + number + 1
            command = launch.command(broker_id, address="10.0.0.1", host="ip-10-0-0-1", zone="a")
            listeners = parse_settings(command[3:], {}).listeners.clients
            assert [one.name for one in listeners] == ["PLAINTEXT", "SASL_SSL", "PRIVATELINK"]
            link = listeners[-1]
            assert (link.protocol, link.host) == ("SASL_SSL", "10.0.0.1")
            assert link.advertised_host == "kafka.example.org"
            assert link.advertised_port in (None, link.port)
            ports.append(link.port)
    assert ports == list(range(9392, 9404))
    with pytest.raises(ValueError, match="PrivateLink serves 4 nodes of a zone"):
        linked(launcher, 1, 0).command(105, address="10.0.0.1", host="h", zone="a")


def test_the_machines_wait_for_their_replicas_as_the_program_and_the_template_have_it(
    tmp_path: Path,
) -> None:
    """With a metadata service that is away, it comes no further than its arguments."""
    text = _user_data().replace("\\\n", " ")
    words = re.search(r"systemd-run .* /opt/tidelog/(tidelog_in_sync\.py .*)", text)
    assert words is not None
    filled = words[1].replace("${MetadataStore}", "sqlite:///nowhere")
    filled = re.sub(r"\$\{ProcessesPerInstance\}", "2", filled)
    program, *arguments = filled.split()
    assert program in node_bundle.PROGRAMS
    group = arguments[arguments.index("--resource") + 1]
    template = read_template(ROOT / "infra" / "zone.yaml")["Resources"][group]
    assert template["Type"] == "AWS::AutoScaling::AutoScalingGroup"
    assert template["UpdatePolicy"]["AutoScalingRollingUpdate"]["WaitOnResourceSignals"] is True
    done = subprocess.run(
        [
            sys.executable,
            NODE_PROGRAMS / program,
            *arguments,
            "--metadata-url",
            "http://127.0.0.1:9",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "usage" not in done.stderr
    assert "Connection refused" in done.stderr


def test_functions_have_the_settings_of_the_nodes() -> None:
    given = read_template(sam.TEMPLATE)["Globals"]["Function"]["Environment"]["Variables"]
    functions = {
        name: str(value["If"][1] if "If" in value else f"${{{value['Ref']}}}")
        for name, value in given.items()
        if name.startswith("TIDELOG_CONFIG_")
    }
    del functions["TIDELOG_CONFIG_LOG_DISKLESS_ENABLE"]  # false is the nodes' default
    nodes = dict(re.findall(r"Environment=(TIDELOG_CONFIG_\w+)=(\S+)", _user_data()))
    # Of clients, whom functions have none, and of machines and their logs.
    access = ("SSL_", "AUTHORIZER_", "SUPER_", "BOOTSTRAP_", "DELEGATION_TOKEN_")
    access += ("COST_MACHINE_", "METRICS_CLOUDWATCH_")
    of_clients = {name for name in nodes if name.removeprefix("TIDELOG_CONFIG_").startswith(access)}
    assert functions == {name: nodes[name] for name in nodes.keys() - of_clients}


def test_the_machines_get_the_tag_that_the_launcher_reads(launcher: ModuleType) -> None:
    import tidelog_instance

    zone = read_template(ROOT / "infra" / "zone.yaml")["Resources"]
    group, machine = zone["Instances"], zone["Instance"]
    tags = {tag["Key"]: tag for tag in group["Properties"]["Tags"]}
    tag = tags[tidelog_instance.INSTANCE_COUNT.removeprefix("tags/instance/")]
    assert tag["PropagateAtLaunch"] is True
    options = machine["Properties"]["LaunchTemplateData"]["MetadataOptions"]
    assert options["InstanceMetadataTags"] == "enabled"
    # A change of their number must not replace them all.
    assert "InstancesPerZone" not in _user_data()


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """With a Python that is there, and no variables of CloudFormation."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not on this machine")
    (unit,) = re.findall(r"<<'UNIT'\n(.*?)^\s*UNIT$", _user_data(), re.DOTALL | re.MULTILINE)
    text = re.sub(r"\$\{\w[\w:]*\}", "1", unit).replace("/usr/bin/python1", sys.executable)
    path = tmp_path / "tidelog@.service"
    for written, problem in ((text, ""), (text.replace("WatchdogSec", "WatchDogSec"), "WatchDog")):
        path.write_text(written)
        command = [analyze, "verify", "--man=no", "--recursive-errors=no", path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert problem in done.stderr
        assert bool(problem) == bool(done.stderr), done.stderr


def test_a_node_that_hangs_is_started_again_and_one_that_recovers_is_not(
    launcher: ModuleType,
) -> None:
    unit = dict(re.findall(r"^\s*(\w+)=(\S+)$", _user_data(), re.MULTILINE))
    assert unit["Type"] == "notify"
    assert unit["TimeoutStartSec"] == "infinity"  # a long recovery is no failure
    assert unit["Restart"] == "on-failure"  # of which the watchdog is one
    between = launcher.CHECK_SECONDS + seconds_max_of_questions()
    assert int(unit["WatchdogSec"]) > 5 * between


def seconds_max_of_questions() -> float:
    """Return how long the launcher may wait for the node's answer and for the instance's."""
    import tidelog_health
    import tidelog_instance

    return tidelog_health.PROBE_SECONDS_MAX + tidelog_instance.METADATA_SECONDS_MAX


def test_a_stack_is_created_when_every_machine_has_signalled() -> None:
    stacks = nested_stacks({**NODES, "InstancesPerZone": "3"})
    for zone in ("Zone1", "Zone2", "Zone3"):
        group = stacks[f"Nodes/{zone}"].resources["Instances"]
        assert group["CreationPolicy"]["ResourceSignal"]["Count"] == 3
    policies = stacks["Nodes"].properties("NodeRole")["Policies"]
    allowed = [
        one for one in policies[0]["PolicyDocument"]["Statement"] if one["Sid"] == "NodesServe"
    ]
    assert allowed[0]["Action"] == [
        "cloudformation:DescribeStacks",
        "cloudformation:SignalResource",
    ]


def test_a_deployment_does_not_change_the_machines_image_by_itself() -> None:
    declared = read_template(sam.TEMPLATE)["Parameters"]["ImageId"]
    assert declared["Default"] == ""
    assert re.fullmatch(declared["AllowedPattern"], "ami-0123456789abcdef0")
    assert not re.fullmatch(declared["AllowedPattern"], "/aws/service/ami-amazon-linux-latest/x")
    for path in template_paths():
        for parameter in read_template(path)["Parameters"].values():
            assert not parameter["Type"].startswith("AWS::SSM::"), path
        assert "resolve:ssm" not in path.read_text()


def test_the_machines_script_is_valid_bash(tmp_path: Path) -> None:
    script = tmp_path / "user-data.sh"
    rendered = re.sub(r"\$\{(\w[\w:]*)\}", "value", _user_data())
    script.write_text(rendered.replace("${!", "${"))
    subprocess.run(["bash", "-n", script], check=True)
