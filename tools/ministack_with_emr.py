"""MiniStack with one more type of resource: a program for MiniStack's own environment.

It has no EMR Serverless. So its CloudFormation takes the type of an application as made, and its
functions call the service where ``AWS_ENDPOINT_URL_EMR_SERVERLESS`` says.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

TYPE = "AWS::EMRServerless::Application"
APPLICATION_ID = "app"
ARN = f"arn:aws:emr-serverless:us-east-1:000000000000:/applications/{APPLICATION_ID}"


def _create(_name: str, _properties: dict[str, Any], _stack: str) -> tuple[str, dict[str, str]]:
    return APPLICATION_ID, {"ApplicationId": APPLICATION_ID, "Arn": ARN}


def _delete(_id: str, _properties: dict[str, Any]) -> None:
    pass


if __name__ == "__main__":
    provisioners = import_module("ministack.services.cloudformation.provisioners")
    vars(provisioners)["_RESOURCE_HANDLERS"][TYPE] = {"create": _create, "delete": _delete}
    import_module("ministack.app").main()
