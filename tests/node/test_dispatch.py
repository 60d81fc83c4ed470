"""Requests that are refused as a whole, in every version of every API."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode
from tidelog_core.message_schemas import load_response_schema

from tests.node.many_elements import requests_with
from tests.support.node_process import NodeProcess
from tests.support.wire_client import WireClient, api_versions_request

ELEMENTS_MAX = 1_000
HOT_API_KEYS = (0, 1, 78)
JOIN_GROUP = 11


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    config = {"socket.request.max.elements": str(ELEMENTS_MAX)}
    with NodeProcess(tmp_path_factory.mktemp("dispatch") / "node", config=config) as process:
        AdminClient({"bootstrap.servers": process.address}).list_topics(timeout=60)
        yield process


def test_a_request_with_too_many_elements_is_refused_in_every_version_of_every_api(
    node: NodeProcess,
) -> None:
    """Of every API whose answer has a place for that; ``test_large_requests`` has the others."""
    with WireClient(node.port) as client:
        apis = client.call(api_versions_request()).api_keys
    answered_count = 0
    for api in apis:
        for version in range(api.min_version, api.max_version + 1):
            if api.api_key in HOT_API_KEYS or not _has_place(api.api_key, version):
                continue
            for _, request in requests_with(ELEMENTS_MAX + 1, api.api_key, version):
                with WireClient(node.port) as client:
                    client.send(request)
                    assert client.receive()
                answered_count += 1
                break
    assert answered_count > 50
    assert "request failed" not in node.log


def _has_place(api_key: int, version: int) -> bool:
    schema: Any = load_response_schema(api_key, version)
    return any(field.name == "error_code" for field in dataclasses.fields(schema))


@pytest.mark.parametrize("version", range(10))
def test_a_join_with_too_many_protocols_is_answered_in_every_version(
    node: NodeProcess, version: int
) -> None:
    ((_, request),) = requests_with(ELEMENTS_MAX + 1, JOIN_GROUP, version)
    with WireClient(node.port) as client:
        client.send(request)
        client.correlation_id = 1
        answer: Any = client._response(JOIN_GROUP, version, is_flexible=version >= 6)
        assert answer.error_code is ErrorCode.invalid_request
        # The connection serves further requests.
        assert client.call(api_versions_request()).api_keys
