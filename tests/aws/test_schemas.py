"""The templates, filled in, against CloudFormation's own schemas of resource types.

cfn-lint brings the schemas of the registry along. It checks what is written out; here also what
parameters and conditions make of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from tests.aws.rendering import REGION
from tests.aws.stacks import SETTINGS, nested_stacks
from tests.support.aws_models import problems_of_request
from tools import sam
from tools.places import ToolAbsent

APPLICATION = "AWS::EMRServerless::Application"
JAVA_PATTERNS = {r"\\Z": "$", r"\\uD800\\uDBFF-\\uDC00\\uDFFF": ""}


@cache
def _ids() -> Mapping[str, str]:
    ids: Mapping[str, str] = json.loads((_folder() / "providers" / f"{REGION}.json").read_text())
    return ids


@cache
def _folder() -> Path:
    try:
        return sam.resource_schemas()
    except ToolAbsent as absent:
        pytest.skip(str(absent))


@cache
def _validator(kind: str) -> jsonschema_rs.Validator:
    text = (_folder() / "resources" / f"{_ids()[kind]}.json").read_text()
    for java, rust in JAVA_PATTERNS.items():
        text = text.replace(java, rust)
    return jsonschema_rs.Draft7Validator(json.loads(text))


@pytest.mark.parametrize("setting", SETTINGS)
def test_resources_are_as_cloudformation_has_them(setting: str) -> None:
    problems = []
    for name, stack in nested_stacks(SETTINGS[setting]).items():
        for resource, found in stack.resources.items():
            if found["Type"].startswith("AWS::Serverless::"):
                continue  # SAM makes others of them.
            for error in _validator(found["Type"]).iter_errors(found.get("Properties", {})):
                if is_converted(error.instance, error.message):
                    continue
                where = "/".join(map(str, error.instance_path))
                problems.append(f"{name} {resource} {where}: {error.message}")
    assert problems == []


def is_converted(value: object, message: str) -> bool:
    """Return whether CloudFormation makes what is asked for of the value."""
    if isinstance(value, str) and value.isdecimal():
        return message.endswith('type "integer"')
    return isinstance(value, int) and message.endswith('type "string"')


def test_a_mistake_in_a_template_is_found() -> None:
    application = {"ReleaseLabel": "emr 7", "Type": "SPARK", "Nonsense": 1}
    found = [error.message for error in _validator(APPLICATION).iter_errors(application)]
    assert len(found) == 2, found


def test_the_application_of_jobs_is_one_that_emr_would_make() -> None:
    """CloudFormation calls CreateApplication with the resource's properties."""
    jobs = nested_stacks(SETTINGS["everything"])["Jobs"]
    properties = jobs.properties("Application")
    assert create_application_problems(properties) == []
    too_large = {**properties, "MaximumCapacity": {"Cpu": "lots", "Memory": "3000 GB"}}
    (problem,) = create_application_problems(too_large)
    assert "cpu is 'lots'" in problem


def create_application_problems(properties: Mapping[str, Any]) -> list[str]:
    request = {**as_request(properties), "clientToken": "made-by-cloudformation"}
    return problems_of_request("emr-serverless", "CreateApplication", request)


def as_request(properties: Any) -> Any:
    """Return the properties by the names of the service's API, which begin in lower case."""
    if isinstance(properties, Mapping):
        return {f"{key[0].lower()}{key[1:]}": as_request(one) for key, one in properties.items()}
    return properties
