"""Bytes that no client should send: the node lives, and serves those who behave."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.schema.metadata.v9 import request as metadata
from tidelog_core.wire_messages import build

from tests.node.node_process import NodeProcess
from tests.node.wire_client import WireClient, api_versions_request, encode, frame

UNKNOWN_TAG = b"\x01\x8f\x4e\x03abc"  # one field, tag 9999, of three bytes


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One node for all tests here."""
    with NodeProcess(tmp_path_factory.mktemp("hostile") / "node") as process:
        yield process


def test_29_bytes_that_name_four_billion_topics_do_not_stop_a_node(node: NodeProcess) -> None:
    packet = b"\0\0\0\x19\0\x03\0\x09\0\0\0\x01\0\x05chaos\0\xff\xff\xff\xff\x0f\0\0\0\0"
    assert len(packet) == 29
    with WireClient(node.port) as friend:
        before = node.rss_bytes()
        for _ in range(3):
            with WireClient(node.port) as client:
                client.send(packet)
                assert client.is_closed_by_node()
        assert friend.call(api_versions_request()).api_keys
        assert node.rss_bytes() - before < 10_000_000
    assert "MetadataRequest.topics is said to have 4294967294 elements" in node.log


@pytest.mark.parametrize(("api_key", "version"), [(3, 9), (10, 3), (16, 3), (18, 3), (32, 4)])
def test_unknown_tagged_fields_are_skipped(node: NodeProcess, api_key: int, version: int) -> None:
    """Source: KIP-482."""
    schema: Any = load_request_schema(api_key, version)
    body = encode(schema, build(schema))
    assert body.endswith(b"\0")
    with WireClient(node.port) as client:
        for tags, its_body in (
            (b"\0", body),
            (UNKNOWN_TAG, body),
            (b"\0", body[:-1] + UNKNOWN_TAG),
            (UNKNOWN_TAG, body[:-1] + UNKNOWN_TAG),
        ):
            client.send(frame(api_key, version, 5, its_body, tags=tags))
            assert struct.unpack_from(">i", client.receive()) == (5,)


def test_unknown_tagged_fields_of_nested_structs_are_skipped(node: NodeProcess) -> None:
    topic = build(metadata.MetadataRequestTopic, name="nowhere")
    request = build(metadata.MetadataRequest, topics=(topic,), allow_auto_topic_creation=False)
    body = encode(metadata.MetadataRequest, request)
    head, tail = body.split(b"nowhere\0")
    with WireClient(node.port) as client:
        client.send(frame(3, 9, 1, body, tags=b"\0"))
        plain = client.receive()
        client.send(frame(3, 9, 1, head + b"nowhere" + UNKNOWN_TAG + tail, tags=b"\0"))
        assert client.receive() == plain
