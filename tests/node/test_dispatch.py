"""Requests that are refused as a whole, in every version of every API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode

from tests.node.many_elements import requests_with
from tests.node.node_process import NodeProcess
from tests.node.wire_client import WireClient, api_versions_request

ELEMENTS_MAX = 1_000
HOT_API_KEYS = (0, 1, 78)
JOIN_GROUP = 11


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    config = {"socket.request.max.elements": str(ELEMENTS_MAX)}
    with NodeProcess(tmp_path_factory.mktemp("dispatch") / "node", config=config) as process:
        AdminClient({"bootstrap.servers": process.address}).list_topics(timeout=10)
        yield process


def test_a_request_with_too_many_elements_is_refused_in_every_version_of_every_api(
    node: NodeProcess,
) -> None:
    with WireClient(node.port) as client:
        apis = client.call(api_versions_request()).api_keys
    refused_count = 0
    for api in apis:
        if api.api_key in HOT_API_KEYS:
            continue
        for version in range(api.min_version, api.max_version + 1):
            for _, request in requests_with(ELEMENTS_MAX + 1, api.api_key, version):
                with WireClient(node.port) as client:
                    client.send(request)
                    refused_count += _is_refused(client)
                break
    assert refused_count > 50
    assert "request failed" not in node.log
    assert "Traceback" not in node.log


def _is_refused(client: WireClient) -> bool:
    """Return whether the node answers; otherwise it closes the connection. Fails on neither."""
    try:
        return bool(client.receive())
    except (EOFError, ConnectionError):
        return False


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
