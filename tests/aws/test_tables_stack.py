"""The stack that keeps Iceberg tables up to date: filled in, made by MiniStack, and its command run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.aws.cloud import Cloud, without_splits
from tests.aws.stacks import SETTINGS, nested_stacks
from tests.aws.templates import read_template
from tests.support.command import called
from tools import sam

GIVEN = SETTINGS["tables of a given catalog and network"]
BESIDE_NODES = SETTINGS["everything"]


def tables(parameters: Mapping[str, str]) -> Any:
    return nested_stacks(parameters)["Tables"].resources


def granted(parameters: Mapping[str, str], role: str) -> dict[str, Any]:
    """Return the statements of the role's policies by their names."""
    policies = tables(parameters)[role]["Properties"]["Policies"]
    statements = [one for policy in policies for one in policy["PolicyDocument"]["Statement"]]
    return {one["Sid"]: one for one in statements}


def command(parameters: Mapping[str, str]) -> list[str]:
    [container] = tables(parameters)["TableRun"]["Properties"]["ContainerDefinitions"]
    assert container["EntryPoint"] == ["tidelog"]
    found: list[str] = container["Command"]
    return found


@pytest.mark.parametrize("setting", ["stores and functions", "nodes", "Fargate"])
def test_there_are_no_tables_unless_somebody_gives_an_image(setting: str) -> None:
    assert "Tables" not in nested_stacks(SETTINGS[setting])
    assert read_template(sam.TEMPLATE)["Parameters"]["LakeImage"]["Default"] == ""


def test_the_command_has_topics_catalog_and_options() -> None:
    assert command(BESIDE_NODES) == [
        "job", "iceberg", "orders", "clicks", "--namespace=tidelog", "--catalog=type=glue",
        "--catalog=warehouse=s3://lake/tables",
    ]  # fmt: skip
    assert command(GIVEN)[4:] == [
        "--namespace=tidelog", "--catalog=type=rest", "--catalog=uri=https://catalog:8181",
        "--catalog=warehouse=lake", "--value-format=registry", "--apply-erasures",
    ]  # fmt: skip


def test_a_credential_comes_from_its_secret_and_is_in_no_command_line() -> None:
    [container] = tables(GIVEN)["TableRun"]["Properties"]["ContainerDefinitions"]
    secret = GIVEN["LakeCatalogSecret"]
    assert container["Secrets"] == [
        {"Name": "PYICEBERG_CATALOG__TIDELOG__CREDENTIAL", "ValueFrom": secret}
    ]
    assert granted(GIVEN, "TableStartRole")["CatalogSecret"]["Resource"] == secret
    assert "CatalogSecret" not in granted(BESIDE_NODES, "TableStartRole")


def test_a_run_reads_the_cluster_and_writes_below_its_warehouse_alone() -> None:
    statements = granted(BESIDE_NODES, "TablesRole")
    allowed = {name: one for name, one in statements.items() if one["Effect"] == "Allow"}
    writes = [
        name
        for name, one in allowed.items()
        if any(word in str(one["Action"]) for word in ("Put", "Delete", "Update", "Create"))
    ]
    assert writes == ["WriteWarehouse", "Catalog"]
    assert allowed["WriteWarehouse"]["Resource"] == "arn:aws:s3:::lake/tables/*"
    assert allowed["ListWarehouse"]["Resource"] == "arn:aws:s3:::lake"
    assert [one.rpartition(":")[2] for one in allowed["Catalog"]["Resource"]] == [
        "catalog", "database/tidelog", "table/tidelog/*"
    ]  # fmt: skip
    assert "Catalog" not in granted(GIVEN, "TablesRole")


def test_a_run_may_not_write_among_the_segments_wherever_its_warehouse_is() -> None:
    denied = granted({**BESIDE_NODES, "Prefix": "logs/main"}, "TablesRole")["NoSegments"]
    assert (denied["Effect"], "Condition" in denied) == ("Deny", False)
    assert denied["Action"] == ["s3:DeleteObject", "s3:PutObject"]
    reads = granted({**BESIDE_NODES, "Prefix": "logs/main"}, "TablesRole")["ReadSegments"]
    assert denied["Resource"] == reads["Resource"]
    assert denied["Resource"].endswith("/logs/main/*")


def test_the_schedule_may_start_this_task_and_give_it_its_roles_alone() -> None:
    statements = granted(BESIDE_NODES, "TableScheduleRole")
    assert {name: one["Action"] for name, one in statements.items()} == {
        "StartRuns": "ecs:RunTask",
        "GiveRunsTheirRoles": "iam:PassRole",
        "DeadLetters": "sqs:SendMessage",
        "SendDeadLettersByTheirKey": ["kms:Decrypt", "kms:GenerateDataKey"],
    }
    assert statements["StartRuns"]["Resource"] == "TableRun"
    assert "ecs:cluster" in statements["StartRuns"]["Condition"]["ArnEquals"]
    service = statements["GiveRunsTheirRoles"]["Condition"]["StringEquals"]
    assert service == {"iam:PassedToService": "ecs-tasks.amazonaws.com"}


def test_runs_are_in_the_network_of_the_nodes_or_in_a_given_one() -> None:
    def network(parameters: Mapping[str, str]) -> Any:
        target = tables(parameters)["TableSchedule"]["Properties"]["Target"]
        return target["EcsParameters"]["NetworkConfiguration"]["AwsvpcConfiguration"]

    beside, given = network(BESIDE_NODES), network(GIVEN)
    assert (beside["Subnets"], beside["AssignPublicIp"]) == (
        ["Subnet1", "Subnet2", "Subnet3"], "DISABLED"
    )  # fmt: skip
    assert (given["Subnets"], given["AssignPublicIp"]) == (
        ["subnet-0000000a", "subnet-0000000b"], "ENABLED"
    )  # fmt: skip


def test_a_run_that_fails_or_does_not_start_becomes_a_dead_letter() -> None:
    rule = tables(BESIDE_NODES)["FailedTableRuns"]["Properties"]
    failed, absent = rule["EventPattern"]["detail"]["$or"]
    assert failed == {"containers": {"exitCode": [{"anything-but": 0}]}}
    assert absent == {"stopCode": ["TaskFailedToStart"]}
    assert [one["Arn"] for one in rule["Targets"]] == [
        tables(BESIDE_NODES)["TableSchedule"]["Properties"]["Target"]["DeadLetterConfig"]["Arn"]
    ]


def test_the_options_of_the_command_are_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image's program parses them, and ends where it looks for the stores."""
    monkeypatch.setenv("TIDELOG_METADATA_STORE", "sqlite:///none")
    monkeypatch.setenv("TIDELOG_OBJECT_STORE", "file:///none")
    for parameters in (BESIDE_NODES, GIVEN):
        assert "no metadata store at /none" in called(*command(parameters), status=1).errors


@pytest.mark.slow
@pytest.mark.usefixtures("aws_credentials")
def test_a_schedule_with_its_task_and_role(ministack_endpoint: str) -> None:
    template = without_splits((sam.INFRA / "tables.yaml").read_text())
    cloud = Cloud(ministack_endpoint)
    root = nested_stacks(GIVEN)[""].resources["Tables"]["Properties"]["Parameters"]
    sqs = cloud.client("sqs")
    queue = sqs.create_queue(QueueName="dead-letters")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]
    given = {key: str(value) for key, value in root.items()}
    given |= {"ClusterName": "lake", "DeadLettersArn": arn["QueueArn"]}
    cloud.create("tables", template, given)
    made = cloud.client("cloudformation").list_stack_resources(StackName="tables")
    ids = {
        one["LogicalResourceId"]: one["PhysicalResourceId"]
        for one in made["StackResourceSummaries"]
    }
    scheduler = cloud.client("scheduler")
    (listed,) = scheduler.list_schedules()["Schedules"]
    schedule = scheduler.get_schedule(Name=listed["Name"])
    assert schedule["ScheduleExpression"] == "rate(5 minutes)"
    assert schedule["Target"]["EcsParameters"]["TaskDefinitionArn"] == ids["TableRun"]
    assert schedule["Target"]["DeadLetterConfig"]["Arn"] == arn["QueueArn"]
    ecs = cloud.client("ecs")
    run = ecs.describe_task_definition(taskDefinition=ids["TableRun"])["taskDefinition"]
    assert (run["cpu"], run["memory"]) == ("1024", "2048")
    [container] = run["containerDefinitions"]
    assert container["command"] == command(GIVEN)
    policy = cloud.client("iam").get_role_policy(RoleName=ids["TablesRole"], PolicyName="tables")
    assert "arn:aws:s3:::lake/tables/*" in json.dumps(policy["PolicyDocument"])
    cloud.client("cloudformation").delete_stack(StackName="tables")
