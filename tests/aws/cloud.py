"""MiniStack's services, and stacks that its CloudFormation makes."""

from __future__ import annotations

import re
from typing import Any

import boto3

from tests.support.waiting import eventually
from tools import sam


def without_splits(template: str) -> str:
    """Return the template with conditions by Fn::Split made false: MiniStack does not know it there.

    They ask whether an image is a private one, and whether the catalog is Glue.
    """
    made, count = re.subn(r"(?m)^(  \w+): !Not .*!Split.*$", r'\1: !Equals ["no", "yes"]', template)
    assert count
    return made


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

    def outputs(self, name: str) -> dict[str, str]:
        """Return the outputs of a stack."""
        (found,) = self.client("cloudformation").describe_stacks(StackName=name)["Stacks"]
        return {one["OutputKey"]: one["OutputValue"] for one in found["Outputs"]}

    def upload(self, name: str, template: str) -> str:
        """Put a template where CloudFormation finds it; return its address."""
        s3 = self.client("s3")
        s3.create_bucket(Bucket="templates")
        s3.put_object(Bucket="templates", Key=name, Body=template.encode())
        return f"https://s3.amazonaws.com/templates/{name}"
