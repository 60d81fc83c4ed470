"""The codec of ShareFetch against kio's, in every version."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader
from tidelog_core.model import FileSlice, ReadableFile
from tidelog_core.wire_messages import build
from tidelog_node.wire.primitives import PARSE_ERRORS
from tidelog_node.wire.produce import Endpoint
from tidelog_node.wire.share_fetch import (
    API_KEY,
    VERSION_MAX,
    VERSION_MIN,
    Acknowledgement,
    Acquired,
    PartitionKey,
    ShareFetchRequest,
    ShareFetchResult,
    encode_share_fetch,
    parse_share_fetch,
)

from tests.support.kafka_messages import entity
from tests.support.wire_client import encode

VERSIONS = range(VERSION_MIN, VERSION_MAX + 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
TOPIC_IDS = st.integers(1, 3).map(lambda number: UUID(int=number))
OFFSETS = st.integers(0, 2**63 - 1)
ACKNOWLEDGEMENTS = st.lists(
    st.builds(
        Acknowledgement, OFFSETS, OFFSETS, st.lists(st.integers(0, 4), max_size=5).map(bytes)
    ),
    max_size=3,
)
KEYS = st.tuples(TOPIC_IDS.map(lambda topic_id: topic_id.bytes), st.integers(0, 5))


@st.composite
def requests(draw: st.DrawFn) -> ShareFetchRequest:
    return ShareFetchRequest(
        draw(st.text(max_size=20)),
        draw(st.text(max_size=40)),
        *(draw(INT32) for _ in range(6)),
        draw(st.integers(0, 1)),
        draw(st.booleans()),
        draw(st.dictionaries(KEYS, ACKNOWLEDGEMENTS, max_size=6)),
        draw(st.lists(KEYS, max_size=4, unique=True)),
    )


def encoded(request: ShareFetchRequest, version: int) -> bytes:
    """Return the request as kio writes it."""
    newer: dict[str, Any] = {}
    if version >= 2:
        newer = {"share_acquire_mode": request.acquire_mode, "is_renew_ack": request.renews}
    topics: dict[bytes, list[Any]] = {}
    for (topic_id, index), said in request.partitions.items():
        batches = [
            {"first_offset": first, "last_offset": last, "acknowledge_types": list(types)}
            for first, last, types in said
        ]
        row = {"partition_index": index, "acknowledgement_batches": batches}
        topics.setdefault(topic_id, []).append(row)
    fields = {
        "group_id": request.group_id,
        "member_id": request.member_id,
        "share_session_epoch": request.session_epoch,
        "max_wait": datetime.timedelta(milliseconds=request.max_wait_ms),
        "min_bytes": request.min_bytes,
        "max_bytes": request.max_bytes,
        "max_records": request.records_max,
        "batch_size": request.batch_size,
        "topics": [{"topic_id": UUID(bytes=t), "partitions": rows} for t, rows in topics.items()],
        "forgotten_topics_data": [
            {"topic_id": UUID(bytes=t), "partitions": [index]} for t, index in request.forgotten
        ],
        **newer,
    }
    schema = load_request_schema(API_KEY, version)
    return encode(schema, entity(schema, fields))


@pytest.mark.parametrize("version", VERSIONS)
@given(request=requests())
@settings(max_examples=60, deadline=None)
def test_requests_are_read_as_they_were_written(version: int, request: ShareFetchRequest) -> None:
    frame = memoryview(b"head" + encoded(request, version))
    if version < 2:
        request.acquire_mode, request.renews = 0, False
    found = parse_share_fetch(frame, 4, version)
    assert found == request


@pytest.mark.parametrize("version", VERSIONS)
def test_requests_that_are_cut_are_refused(version: int) -> None:
    request = ShareFetchRequest(
        *("g", "m", 1, 2, 3, 4, 5, 6, 1, True),
        {(UUID(int=1).bytes, 0): [Acknowledgement(0, 1, b"\x01\x02")]},
        [(UUID(int=2).bytes, 1)],
    )
    whole = encoded(request, version)
    for size in range(len(whole)):
        with pytest.raises(PARSE_ERRORS):
            parse_share_fetch(memoryview(whole[:size]), 0, version)


@pytest.fixture(scope="module")
def records_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("codec") / "records"
    path.write_bytes(os.urandom(70_000))
    return path


RESULTS = st.builds(
    ShareFetchResult,
    st.sampled_from([0, 6, -1]),
    st.none() | st.text(max_size=9),
    st.sampled_from([0, 121]),
    st.none() | st.text(max_size=9),
    st.integers(-1, 9),
    st.integers(-1, 9),
    st.none(),
    st.lists(st.builds(Acquired, OFFSETS, OFFSETS, st.integers(0, 10)), max_size=3),
)


@pytest.mark.parametrize("version", VERSIONS)
@given(
    results=st.dictionaries(KEYS, RESULTS, max_size=6),
    sizes=st.lists(st.sampled_from([0, 1, 500, 70_000]), min_size=6, max_size=6),
    lock_ms=st.integers(0, 2**31 - 1),
    rack=st.none() | st.text(max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_answers_are_read_as_they_were_meant(
    records_path: Path,
    version: int,
    results: dict[PartitionKey, ShareFetchResult],
    sizes: list[int],
    lock_ms: int,
    rack: str | None,
) -> None:
    file = ReadableFile(records_path)
    for (key, result), size in zip(results.items(), sizes, strict=False):
        if size > 0:
            results[key] = result._replace(records=FileSlice(file, 0, size))
    reply = encode_share_fetch(
        77, results, lock_ms=lock_ms, endpoints=[Endpoint(3, "host", 9092, rack)]
    )
    data = b"".join(
        os.pread(s.file.fileno(), s.size_bytes, s.position) if isinstance(s, FileSlice) else s
        for s in reply
    )
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert int.from_bytes(data[4:8], "big") == 77
    schema: Any = load_response_schema(API_KEY, version)
    answer, end = entity_reader(schema)(memoryview(data), 9)
    assert end == len(data) - 9
    assert answer.acquisition_lock_timeout == datetime.timedelta(milliseconds=lock_ms)
    assert answer.node_endpoints[0].rack == rack
    found = {
        (topic.topic_id.bytes, p.partition_index): p
        for topic in answer.responses
        for p in topic.partitions
    }
    assert found.keys() == results.keys()
    for key, result in results.items():
        partition = found[key]
        assert partition.error_code == result.error_code
        assert partition.error_message == result.error_message
        assert partition.acknowledge_error_code == result.acknowledge_error_code
        assert partition.acknowledge_error_message == result.acknowledge_error_message
        leader = partition.current_leader
        assert (leader.leader_id, leader.leader_epoch) == result[4:6]
        expected = b""
        if result.records is not None:
            expected = records_path.read_bytes()[: result.records.size_bytes]
        assert bytes(partition.records) == expected
        assert [
            Acquired(a.first_offset, a.last_offset, a.delivery_count)
            for a in partition.acquired_records
        ] == list(result.acquired)


def test_a_request_of_no_partitions_is_read() -> None:
    schema = load_request_schema(API_KEY, VERSION_MAX)
    request = build(schema, group_id=None, member_id="m", share_session_epoch=3)
    found = parse_share_fetch(memoryview(encode(schema, request)), 0, VERSION_MAX)
    assert (found.group_id, found.session_epoch, found.partitions) == ("", 3, {})
