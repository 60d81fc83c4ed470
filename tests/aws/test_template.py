"""The AWS templates, and the functions that are built from them."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml
from tidelog_core.metadata.admin_jobs import admin_job_key
from tidelog_core.metadata.schema_records import (
    EVERYTHING,
    schema_context_key,
    schema_identity_key,
    schema_journal_key,
    schema_settings_key,
    schema_subject_key,
    schema_text_key,
)
from tidelog_core.metadata.security.acls import acl_key
from tidelog_core.metadata.security.delegation_tokens import delegation_token_key
from tidelog_core.metadata.security.roles import role_key
from tidelog_core.metadata.security.scram_users import decoy_secret_key, scram_credential_key
from tidelog_core.metadata.stores.dynamodb_items import key_of
from tidelog_core.security.scram_credentials import ScramMechanism
from tidelog_core.setting_values.authorizer import parse_super_users
from tidelog_core.tier.keys import (
    SchemaObject,
    cluster_manifest_key,
    deletion_key,
    log_start_key,
    schema_key,
)
from tidelog_functions.admin.caller import principal_of

from tests.aws.lambda_runtime import BuiltFunction
from tests.aws.templates import read_template, resources
from tools import lambda_python, sam
from tools.places import ROOT, ToolAbsent

FUNCTIONS = ("admin", "admin_jobs", "jobs", "retention", "schemas", "scrub")
RECORDS_OF_THE_REGISTRY = [
    key_of(one)["pk"]["S"]
    for one in (
        schema_context_key("."),
        schema_identity_key(".x", "guid"),
        schema_journal_key(),
        schema_settings_key(EVERYTHING),
        schema_subject_key("a"),
        schema_text_key(".x", 1),
    )
]
JOB_ENVIRONMENT = {
    "AWS_DEFAULT_REGION": "us-east-1",
    "TIDELOG_JOB_APPLICATION": "app",
    "TIDELOG_JOB_ROLE": "arn:aws:iam::000000000000:role/job",
    "TIDELOG_JOB_ENTRY_POINT": "s3://artefacts/compact.py",
    "TIDELOG_JOB_LOG_GROUP": "/tidelog/jobs",
}
SCHEDULED = {"source": "aws.events", "detail-type": "Scheduled Event", "detail": {}}


def statements(role: str) -> list[dict[str, Any]]:
    """Return what the role's policies say, and what they say if a condition is met."""
    found = dict(resources("AWS::IAM::Role"))[role]["Properties"]
    assert "ManagedPolicyArns" not in found
    return [
        statement["Fn::If"][1] if "Fn::If" in statement else statement
        for policy in found["Policies"]
        for statement in policy["PolicyDocument"]["Statement"]
    ]


def actions(role: str, service: str) -> set[str]:
    """Return the actions of a service that the role is allowed."""
    allowed = (one for one in statements(role) if one["Effect"] == "Allow")
    return {
        action
        for statement in allowed
        for action in listed(statement["Action"])
        if action.startswith(f"{service}:")
    }


def listed(given: str | list[str]) -> list[str]:
    """Return what a statement names, one or several, as a list."""
    return [given] if isinstance(given, str) else given


@pytest.mark.slow  # `make template` says it too
def test_every_template_is_valid() -> None:
    try:
        sam.validate()
    except ToolAbsent as absent:
        pytest.skip(str(absent))


def test_every_parameter_and_output_of_the_stack_says_what_it_is() -> None:
    """The console of CloudFormation and ``sam deploy`` show nothing else of them."""
    template = read_template(sam.TEMPLATE)
    for section in ("Parameters", "Outputs"):
        silent = [name for name, told in template[section].items() if not told.get("Description")]
        assert silent == []


def test_the_built_version_of_python_is_the_deployed_one() -> None:
    assert read_template(sam.TEMPLATE)["Parameters"]["PythonVersion"]["Default"] == (
        sam.PYTHON_VERSION
    )
    assert lambda_python.MINOR == sam.PYTHON_VERSION


def test_every_parameter_of_a_deployment_is_in_the_docs() -> None:
    page = (ROOT / "docs" / "deploy.md").read_text()
    declared = read_template(sam.TEMPLATE)["Parameters"]
    assert [name for name in declared if f"`{name}" not in page] == []


@pytest.mark.slow
def test_the_layer_is_built_for_lambdas_machines(built_template: Path) -> None:
    tags = [
        line.removeprefix("Tag: ")
        for path in built_template.parent.glob("CoreLayer/python/*.dist-info/WHEEL")
        for line in path.read_text().splitlines()
        if line.startswith("Tag: ")
    ]
    python = "cp" + lambda_python.closest().minor.replace(".", "")
    assert any(tag.startswith(f"{python}-{python}-manylinux") for tag in tags)
    assert all(re.search(r"-(any|manylinux\w*_x86_64)$", tag) for tag in tags), tags


@pytest.mark.slow  # `sam build` takes half a minute, and minutes where the machine is busy.
@pytest.mark.timeout(900)
def test_no_built_template_has_aliases_for_cloudformation_takes_none(built_template: Path) -> None:
    built = sorted(built_template.parent.rglob("template.yaml"))
    assert len(built) == len([sam.TEMPLATE, *sam.INFRA.glob("*.yaml")]) + 4  # zones are three
    for path in built:
        events = yaml.parse(path.read_text())
        assert not [event for event in events if isinstance(event, yaml.AliasEvent)], path


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_layer_holds_the_versions_that_are_tested(built_template: Path) -> None:
    constraints = (ROOT / "constraints.txt").read_text().lower().replace("_", "-").split()
    layer = built_template.parent / "CoreLayer" / "python"
    installed = {
        "{}=={}".format(*path.name.removesuffix(".dist-info").lower().split("-", 1))
        for path in layer.glob("*.dist-info")
    }
    assert {line.replace("_", "-") for line in installed} <= set(constraints)
    assert len(installed) > 5


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_function_and_layer_fit_into_lambda(built_template: Path) -> None:
    """Source: Lambda quotas, deployment package with layers unzipped, 250 MB."""
    files = [path for path in built_template.parent.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 250_000_000


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_lines_of_a_functions_log_have_their_fields(built_template: Path, tmp_path: Path) -> None:
    """As the template has Lambda write them; the runtime client hears of it by variables."""
    logging = read_template(sam.TEMPLATE)["Globals"]["Function"]["LoggingConfig"]
    log = tmp_path / "log"
    environment = {
        "AWS_LAMBDA_LOG_FORMAT": logging["LogFormat"],
        "AWS_LAMBDA_LOG_LEVEL": logging["ApplicationLogLevel"],
        "TIDELOG_METADATA": f"sqlite://{tmp_path}/metadata.db",
        "TIDELOG_OBJECTS": "s3://bucket/prefix",
        "AWS_REGION": "eu-central-1",
    }
    created = {
        "source": "aws.s3",
        "detail-type": "Object Created",
        "detail": {"bucket": {"name": "bucket"}, "object": {"key": "prefix/a-strangers.txt"}},
    }
    function = BuiltFunction(
        built_template.parent, "RetentionFunction", handler_of("retention"), environment, log=log
    )
    with function:
        function.invoke(created)
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    (ignored,) = [line for line in lines if line["message"] == "event of a foreign object ignored"]
    assert (ignored["level"], ignored["key"]) == ("INFO", "prefix/a-strangers.txt")


def resource_of(name: str) -> str:
    """Return the resource of the function whose handler is in the package of that name."""
    return f"{name.title().replace('_', '')}Function"


def handler_of(name: str) -> str:
    """Return the handler that the template gives the function."""
    functions = dict(resources("AWS::Serverless::Function"))
    handler = functions[resource_of(name)]["Properties"]["Handler"]
    assert handler == f"tidelog_functions.{name}.handler.handle"
    return str(handler)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_keeps_its_log_for_a_limited_time(name: str) -> None:
    function = dict(resources("AWS::Serverless::Function"))[resource_of(name)]
    log = function["Properties"]["LoggingConfig"]["LogGroup"]["Ref"]
    assert dict(resources("AWS::Logs::LogGroup"))[log]["Properties"]["RetentionInDays"]


def test_every_log_group_has_a_retention() -> None:
    groups = dict(resources("AWS::Logs::LogGroup"))
    assert groups
    assert all("RetentionInDays" in group["Properties"] for group in groups.values())


@pytest.mark.parametrize("name", ["admin_jobs", "jobs", "retention", "scrub"])
def test_what_an_event_driven_function_cannot_do_goes_to_the_dead_letters(name: str) -> None:
    function = dict(resources("AWS::Serverless::Function"))[resource_of(name)]
    properties = function["Properties"]
    queue = {"GetAtt": "DeadLetters.Arn"}
    assert properties["EventInvokeConfig"]["DestinationConfig"]["OnFailure"]["Destination"] == queue
    assert properties["Events"]
    for event in properties["Events"].values():
        assert event["Properties"]["DeadLetterConfig"]["Arn"] == queue


@pytest.mark.parametrize(
    ("role", "alone"),
    [("RetentionRole", "s3:PutObject"), ("ScrubRole", "s3:GetLifecycleConfiguration")],
)
def test_retention_and_scrub_delete_below_the_prefix_only(role: str, alone: str) -> None:
    assert actions(role, "s3") == {
        "s3:ListBucket", "s3:GetObject", "s3:DeleteObject", alone,
    }  # fmt: skip
    for statement in statements(role):
        if "s3:DeleteObject" in statement["Action"]:
            assert statement["Resource"] == {"Sub": "${Data.Outputs.BucketArn}/${Prefix}/*"}


def test_retention_writes_only_what_tells_of_deletions_and_the_scrub_nothing() -> None:
    assert "s3:PutObject" not in actions("ScrubRole", "s3")
    (statement,) = [s for s in statements("RetentionRole") if "s3:PutObject" in s["Action"]]
    assert statement["Action"] == "s3:PutObject"
    (start, deletion) = [
        resource["Sub"].replace("${Data.Outputs.BucketArn}/${Prefix}/*", "x")
        for resource in statement["Resource"]
    ]
    assert (start, deletion) == ("x/log-start-*.json", "x.deleted.json")
    topic_id = UUID(int=7)
    assert fnmatchcase(log_start_key("c", "t", topic_id, 3, 42), start.replace("x", "*"))
    assert fnmatchcase(deletion_key("c", "t", topic_id), deletion.replace("x", "*"))


def test_whoever_starts_jobs_may_start_them_and_write_that_and_nothing_else() -> None:
    from tidelog_core.metadata.records import JOB_START_COLLECTION

    assert actions("JobsRole", "s3") == set()
    assert actions("JobsRole", "emr-serverless") == {
        "emr-serverless:ListJobRuns", "emr-serverless:StartJobRun",
    }  # fmt: skip
    assert "dynamodb:DeleteItem" not in actions("JobsRole", "dynamodb")
    for statement in statements("JobsRole"):
        if "dynamodb:PutItem" in statement["Action"]:
            keys = statement["Condition"]["ForAllValues:StringEquals"]["dynamodb:LeadingKeys"]
            assert keys == [JOB_START_COLLECTION]
        if statement["Action"] == "iam:PassRole":
            service = statement["Condition"]["StringEquals"]["iam:PassedToService"]
            assert service == "emr-serverless.amazonaws.com"


def test_a_job_writes_below_the_prefix_only_and_is_the_applications() -> None:
    role = dict(resources("AWS::IAM::Role"))["JobRole"]["Properties"]
    (trust,) = role["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Condition"]["ArnLike"]["aws:SourceArn"] == {"GetAtt": "Application.Arn"}
    for statement in statements("JobRole"):
        if "s3:PutObject" in statement["Action"]:
            assert statement["Resource"] == {"Sub": "${BucketArn}/${Prefix}/*"}


def test_a_claim_on_starting_a_job_outlasts_the_invocation() -> None:
    from tidelog_functions.jobs.job_starts import GRACE_MS

    function = dict(resources("AWS::Serverless::Function"))["JobsFunction"]
    assert function["Properties"]["Timeout"] * 1000 < GRACE_MS


def test_a_run_of_a_job_writes_what_erasing_writes_and_nothing_else() -> None:
    """What an erasure writes is compared with these patterns in ``test_admin_jobs``."""
    assert actions("AdminJobsRole", "s3") == {
        "s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:ListBucket",
        "s3:PutObject",
    }  # fmt: skip
    for statement in statements("AdminJobsRole"):
        if "s3:PutObject" in statement["Action"]:
            assert statement["Resource"] == {"Sub": "${Data.Outputs.BucketArn}/${Prefix}/*"}
    assert not any("partition:" in pattern or "topic" in pattern for pattern in job_patterns())
    assert actions("AdminRole", "lambda") == {"lambda:InvokeFunction"}
    ((name, policy),) = resources("AWS::IAM::Policy")
    (itself,) = policy["Properties"]["PolicyDocument"]["Statement"]
    assert (name, policy["Properties"]["Roles"]) == (
        "AdminJobsContinuation", [{"Ref": "AdminJobsRole"}]
    )  # fmt: skip
    assert (itself["Action"], itself["Resource"]) == (
        "lambda:InvokeFunction", {"GetAtt": "AdminJobsFunction.Arn"}
    )  # fmt: skip


def job_patterns() -> list[str]:
    """Return the patterns of the collections that a run of a job may write."""
    (written,) = [s for s in statements("AdminJobsRole") if "dynamodb:PutItem" in s["Action"]]
    keys: list[str] = written["Condition"]["ForAllValues:StringLike"]["dynamodb:LeadingKeys"]
    return keys


def test_a_step_of_a_job_has_time_to_end_and_no_run_outlives_its_invocation() -> None:
    from tidelog_functions.admin_jobs.run import BACK_OFF_MS, STEP_MS_MAX

    properties = dict(resources("AWS::Serverless::Function"))["AdminJobsFunction"]["Properties"]
    assert properties["Timeout"] * 1000 >= 3 * STEP_MS_MAX
    assert BACK_OFF_MS < 60_000  # Lambda's retry of a failed event comes then.
    assert properties["RecursiveLoop"] == "Allow"
    environment = dict(resources("AWS::Serverless::Function"))["AdminFunction"]["Properties"]
    assert environment["Environment"]["Variables"]["TIDELOG_ADMIN_JOBS_FUNCTION"] == {
        "Ref": "AdminJobsFunction"
    }


def test_admin_cannot_write_to_the_bucket() -> None:
    assert actions("AdminRole", "s3") <= {"s3:GetObject", "s3:ListBucket"}


def test_nodes_alone_can_read_and_write_the_keys_of_users_and_acls() -> None:
    """Whether ``dynamodb:LeadingKeys`` are those of users' keys and ACLs. A scan has none, so none may."""
    user = scram_credential_key("alice", ScramMechanism.SCRAM_SHA_256)
    token = delegation_token_key("an-id")
    keys = [key_of(key)["pk"]["S"] for key in (user, decoy_secret_key(), token)]
    rights = [key_of(key)["pk"]["S"] for key in (acl_key("0"), role_key("r"))]
    job = key_of(admin_job_key(UUID(int=1)))["pk"]["S"]  # has the key of an erasure until its end
    for name, _ in resources("AWS::IAM::Role"):
        granted = statements(name)
        allowed = [one for one in granted if one["Effect"] == "Allow"]
        actions_of = [action for one in allowed for action in listed(one["Action"])]
        assert not {"dynamodb:Scan", "dynamodb:PartiQLSelect"} & set(actions_of), name
        if name == "NodeRole" or not any(a.startswith("dynamodb:") for a in actions_of):
            continue
        refused = [one for one in granted if one["Effect"] == "Deny"]
        # A run of tables may also not write segments.
        assert all(one["Sid"] == "NoSegments" for one in refused if "s3:PutObject" in one["Action"])
        denied, *more = [one for one in refused if "s3:PutObject" not in one["Action"]]
        assert denied["Action"] == "dynamodb:*"
        reads_rights = name in ("AdminRole", "SchemasRole")
        assert_denied(denied, keys if reads_rights else keys + rights)
        if name not in ("AdminRole", "AdminJobsRole"):
            assert_denied(denied, [job])
        for one in more:  # The admin API reads the rights of its callers.
            assert name == "AdminRole"
            writes = {"dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem"}
            assert set(one["Action"]) == writes
            assert {a for a in actions_of if a.startswith("dynamodb:")} - writes == {
                "dynamodb:BatchGetItem", "dynamodb:GetItem", "dynamodb:Query",
                "dynamodb:ConditionCheckItem",
            }  # fmt: skip
            assert_denied(one, rights)
        assert bool(more) == (name == "AdminRole")


def test_the_registry_writes_its_own_items_and_its_journal_and_nothing_else() -> None:
    names = [key for key in RECORDS_OF_THE_REGISTRY if not key.startswith("schema-")]
    assert names == []
    writes = {"dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem"}
    for one in statements("SchemasRole"):
        if one["Effect"] == "Deny":
            continue
        if writes & set(listed(one["Action"])):
            assert set(one["Action"]) == writes
            condition = one["Condition"]["ForAllValues:StringLike"]
            assert condition == {"dynamodb:LeadingKeys": ["schema-*"]}
        if "s3:PutObject" in one["Action"]:
            pattern = one["Resource"]["Sub"].replace("${Data.Outputs.BucketArn}/${Prefix}/", "")
            keys = [schema_key("c", 7, kind) for kind in SchemaObject]
            known = keys if "s3:DeleteObject" in one["Action"] else [cluster_manifest_key("c")]
            assert all(fnmatchcase(key, pattern) for key in known)
            assert not fnmatchcase("c/t-1/0/1.log", pattern)
    assert actions("SchemasRole", "s3") == {
        "s3:DeleteObject", "s3:GetObject", "s3:ListBucket", "s3:PutObject",
    }  # fmt: skip


def assert_denied(statement: dict[str, Any], collections: list[str]) -> None:
    patterns = statement["Condition"]["ForAnyValue:StringLike"]["dynamodb:LeadingKeys"]
    for collection in collections:
        assert any(fnmatchcase(collection, pattern) for pattern in patterns), collection


def test_nodes_alone_can_read_their_keys_and_the_first_password_and_nothing_else() -> None:
    for role, _ in resources("AWS::IAM::Role"):
        reads = role in ("NodeRole", "TableStartRole")  # the latter the secret of a catalog
        expected = {"secretsmanager:GetSecretValue"} if reads else set()
        assert actions(role, "secretsmanager") == expected, role
    (statement,) = [one for one in statements("NodeRole") if "secretsm" in str(one["Action"])]
    assert statement["Resource"] == [
        {"Ref": "NodeCertificate"},
        {"GetAtt": "AdminSecret.Id"},
        {"GetAtt": "TokenSecret.Id"},
    ]


def test_nodes_ask_clients_to_log_in_unless_somebody_says_otherwise() -> None:
    parameters = read_template(sam.TEMPLATE)["Parameters"]
    assert parameters["ClientAccess"]["Default"] == "secure"
    nodes = read_template(sam.INFRA / "nodes.yaml")["Resources"]
    for name in ("AdminSecret", "TokenSecret"):
        secret = nodes[name]["Properties"]["GenerateSecretString"]
        assert secret["PasswordLength"] >= 32
    for zone in ("Zone1", "Zone2", "Zone3"):
        given = nodes[zone]["Properties"]["Parameters"]
        assert given["Authorizer"] == {"If": ["HasSecure", "tidelog.acl", ""]}
        assert given["AuthorizerDryRun"] == {"If": ["HasBoth", "true", "false"]}
    network = read_template(sam.INFRA / "network.yaml")["Resources"]["NodeSecurityGroup"]
    opened, secured, _, between = network["Properties"]["SecurityGroupIngress"]
    assert (opened["Fn::If"][0], secured["Fn::If"][0]) == ("HasOpen", "HasSecure")
    assert between["Description"] == "Between nodes"


def test_the_admin_api_is_closed_and_its_first_administrator_may_call_it_and_nothing_else() -> None:
    template = read_template(sam.TEMPLATE)
    assert template["Parameters"]["AdminAuthorizer"]["Default"] == "tidelog.acl"
    routes = [one["Properties"] for _, one in resources("AWS::ApiGatewayV2::Route")]
    assert [one["AuthorizationType"] for one in routes] == ["AWS_IAM"] * 2
    assert {one["RouteKey"] for one in routes} == {"$default", "ANY /schema-registry/{proxy+}"}
    for name in ("AdminFunction", "SchemasFunction"):
        variables = template["Resources"][name]["Properties"]["Environment"]["Variables"]
        assert variables["TIDELOG_CONFIG_AUTHORIZER_CLASS_NAME"] == {"Ref": "AdminAuthorizer"}
        assert variables["TIDELOG_CONFIG_SUPER_USERS"] == {
            "Sub": "User:${AdminOperatorRole.Arn};${AdminSuperUsers}"
        }
    (statement,) = statements("AdminOperatorRole")
    assert statement["Action"] == "execute-api:Invoke"
    assert statement["Resource"]["Sub"].endswith(":${AdminApi}/*")


def test_a_caller_that_took_the_administrators_role_is_a_super_user() -> None:
    arn = "arn:aws:iam::123456789012:role/tidelog-AdminOperatorRole-1"
    supers = parse_super_users(f"User:{arn};User:admin")
    session = "arn:aws:sts::123456789012:assumed-role/tidelog-AdminOperatorRole-1/alice"
    assert principal_of(session) in supers
    assert parse_super_users(f"User:{arn};") == {f"User:{arn}"}


def test_no_role_is_allowed_everything_of_anything() -> None:
    for role, _ in resources("AWS::IAM::Role"):
        for statement in statements(role):
            if statement["Effect"] == "Deny":
                continue
            actions_of = listed(statement["Action"])
            assert "*" not in str(actions_of), (role, statement)
            if statement["Resource"] == "*" and statement["Sid"] == "Sessions":
                # They know no resources, and concern the machine that asks.
                assert all(one.startswith(("ssm:Update", "ssmmessages:")) for one in actions_of)
            elif statement["Resource"] == "*" and statement["Sid"] == "ImageLogin":
                assert actions_of == ["ecr:GetAuthorizationToken"]  # It knows no resources.
            elif statement["Resource"] == "*":
                # PutMetricData knows no resources; a namespace stands in for one.
                assert statement["Action"] == "cloudwatch:PutMetricData"
                assert "cloudwatch:namespace" in statement["Condition"]["StringEquals"]


def test_the_bucket_is_private_encrypted_and_speaks_tls_only() -> None:
    ((_, bucket),) = resources("AWS::S3::Bucket")
    assert all(bucket["Properties"]["PublicAccessBlockConfiguration"].values())
    assert "BucketEncryption" in bucket["Properties"]
    assert bucket["DeletionPolicy"] == "Retain"
    ((_, policy),) = resources("AWS::S3::BucketPolicy")
    (statement,) = policy["Properties"]["PolicyDocument"]["Statement"]
    assert statement["Effect"] == "Deny"
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert statement["Action"] == "s3:*"


def test_whoever_reads_segments_may_decrypt_with_keys_of_topics() -> None:
    for role, _ in resources("AWS::IAM::Role"):
        reads = "s3:GetObject" in actions(role, "s3") and role != "SchemasRole"
        writes = role in ("NodeRole", "JobRole", "AdminJobsRole")
        by_topic = [one for one in statements(role) if "TopicKeys" in str(one["Resource"])]
        assert [one["Resource"] for one in by_topic] == (
            [{"Split": [",", {"Ref": "TopicKeys"}]}] * reads
        )
        granted = {action for one in by_topic for action in listed(one["Action"])}
        expected = ["kms:Decrypt"] * reads + ["kms:GenerateDataKey"] * writes
        assert granted == set(expected), role


def test_every_table_can_be_restored_to_a_point_in_time() -> None:
    tables = dict(resources("AWS::DynamoDB::Table"))
    assert tables["MetadataTable"]["DeletionPolicy"] == "Retain"
    for table in tables.values():
        recovery = table["Properties"]["PointInTimeRecoverySpecification"]
        assert recovery["PointInTimeRecoveryEnabled"] is True


def test_the_staging_rule_covers_the_object_stores_staging_keys() -> None:
    from tidelog_core.objects.key_rules import STAGING

    ((_, bucket),) = resources("AWS::S3::Bucket")
    rules = bucket["Properties"]["LifecycleConfiguration"]["Rules"]
    assert {"Sub": f"${{Prefix}}/{STAGING}/"} in [rule.get("Prefix") for rule in rules]


def test_the_metadata_table_has_the_keys_that_the_store_uses() -> None:
    from tidelog_core.metadata.stores.dynamodb_items import TABLE_DEFINITION

    table = dict(resources("AWS::DynamoDB::Table"))["MetadataTable"]["Properties"]
    assert TABLE_DEFINITION.items() <= table.items()
