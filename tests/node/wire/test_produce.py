"""The Produce codec against kio's classes, in every version."""

from __future__ import annotations

import contextlib
import datetime
import io
import struct
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from tidelog_node.wire.primitives import PARSE_ERRORS
from tidelog_node.wire.produce import (
    FLEXIBLE_FROM,
    TOPIC_ID_FROM,
    VERSION_MAX,
    VERSION_MIN,
    Endpoint,
    ProduceResult,
    encode_produce,
    parse_produce,
)

VERSIONS = range(VERSION_MIN, VERSION_MAX + 1)
topic_names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=40)
topics = st.lists(
    st.tuples(
        topic_names,
        st.lists(st.tuples(st.integers(0, 2**31 - 1), st.none() | st.binary()), max_size=4),
    ),
    max_size=4,
)


def noted_versions() -> Iterator[int]:
    """Yield the versions; a failure names its own. To make an example takes longer than to use it."""
    for version in VERSIONS:
        note(f"version {version}")
        yield version


def topic_id_of(name: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_DNS, name)


def encode_request(version: int, acks: int, transactional_id: str | None, topics: object) -> bytes:
    """Return the request as kio writes it."""
    schema = load_request_schema(0, version)
    module = __import__(schema.__module__, fromlist=["x"])
    entity = schema(
        transactional_id=transactional_id,
        acks=acks,
        timeout=datetime.timedelta(milliseconds=1500),
        topic_data=tuple(
            module.TopicProduceData(
                **({"topic_id": topic_id_of(name)} if version >= TOPIC_ID_FROM else {"name": name}),
                partition_data=tuple(
                    module.PartitionProduceData(index=index, records=records)
                    for index, records in partitions
                ),
            )
            for name, partitions in topics
        ),
    )
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, entity)
    return buffer.getvalue()


@given(topics=topics, acks=st.sampled_from([-1, 0, 1]), transactional_id=st.none() | topic_names)
def test_parses_what_kio_writes(topics: object, acks: int, transactional_id: str | None) -> None:
    for version in noted_versions():
        check_parsed(version, topics, acks, transactional_id)


def check_parsed(version: int, topics: object, acks: int, transactional_id: str | None) -> None:
    body = encode_request(version, acks, transactional_id, topics)
    frame = memoryview(bytearray(b"header" + body))
    request = parse_produce(frame, 6, version)
    assert request.acks == acks
    assert request.timeout_ms == 1500
    expected_id = None if transactional_id is None else transactional_id.encode()
    assert request.transactional_id == expected_id
    parsed = [
        (name, [(index, None if data is None else bytes(data)) for index, data in partitions])
        for name, partitions in request.topics
    ]
    by_id = version >= TOPIC_ID_FROM
    assert parsed == [
        (topic_id_of(name).bytes if by_id else name.encode(), partitions)
        for name, partitions in topics
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_records_are_a_writable_view_of_the_frame(version: int) -> None:
    body = encode_request(version, 1, None, [("t", [(0, b"records")])])
    frame = bytearray(body)
    (_, [(_, records)]) = parse_produce(memoryview(frame), 0, version).topics[0]
    assert records is not None
    records[0:1] = b"R"
    assert b"Records" in frame


@pytest.mark.parametrize("version", range(FLEXIBLE_FROM, VERSION_MAX + 1))
@pytest.mark.parametrize("tag_at", [1, 2, 3], ids=["request", "topic", "partition"])
def test_passes_over_tagged_fields_behind_a_single_batch(version: int, tag_at: int) -> None:
    body = encode_request(version, 1, None, [("t", [(7, b"records")])])
    at = len(body) - tag_at
    assert body[at] == 0
    tagged = body[:at] + b"\x01\x05\x02ab" + body[at + 1 :]
    ((_, [(index, records)]),) = parse_produce(memoryview(bytearray(tagged)), 0, version).topics
    assert index == 7
    assert records == b"records"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("transactional_id", "partitions"),
    [("tx", [(0, b"0123456789"), (1, b"x")]), (None, [(0, b"0123456789")])],
)
def test_rejects_a_request_cut_anywhere(
    version: int, transactional_id: str | None, partitions: object
) -> None:
    body = encode_request(version, 1, transactional_id, [("topic", partitions)])
    for size in range(len(body)):
        with pytest.raises(PARSE_ERRORS):
            parse_produce(memoryview(bytearray(body[:size])), 0, version)


@given(noise=st.binary(max_size=200))
def test_noise_is_parsed_or_rejected(noise: bytes) -> None:
    for version in noted_versions():
        with contextlib.suppress(PARSE_ERRORS):
            parse_produce(memoryview(bytearray(noise)), 0, version)


results = st.builds(
    ProduceResult,
    partition=st.integers(0, 2**31 - 1),
    error_code=st.sampled_from([0, 0, 0, 2, 6, 87]),
    base_offset=st.integers(-1, 2**62),
    log_append_time_ms=st.just(-1) | st.integers(0, 2**40),
    log_start_offset=st.integers(-1, 2**62),
    error_message=st.none() | st.text(max_size=200).map(str.encode),
    leader_id=st.integers(-1, 10),
    leader_epoch=st.integers(0, 100),
    record_errors=st.lists(
        st.tuples(st.integers(0, 100), st.none() | st.just(b"no key")), max_size=3
    ).map(tuple),
)
endpoints = st.lists(
    st.builds(
        Endpoint,
        st.integers(0, 10),
        st.sampled_from(["localhost", "10.0.0.1"]),
        st.integers(1, 65535),
        st.none() | st.just("rack"),
    ),
    max_size=3,
)


@given(
    topics=st.lists(st.tuples(topic_names, st.lists(results, max_size=3)), max_size=3),
    endpoints=endpoints,
    correlation_id=st.integers(0, 2**31 - 1),
    throttle_ms=st.sampled_from([0, 250]),
)
def test_kio_reads_what_is_encoded(
    topics: list[tuple[str, list[ProduceResult]]],
    endpoints: list[Endpoint],
    correlation_id: int,
    throttle_ms: int,
) -> None:
    for version in noted_versions():
        check_encoded(version, topics, endpoints, correlation_id, throttle_ms)


def check_encoded(
    version: int,
    topics: list[tuple[str, list[ProduceResult]]],
    endpoints: list[Endpoint],
    correlation_id: int,
    throttle_ms: int,
) -> None:
    by_id = version >= TOPIC_ID_FROM
    named = [
        (topic_id_of(name).bytes if by_id else name.encode(), results) for name, results in topics
    ]
    encoded = encode_produce(version, correlation_id, named, endpoints, throttle_ms=throttle_ms)
    data = bytes(encoded)
    size, correlation = struct.unpack_from(">ii", data)
    assert size == len(data) - 4
    assert correlation == correlation_id
    is_flexible = version >= FLEXIBLE_FROM
    schema = load_response_schema(0, version)
    response, end = entity_reader(schema)(memoryview(data), 8 + is_flexible)
    assert 8 + is_flexible + end == len(data) or end == len(data)
    assert response.throttle_time == datetime.timedelta(milliseconds=throttle_ms)
    assert len(response.responses) == len(topics)
    for topic, (name, expected) in zip(response.responses, topics, strict=True):
        assert (topic.topic_id == topic_id_of(name)) if by_id else (topic.name == name)
        assert len(topic.partition_responses) == len(expected)
        for partition, result in zip(topic.partition_responses, expected, strict=True):
            check_partition(version, partition, result)
    if version >= 10:
        assert [(e.node_id, e.host, e.port, e.rack) for e in response.node_endpoints] == endpoints


def check_partition(version: int, partition: object, result: ProduceResult) -> None:
    assert partition.index == result.partition
    assert partition.error_code is ErrorCode(result.error_code)
    assert partition.base_offset == result.base_offset
    stamp = partition.log_append_time
    stamp_ms = -1 if stamp is None else round(stamp.timestamp() * 1000)
    assert stamp_ms == result.log_append_time_ms
    if version >= 5:
        assert partition.log_start_offset == result.log_start_offset
    is_error = result.error_code != 0 or version < 8
    if version >= 8 and is_error:
        message = result.error_message
        assert partition.error_message == (None if message is None else message.decode())
        assert [
            (error.batch_index, error.batch_index_error_message)
            for error in partition.record_errors
        ] == [
            (index, None if text is None else text.decode()) for index, text in result.record_errors
        ]
    if version >= 10 and result.error_code != 0 and result.leader_id >= 0:
        assert partition.current_leader.leader_id == result.leader_id
        assert partition.current_leader.leader_epoch == result.leader_epoch
