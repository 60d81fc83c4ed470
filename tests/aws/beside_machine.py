"""What a booted machine talks to, in its network namespace: ``python -m tests.aws.beside_machine FOLDER``.

It has the instance metadata service at its address, and MiniStack with the table of broker ids and a
stack that waits for a machine's signal. The first line that it writes is the stack's id; each line
that it reads is answered by the stack's status; it ends with its standard input.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import boto3

from tests.aws.instance_metadata import metadata_service
from tests.aws.templates import resources
from tools import ministack, sam

ADDRESS = "10.0.0.1"
METADATA_ADDRESS = "169.254.169.254"
PORT = 4566
TABLE = "ids"
VALUES = {
    "instance-id": "i-0123456789abcdef0",
    "local-ipv4": ADDRESS,
    "local-hostname": "machine",
    "placement/availability-zone": "us-east-1a",
    "tags/instance/tidelog-instances-per-zone": "1",
    "autoscaling/target-lifecycle-state": "InService",
}
STACK = {
    "Resources": {
        "Instances": {
            "Type": "AWS::CloudFormation::WaitCondition",
            "CreationPolicy": {"ResourceSignal": {"Count": 1, "Timeout": "PT30M"}},
        }
    }
}
KEYS = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": sam.REGION}


def main() -> None:
    """Serve until the standard input ends."""
    for name in (ADDRESS, METADATA_ADDRESS):
        subprocess.run(["ip", "address", "add", f"{name}/32", "dev", "lo"], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    metadata = metadata_service(VALUES, address=(METADATA_ADDRESS, 80))
    with ministack.serve(Path(sys.argv[1]), port=PORT) as endpoint:
        properties = dict(resources("AWS::DynamoDB::Table"))["BrokerIdTable"]["Properties"]
        taken = ("BillingMode", "AttributeDefinitions", "KeySchema")
        dynamodb = boto3.client("dynamodb", endpoint_url=endpoint, **KEYS)
        dynamodb.create_table(TableName=TABLE, **{name: properties[name] for name in taken})
        stacks = boto3.client("cloudformation", endpoint_url=endpoint, **KEYS)
        made = stacks.create_stack(
            StackName="zone", TemplateBody=json.dumps(STACK), DisableRollback=True
        )
        print(made["StackId"], flush=True)
        for _ in sys.stdin:
            (stack,) = stacks.describe_stacks(StackName="zone")["Stacks"]
            print(stack["StackStatus"], flush=True)
    metadata.shutdown()


if __name__ == "__main__":
    main()
