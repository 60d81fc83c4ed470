"""What keeps data from being read, changed or removed by the wrong hands: the templates' options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.aws.rendering import Rendered
from tests.aws.stacks import KEY, NODES, SETTINGS, nested_stacks
from tests.aws.templates import read_template
from tools import sam

KEYS = {name: f"{KEY}-{name}" for name in ("TableKey", "BucketKey", "LogKey", "QueueKey")}
EVERYTHING = {**SETTINGS["everything"], **KEYS}
FUNCTIONS = (
    "RetentionFunction",
    "ScrubFunction",
    "JobsFunction",
    "AdminFunction",
    "AdminJobsFunction",
    "SchemasFunction",
)


def typed(stacks: Mapping[str, Rendered], kind: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield name and properties of the resources of the type, in all stacks."""
    for stack in stacks.values():
        for name, one in stack.resources.items():
            if one["Type"] == kind:
                yield name, one.get("Properties", {})


def grants(stacks: Mapping[str, Rendered], role: str, key: str) -> set[str]:
    """Return what the role may do with the key."""
    properties = dict(typed(stacks, "AWS::IAM::Role"))[role]
    found: set[str] = set()
    for policy in properties["Policies"]:
        for statement in policy["PolicyDocument"]["Statement"]:
            if statement["Effect"] == "Allow" and key in str(statement["Resource"]):
                actions = statement["Action"]
                found |= {actions} if isinstance(actions, str) else set(actions)
    return found


def test_the_metadata_table_is_not_deleted_by_mistake() -> None:
    table = nested_stacks({})["Data"].properties("MetadataTable")
    assert table["DeletionProtectionEnabled"] is True
    table = nested_stacks({"DeletionProtection": "no"})["Data"].properties("MetadataTable")
    assert table["DeletionProtectionEnabled"] is False
    for name in ("MetadataTable", "SegmentBucket"):
        resource = read_template(sam.INFRA / "data.yaml")["Resources"][name]
        assert (resource["DeletionPolicy"], resource["UpdateReplacePolicy"]) == ("Retain",) * 2


def test_versions_and_locks_come_only_by_their_parameters() -> None:
    bucket = nested_stacks({})["Data"].properties("SegmentBucket")
    assert not {"VersioningConfiguration", "ObjectLockEnabled", "LoggingConfiguration"} & set(
        bucket
    )
    given = {"BucketVersioning": "yes", "OldVersionDays": "3", "AccessLogBucket": "logs"}
    bucket = nested_stacks(given)["Data"].properties("SegmentBucket")
    assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
    assert bucket["LoggingConfiguration"]["DestinationBucketName"] == "logs"
    rules = {rule["Id"]: rule for rule in bucket["LifecycleConfiguration"]["Rules"]}
    assert rules["ExpireOldVersions"]["NoncurrentVersionExpiration"]["NoncurrentDays"] == 3


def test_a_lock_keeps_versions_and_no_role_may_bypass_it() -> None:
    stacks = nested_stacks({**EVERYTHING, "ObjectLockDays": "30"})
    bucket = stacks["Data"].properties("SegmentBucket")
    assert bucket["ObjectLockEnabled"] is True
    assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
    rule = bucket["ObjectLockConfiguration"]["Rule"]["DefaultRetention"]
    assert rule == {"Mode": "GOVERNANCE", "Days": 30}
    for _, role in typed(stacks, "AWS::IAM::Role"):
        assert "Bypass" not in str(role)
        assert "s3:DeleteObjectVersion" not in str(role)


def test_each_key_encrypts_what_it_is_named_for() -> None:
    stacks = nested_stacks(EVERYTHING)
    tables = list(typed(stacks, "AWS::DynamoDB::Table"))
    assert len(tables) == 2
    assert {t["SSESpecification"]["KMSMasterKeyId"] for _, t in tables} == {KEYS["TableKey"]}
    bucket = stacks["Data"].properties("SegmentBucket")
    (rule,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule["ServerSideEncryptionByDefault"]["KMSMasterKeyID"] == KEYS["BucketKey"]
    logs = list(typed(stacks, "AWS::Logs::LogGroup"))
    assert len(logs) == 10
    assert {log["KmsKeyId"] for _, log in logs} == {KEYS["LogKey"]}
    queue, topic = (stacks[""].properties(name) for name in ("DeadLetters", "Alarms"))
    assert queue["KmsMasterKeyId"] == topic["KmsMasterKeyId"] == KEYS["QueueKey"]
    assert "SqsManagedSseEnabled" not in queue


def test_without_keys_everything_is_encrypted_by_keys_of_aws() -> None:
    stacks = nested_stacks({**NODES, "JobArtefacts": "bundles/jobs"})
    assert all(
        t["SSESpecification"]["SSEEnabled"] for _, t in typed(stacks, "AWS::DynamoDB::Table")
    )
    assert stacks[""].properties("DeadLetters")["SqsManagedSseEnabled"] is True
    assert "kms:" not in str([role for _, role in typed(stacks, "AWS::IAM::Role")])


READ, WRITE = {"kms:Decrypt"}, {"kms:Decrypt", "kms:GenerateDataKey"}


@pytest.mark.parametrize(
    ("role", "bucket", "queue"),
    [
        ("NodeRole", WRITE, set()),
        ("JobRole", WRITE, set()),
        ("RetentionRole", WRITE, WRITE),
        ("ScrubRole", READ, WRITE),
        ("AdminRole", READ, set()),
        ("AdminJobsRole", WRITE, WRITE),
        ("SchemasRole", WRITE, set()),
        ("JobsRole", set(), WRITE),
    ],
)
def test_roles_may_use_the_keys_of_what_they_use(
    role: str, bucket: set[str], queue: set[str]
) -> None:
    stacks = nested_stacks(EVERYTHING)
    assert grants(stacks, role, KEYS["BucketKey"]) == bucket
    assert grants(stacks, role, KEYS["QueueKey"]) == queue
    assert grants(stacks, role, KEYS["TableKey"]) >= WRITE
    assert grants(stacks, role, KEYS["LogKey"]) == set()


def test_functions_have_concurrency_of_their_own_if_it_is_asked_for() -> None:
    root = nested_stacks({**EVERYTHING, "ReservedConcurrency": "yes"})[""]
    reserved = [root.properties(name)["ReservedConcurrentExecutions"] for name in FUNCTIONS]
    assert min(reserved) >= 2  # one that hangs does not stop the next
    assert sum(reserved) == 27
    root = nested_stacks({**EVERYTHING, "ReservedConcurrency": "no"})[""]
    assert all("ReservedConcurrentExecutions" not in root.properties(name) for name in FUNCTIONS)
