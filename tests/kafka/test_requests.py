"""Bytes that are no requests, and versions that do not exist."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from random import Random
from typing import Any

from kio.serial import entity_reader
from tidelog_core.message_schemas import load_request_schema, load_response_schema

from tests.kafka.compare import compared
from tests.support.kafka_messages import API_KEYS, plain
from tests.support.message_bytes import joined, random_message
from tests.support.peer import CLOSED, Peer

Observations = Iterator[tuple[str, Any]]
API_VERSIONS = 18
NAME = "has-nulls"  # of a topic, a group and everything else


def outcome(peer: Peer, data: bytes) -> str:
    """Return whether the bytes are answered or end the connection, or that neither happens."""
    answer = peer.exchange(data)
    peer.close()
    return "answered" if isinstance(answer, bytes) else answer


@compared
def test_frames_that_are_none(peer: Peer) -> Observations:
    frames = {
        "size negative": struct.pack(">i", -1),
        "size very negative": struct.pack(">i", -(2**31)),
        "size zero": struct.pack(">i", 0),
        "size zero, then a request": struct.pack(">i", 0)
        + peer.frame(API_VERSIONS, 0, b"", is_flexible=False),
        "size over the limit": struct.pack(">i", 104_857_601),
        "size huge": struct.pack(">i", 2**31 - 1),
        "http": b"GET / HTTP/1.1\r\n\r\n",
        "tls": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    }
    for size in (1, 2, 4, 7, 8, 9, 10):
        frames[f"size {size}"] = struct.pack(">i", size) + bytes(size)
    for label, data in frames.items():
        yield label, outcome(peer, data)
    # Other connections are still served.
    yield "after all", peer.call("api_versions", 0)["error_code"]


@compared
def test_requests_that_do_not_parse(peer: Peer) -> Observations:
    peer.create_topic("parsed")
    bodies = {
        "empty": b"",
        "one byte": b"\x00",
        "all ones": b"\xff" * 40,
        "zeros": bytes(4),
        "huge array": struct.pack(">i", 2**31 - 1),
        "negative array": struct.pack(">i", -7),
        "huge string": struct.pack(">ih", 1, 32_767),
    }
    for api, version in (
        ("metadata", 8),
        ("metadata", 12),
        ("create_topics", 2),
        ("list_offsets", 5),
        ("list_offsets", 7),
        ("fetch", 4),
        ("fetch", 12),
        ("produce", 3),
        ("produce", 9),
        ("join_group", 5),
        ("offset_commit", 8),
        ("find_coordinator", 3),
        ("api_versions", 3),
    ):
        schema: Any = load_response_schema(API_KEYS[api], version)
        for label, body in bodies.items():
            frame = peer.frame(API_KEYS[api], version, body, is_flexible=schema.__flexible__)
            yield f"{api} {version} {label}", outcome(peer, frame)


@compared
def test_request_headers_that_are_wrong(peer: Peer) -> Observations:
    def framed(data: bytes) -> bytes:
        return struct.pack(">i", len(data)) + data

    head = struct.pack(">hhi", API_VERSIONS, 0, 5)
    yield "no client id", outcome(peer, framed(head + struct.pack(">h", -1)))
    yield "empty client id", outcome(peer, framed(head + struct.pack(">h", 0)))
    yield "client id too long", outcome(peer, framed(head + struct.pack(">h", 99)))
    yield "client id of length -2", outcome(peer, framed(head + struct.pack(">h", -2)))
    yield "client id not UTF-8", outcome(peer, framed(head + struct.pack(">h", 2) + b"\xff\xfe"))
    yield "trailing bytes", outcome(peer, framed(head + struct.pack(">h", -1) + b"more"))
    flexible = struct.pack(">hhih", API_VERSIONS, 3, 5, -1)
    body = b"\x05name\x02v\x00"
    yield "tags", outcome(peer, framed(flexible + b"\x01\x63\x01x" + body))
    yield "tags cut", outcome(peer, framed(flexible + b"\x05"))
    yield "no tags", outcome(peer, framed(flexible))


@compared
def test_versions_that_are_not_served_end_the_connection(peer: Peer) -> Observations:
    for api, api_key in API_KEYS.items():
        if api == "api_versions":
            continue
        for version in (-1, 99, 32_767):
            frame = peer.frame(api_key, version, bytes(20), is_flexible=False)
            yield f"{api} {version}", outcome(peer, frame)
    for api_key in (-1, 999, 32_767):
        frame = peer.frame(api_key, 0, b"", is_flexible=False)
        yield f"API {api_key}", outcome(peer, frame)
    # What Kafka 4 has removed. Source: KIP-896.
    for api, version in (
        ("produce", 0),
        ("produce", 2),
        ("fetch", 3),
        ("list_offsets", 0),
        ("offset_commit", 1),
        ("offset_fetch", 0),
        ("join_group", 1),
        ("create_topics", 1),
        ("delete_topics", 0),
        ("describe_configs", 0),
        ("offset_for_leader_epoch", 1),
    ):
        frame = peer.frame(API_KEYS[api], version, bytes(20), is_flexible=False)
        yield f"removed {api} {version}", outcome(peer, frame)


@compared
def test_api_versions(peer: Peer) -> Observations:
    for version in range(5):
        fields: dict[str, Any] = (
            {"client_software_name": "test", "client_software_version": "1"} if version >= 3 else {}
        )
        answer = peer.call("api_versions", version, **fields)
        yield f"version {version}", {**answer, "api_keys": None, "finalized_features": None}
    for name, number in (("", "1"), ("a b", "1"), ("a", ""), ("-a", "1"), ("a", "1-"), ("é", "1")):
        answer = peer.call(
            "api_versions", 3, client_software_name=name, client_software_version=number
        )
        yield (
            f"software {name!r} {number!r}",
            {
                **answer,
                "api_keys": len(answer["api_keys"]) > 0,
            },
        )


@compared
def test_api_versions_that_are_not_served(peer: Peer) -> Observations:
    for version in (5, 99, 32_767, -1):
        frame = peer.frame(API_VERSIONS, version, b"\x05name\x02v\x00", is_flexible=True)
        answer = peer.exchange(frame)
        if isinstance(answer, bytes):
            schema: Any = load_response_schema(API_VERSIONS, 0)
            response, end = entity_reader(schema)(memoryview(answer), 4)
            assert end == len(answer) - 4
            yield f"version {version}", plain(response)
            yield f"goes on {version}", peer.call("api_versions", 0)["error_code"]
        else:
            yield f"version {version}", CLOSED
        peer.close()


@compared
def test_the_versions_of_every_api(peer: Peer) -> Observations:
    answer = peer.call("api_versions", 0)
    for api in answer["api_keys"]:
        yield f"API {api['api_key']}", [api["min_version"], api["max_version"]]


@compared
def test_answers_come_in_the_order_of_the_requests(peer: Peer) -> Observations:
    peer.create_topic("ordered")
    requests = b""
    for _ in range(20):
        requests += peer.frame(API_VERSIONS, 0, b"", is_flexible=False)
        requests += peer.frame(3, 1, struct.pack(">ih", 1, 7) + b"ordered", is_flexible=False)
    peer.send(requests)
    ids = []
    for _ in range(40):
        answer = peer.receive()
        assert isinstance(answer, bytes)
        ids.append(struct.unpack_from(">i", answer)[0])
    yield "in order", ids == sorted(ids)


@compared
def test_a_request_in_small_pieces(peer: Peer) -> Observations:
    frame = peer.frame(API_VERSIONS, 0, b"", is_flexible=False)
    for index in range(len(frame) - 1):
        peer.send(frame[index : index + 1])
    yield "answered", isinstance(peer.exchange(frame[-1:]), bytes)


@compared
def test_null_in_any_place(peer: Peer) -> Observations:
    """Where null is allowed or not, one value after the other, in the lowest version of each API."""
    peer.create_topic(NAME)
    peer.await_coordinator(NAME)
    peer.await_coordinator(NAME, key_type=1)
    lowest = {
        api["api_key"]: api["min_version"] for api in peer.call("api_versions", 0)["api_keys"]
    }
    # Kafka lets these wait for ever: a Produce with acks=0, an error that escapes its handler.
    left_out = {"produce", "alter_configs"}
    for api, api_key in API_KEYS.items():
        if api in left_out:
            continue
        version = lowest[api_key]
        schema = load_request_schema(api_key, version)
        for label, body in bodies_with_null(schema):
            if (api, label) == ("describe_share_group_offsets", "null 2"):
                continue  # All topics: Kafka sometimes takes longer than this case waits.
            frame = peer.frame(api_key, version, body, is_flexible=schema.__flexible__)
            yield f"{api} {version} {label}", outcome(peer, frame)


def bodies_with_null(schema: Any) -> Iterator[tuple[str, bytes]]:
    """Return requests with each of their values null that have a length or may be null."""
    for at in itertools.count():
        random = Random(5)  # The same for both.
        numbers = (0,) * 400  # hardly ever others
        try:
            pieces = random_message(
                schema, random, texts=(NAME,), numbers=numbers, nulls=0, null_at=at
            )
        except ValueError:
            return
        yield f"null {at}", joined(pieces)
