"""Well-formed requests about as many things as a caller likes, in their oldest encodings."""

from __future__ import annotations

import struct
from collections.abc import Callable

from tests.support.message_bytes import varint
from tests.support.wire_client import frame


def string(text: str) -> bytes:
    """Return a string with its length."""
    return struct.pack(">h", len(text)) + text.encode()


def array(elements: list[bytes]) -> bytes:
    """Return an array with its length."""
    return struct.pack(">i", len(elements)) + b"".join(elements)


def metadata(count: int) -> bytes:
    """Name topics that are not there."""
    return frame(3, 1, 1, array([string(f"unknown-{n}") for n in range(count)]), tags=b"")


def offset_fetch(count: int, *, version: int = 1) -> bytes:
    """Ask for a group's offsets of partitions of one topic."""
    partitions = struct.pack(f">i{count}i", count, *range(count))
    topic = struct.pack(">i", 1) + string("t") + partitions
    return frame(9, version, 1, string("group") + topic, tags=b"")


def describe_groups(count: int) -> bytes:
    """Name groups that are not there."""
    return frame(15, 0, 1, array([string(f"group-{n}") for n in range(count)]), tags=b"")


def list_offsets(count: int) -> bytes:
    """Ask for the ends of partitions of one topic."""
    partitions = array([struct.pack(">iq", n, -1) for n in range(count)])
    body = struct.pack(">ii", -1, 1) + string("t") + partitions
    return frame(2, 1, 1, body, tags=b"")


def delete_topics(count: int) -> bytes:
    """Name topics that are not there."""
    body = array([string(f"unknown-{n}") for n in range(count)]) + struct.pack(">i", 1000)
    return frame(20, 1, 1, body, tags=b"")


def create_topics(count: int) -> bytes:
    """Ask whether topics could be created."""
    topics = [string(f"new-{n}") + struct.pack(">ihii", 1, 1, 0, 0) for n in range(count)]
    return frame(19, 2, 1, array(topics) + struct.pack(">i?", 60_000, True), tags=b"")


def describe_configs(count: int) -> bytes:
    """Ask for the settings of topics that are not there."""
    resources = [struct.pack(">b", 2) + string(f"t-{n}") + b"\xff" * 4 for n in range(count)]
    return frame(32, 1, 1, array(resources) + b"\0", tags=b"")


def describe_users(count: int) -> bytes:
    """Name users that are not there."""
    names = [f"user-{n}".encode() for n in range(count)]
    users = b"".join(varint(len(name) + 1) + name + b"\0" for name in names)
    return frame(50, 0, 1, varint(count + 1) + users + b"\0", tags=b"\0")


def produce(count: int) -> bytes:
    """Name partitions of one topic without records."""
    partitions = array([struct.pack(">ii", n, -1) for n in range(count)])
    body = struct.pack(">hhii", -1, 1, 1000, 1) + string("t") + partitions
    return frame(0, 3, 1, body, tags=b"")


def fetch(count: int, *, replica_id: int = -1) -> bytes:
    """Ask for records of partitions of one topic, as a consumer or as a follower."""
    partitions = array([struct.pack(">iqi", n, 0, 1000) for n in range(count)])
    body = struct.pack(">iiiibi", replica_id, 0, 0, 1_000_000, 0, 1) + string("t") + partitions
    return frame(1, 4, 1, body, tags=b"")


CONTROL_REQUESTS: dict[str, Callable[[int], bytes]] = {
    "Metadata": metadata,
    "OffsetFetch": offset_fetch,
    "DescribeGroups": describe_groups,
    "ListOffsets": list_offsets,
    "DeleteTopics": delete_topics,
    "CreateTopics": create_topics,
    "DescribeConfigs": describe_configs,
    "DescribeUserScramCredentials": describe_users,
}
