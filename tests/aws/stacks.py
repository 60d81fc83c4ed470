"""The stack and the stacks within it, each with the parameters that it gets from the one above."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.aws.rendering import Rendered, render
from tools import sam

NODES = {
    "InstancesPerZone": "1",
    "NodeBundle": "bundles/tidelog-node.tar.gz",
    "ImageId": "ami-0123456789abcdef0",
    "NodeCertificate": "arn:aws:secretsmanager:us-east-1:000000000000:secret:tidelog-node",
}
DISKLESS = {
    "NodeHosting": "Diskless",
    "NodesMin": "3",
    "NodeBundle": "bundles/tidelog-node.tar.gz",
    "InstanceType": "m6i.large",
    "ImageId": "ami-0123456789abcdef0",
    "NodeCertificate": NODES["NodeCertificate"],
}
FARGATE = {
    "NodeHosting": "Fargate",
    "NodeImage": "000000000000.dkr.ecr.us-east-1.amazonaws.com/tidelog:1",
    "NodeCertificate": NODES["NodeCertificate"],
}
OWN_VPC = {
    "VpcId": "vpc-0123456789abcdef0",
    "SubnetIds": "subnet-0000000a,subnet-0000000b,subnet-0000000c",
    "ClientCidr": "10.0.0.0/8",
}
TABLES = {
    "LakeImage": "000000000000.dkr.ecr.us-east-1.amazonaws.com/tidelog-tables:1",
    "LakeTopics": "orders,clicks",
    "LakeCatalog": "type=glue,warehouse=s3://lake/tables",
    "LakeWarehouse": "lake/tables",
}
KEY = "arn:aws:kms:us-east-1:000000000000:key/11111111-2222-3333-4444-555555555555"
# Parameters of the root stack by what is deployed with them.
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "stores and functions": {},
    "nodes": NODES,
    "nodes in a given VPC": {**NODES, **OWN_VPC},
    "diskless": DISKLESS,
    "diskless, open, spot, in a given VPC": {
        **DISKLESS,
        **OWN_VPC,
        "ClientAccess": "open",
        "SpotPercent": "100",
        "VpcEndpoints": "yes",
    },
    "Fargate": FARGATE,
    "Fargate, both, spot": {**FARGATE, "ClientAccess": "both", "SpotPercent": "100"},
    "tables of a given catalog and network": {
        **TABLES,
        "LakeCatalog": "type=rest,uri=https://catalog:8181,warehouse=lake",
        "LakeCatalogSecret": "arn:aws:secretsmanager:us-east-1:000000000000:secret:catalog",
        "LakeOptions": "--value-format=registry,--apply-erasures",
        "LakeVpcId": OWN_VPC["VpcId"],
        "LakeSubnetIds": "subnet-0000000a,subnet-0000000b",
        "LakePublicIp": "yes",
    },
    "everything": {
        **NODES,
        **TABLES,
        "ClientAccess": "both",
        "TopicKeys": KEY,
        "AlarmEmail": "me@example.org",
        "JobArtefacts": "bundles/jobs",
        **dict.fromkeys(("TableKey", "BucketKey", "LogKey", "QueueKey", "LakeWarehouseKey"), KEY),
        "ObjectLockDays": "30",
        "AccessLogBucket": "logs",
        "ReservedConcurrency": "yes",
        "SessionAccess": "yes",
        "PrivateLinkHost": "kafka.example.org",
        "PrivateLinkPrincipals": "arn:aws:iam::111111111111:root",
    },
}


def nested_stacks(parameters: Mapping[str, str]) -> dict[str, Rendered]:
    """Return each stack by its path of names; the root's is empty."""
    return dict(_stacks("", sam.TEMPLATE, parameters))


def _stacks(name: str, path: Path, parameters: Mapping[str, str]) -> list[tuple[str, Rendered]]:
    stack = render(path, parameters)
    found = [(name, stack)]
    for resource, one in stack.resources.items():
        if one["Type"] != "AWS::CloudFormation::Stack":
            continue
        properties = one["Properties"]
        inner = (path.parent / properties["TemplateURL"]).resolve()
        given = {key: str(value) for key, value in properties.get("Parameters", {}).items()}
        found += _stacks(f"{name}/{resource}".removeprefix("/"), inner, given)
    return found
