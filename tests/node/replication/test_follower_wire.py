"""The follower's Fetch codec against kio's classes and against the node's own encoder."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any
from uuid import uuid4

import pytest
from kio.schema.fetch.v15.request import FetchRequest
from kio.serial import entity_reader
from tidelog_node.follower.wire import (
    CLIENT_ID,
    FollowerLimits,
    WantedPartition,
    encode_follower_fetch,
    parse_follower_fetch,
)
from tidelog_node.wire.fetch import parse_fetch
from tidelog_node.wire.fetch_answer import FetchResult, encode_fetch
from tidelog_node.wire.primitives import PARSE_ERRORS

LIMITS = FollowerLimits(
    replica_id=2, replica_epoch=7, max_wait_ms=500, max_bytes=1000, partition_max_bytes=100
)
BODY_AT = 4 + 8 + 2 + len(CLIENT_ID) + 1


def a_request(topics: int = 2, partitions: int = 200) -> tuple[bytearray, Any]:
    wanted = [
        (
            uuid4().bytes,
            [WantedPartition(index, 3, 10 * index, 2, 5) for index in range(partitions)],
        )
        for _ in range(topics)
    ]
    return encode_follower_fetch(9, LIMITS, dict(wanted)), wanted


def test_requests_are_what_kio_reads() -> None:
    data, wanted = a_request()
    assert struct.unpack_from(">ihhih", data) == (len(data) - 4, 1, 15, 9, len(CLIENT_ID))
    request, size_bytes = entity_reader(FetchRequest)(memoryview(bytes(data)), BODY_AT)
    assert BODY_AT + size_bytes == len(data)
    assert (request.replica_state.replica_id, request.replica_state.replica_epoch) == (2, 7)
    assert [topic.topic_id.bytes for topic in request.topics] == [
        topic_id for topic_id, _ in wanted
    ]
    found = request.topics[1].partitions[150]
    assert (found.partition, found.current_leader_epoch, found.fetch_offset) == (150, 3, 1500)
    assert (found.last_fetched_epoch, found.log_start_offset) == (2, 5)
    assert found.partition_max_bytes == 100


def test_a_partition_that_is_fed_from_the_bucket_wants_no_bytes() -> None:
    """No other one says so, whatever the limit is."""
    limits = dataclasses.replace(LIMITS, partition_max_bytes=0)
    wanted = [WantedPartition(0, 3, 10, 2, 5, is_fed=True), WantedPartition(1, 3, 10, 2, 5)]
    data = encode_follower_fetch(9, limits, {uuid4().bytes: wanted})
    request = parse_fetch(memoryview(data), BODY_AT, 15)
    assert [found.bytes_max for found in request.topics[0][1]] == [0, 1]


def test_requests_are_what_the_node_reads() -> None:
    data, wanted = a_request()
    request = parse_fetch(memoryview(data), BODY_AT, 15)
    assert (request.replica_id, request.replica_epoch, request.min_bytes) == (2, 7, 1)
    assert (request.session_epoch, request.rack) == (-1, b"")
    topic_id, partitions = request.topics[0]
    assert topic_id == wanted[0][0]
    assert partitions[150][:5] == (150, 3, 1500, 2, 5)


def test_a_session_and_what_it_shall_forget_are_what_kio_reads() -> None:
    gone = {uuid4().bytes: list(range(300)), uuid4().bytes: [7]}
    data = encode_follower_fetch(
        9, LIMITS, {}, session_id=77, session_epoch=5, forgotten=gone, may_wait=False
    )
    request, size_bytes = entity_reader(FetchRequest)(memoryview(bytes(data)), BODY_AT)
    assert BODY_AT + size_bytes == len(data)
    assert (request.session_id, request.session_epoch) == (77, 5)
    assert request.topics == ()
    found = {
        topic.topic_id.bytes: list(topic.partitions) for topic in request.forgotten_topics_data
    }
    assert found == gone
    assert request.max_wait.total_seconds() == 0
    assert request.replica_state.replica_id == 2
    assert parse_fetch(memoryview(data), BODY_AT, 15).session_epoch == 5


def an_answer() -> tuple[bytes, bytes]:
    topic_id = uuid4().bytes
    results = [
        FetchResult(0, 0, 10, 9, 1, None, [(5, 6), (7, 8)]),
        FetchResult(1, 6, leader_id=3, leader_epoch=4),
        FetchResult(300, 0, 10, 9, 1, diverging=(2, 33)),
    ]
    reply = encode_fetch(15, 9, [(topic_id, results)])
    return topic_id, b"".join(bytes(segment) for segment in reply)[4:]  # type: ignore[arg-type]


def test_answers_of_the_node_are_read() -> None:
    topic_id, data = an_answer()
    error_code, session_id, found = parse_follower_fetch(memoryview(data))
    assert (error_code, session_id) == (0, 0)
    assert [(one.topic_id, one.partition, one.error_code) for one in found] == [
        (topic_id, 0, 0),
        (topic_id, 1, 6),
        (topic_id, 300, 0),
    ]
    assert found[0][3:] == (10, 1, None, None)
    assert found[2].diverging == (2, 33)


def test_answers_that_end_early_are_refused() -> None:
    _, data = an_answer()
    for size_bytes in range(len(data) - 2):
        with pytest.raises(PARSE_ERRORS):
            parse_follower_fetch(memoryview(data)[:size_bytes])
