"""Keys of TLS listeners in AWS Secrets Manager."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
import pytest
from tidelog_core.config import ListenerConfig
from tidelog_core.errors import InvalidConfig
from tidelog_node.security import pem_reader
from tidelog_node.security.listener_tls import ListenerTls
from tidelog_node.security.listeners import Listener, SecurityProtocol
from tidelog_node.security.pem_reader import PemReader

from tests.support.certificates import Authority


@pytest.fixture
def endpoint(ministack_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", ministack_endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    return ministack_endpoint


@pytest.fixture
def reader() -> Iterator[PemReader]:
    with ThreadPoolExecutor(1) as executor:
        yield PemReader(executor)


def put(endpoint: str, text: str) -> str:
    """Store a secret and return its ARN."""
    client = boto3.client("secretsmanager", "eu-central-1", endpoint_url=endpoint)
    arn: str = client.create_secret(Name=f"tls/{uuid.uuid4()}", SecretString=text)["ARN"]
    return arn


async def test_a_listener_has_the_key_of_a_secret(tmp_path: Path, endpoint: str) -> None:
    authority = Authority(tmp_path)
    arn = put(endpoint, authority.node_pem().read_text())
    config = ListenerConfig(ssl_keystore_location=arn)
    listener = Listener(name="TLS", protocol=SecurityProtocol.SSL, config=config)
    with ThreadPoolExecutor(1) as executor:
        tls = ListenerTls([listener], executor)
        await tls.load()
        assert tls.context("TLS") is not None


async def test_a_secret_is_read_again_after_a_while(
    endpoint: str, reader: PemReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    arn = put(endpoint, "first")
    assert await reader.read(arn) == "first"
    client = boto3.client("secretsmanager", "eu-central-1", endpoint_url=endpoint)
    client.put_secret_value(SecretId=arn, SecretString="second")
    assert await reader.read(arn) == "first"
    monkeypatch.setattr(pem_reader, "SECRET_SECONDS", 0.0)
    assert await reader.read(arn) == "second"


async def test_a_secret_that_is_not_there_is_named(endpoint: str, reader: PemReader) -> None:
    arn = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:none"
    with pytest.raises(InvalidConfig, match=f"cannot read the secret {arn}"):
        await reader.read(arn)
    with pytest.raises(InvalidConfig, match="is not the ARN of a secret"):
        await reader.read("arn:aws:s3:::bucket")
