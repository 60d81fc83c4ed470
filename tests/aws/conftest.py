"""AWS stand-ins for the whole session, on free ports of 127.0.0.1."""

from __future__ import annotations

import fcntl
import functools
import os
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.loaders import create_loader

from tests.aws.credentials import STATIC, CredentialsEndpoint, credentials_endpoint
from tests.aws.templates import resources
from tools import dynamodb_local, lambda_python, localstack, ministack, sam
from tools.places import ToolAbsent


@pytest.fixture(scope="package", autouse=True)
def service_models_are_read_once() -> Iterator[None]:
    """Each session of botocore parses megabytes of JSON; tests have one for every client.

    Tests of other folders extend the models of their own sessions.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("botocore.session.create_loader", functools.cache(create_loader))
        yield


@pytest.fixture(scope="session")
def dynamodb_local_endpoint() -> Iterator[str]:
    """The URL of a DynamoDB Local server."""
    yield from _serve_or_skip(dynamodb_local.serve())


@pytest.fixture(scope="session")
def ministack_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a MiniStack server: S3, DynamoDB and more."""
    yield from _serve_or_skip(ministack.serve(tmp_path_factory.mktemp("ministack")))


@pytest.fixture(scope="session")
def localstack_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a LocalStack server."""
    yield from _serve_or_skip(localstack.serve(tmp_path_factory.mktemp("localstack")))


@pytest.fixture(scope="session")
def built_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The template with functions and layer built, for Lambda's Python where it is there.

    Built once for all processes of a run; nobody may change it.
    """
    version = lambda_python.closest().minor
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    run_folder = tmp_path_factory.getbasetemp()
    folder = (run_folder.parent if is_worker else run_folder) / "sam"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        template = folder / "template"
        if not template.exists():
            try:
                built = sam.build(folder / "build", python_version=version)
            except ToolAbsent as absent:
                pytest.skip(str(absent))
            template.symlink_to(built)
    return template.resolve()


@pytest.fixture
def dynamodb(dynamodb_local_endpoint: str, aws_credentials: None) -> Iterator[Any]:
    """A client of DynamoDB Local."""
    client = boto3.client("dynamodb", endpoint_url=dynamodb_local_endpoint, region_name=sam.REGION)
    yield client
    client.close()


@pytest.fixture
def broker_id_table(dynamodb: Any) -> str:
    """A table of broker ids as the template has it."""
    properties = dict(resources("AWS::DynamoDB::Table"))["BrokerIdTable"]["Properties"]
    name = f"ids-{uuid.uuid4().hex}"
    taken = ("BillingMode", "AttributeDefinitions", "KeySchema")
    dynamodb.create_table(TableName=name, **{key: properties[key] for key in taken})
    return name


def _serve_or_skip(server: AbstractContextManager[str]) -> Iterator[str]:
    try:
        url = server.__enter__()
    except ToolAbsent as absent:
        pytest.skip(str(absent))
    yield url
    server.__exit__(None, None, None)


@pytest.fixture
def aws_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that mean nothing; no stand-in checks them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CredentialsEndpoint]:
    """Where everyone in this module gets credentials from."""
    with (
        credentials_endpoint(tmp_path_factory.mktemp("credentials")) as endpoint,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name in STATIC:
            patch.delenv(name, raising=False)
        for name, value in endpoint.environment.items():
            patch.setenv(name, value)
        yield endpoint
