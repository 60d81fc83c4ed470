"""The Fetch codec against kio's classes, in every version."""

from __future__ import annotations

import contextlib
import datetime
import io
import os
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from tidelog_core.model import FileSlice, ReadableFile
from tidelog_node.wire.fetch import (
    FLEXIBLE_FROM,
    TOPIC_ID_FROM,
    VERSION_MAX,
    VERSION_MIN,
    parse_fetch,
)
from tidelog_node.wire.fetch_answer import SENDFILE_BYTES_MIN, FetchResult, encode_fetch
from tidelog_node.wire.primitives import PARSE_ERRORS
from tidelog_node.wire.produce import Endpoint

VERSIONS = range(VERSION_MIN, VERSION_MAX + 1)
topic_names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=40)
int32 = st.integers(-1, 2**31 - 1)
int64 = st.integers(-1, 2**63 - 1)
wanted = st.tuples(int32, int32, int64, int32, int64, int32)
topics = st.lists(st.tuples(topic_names, st.lists(wanted, max_size=4)), max_size=4)


def noted_versions() -> Iterator[int]:
    """Yield the versions; a failure names its own. To make an example takes longer than to use it."""
    for version in VERSIONS:
        note(f"version {version}")
        yield version


def topic_id_of(name: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_DNS, name)


def only_known(cls: type, **fields: object) -> object:
    """Return the entity with the fields that this version has."""
    return cls(**{name: value for name, value in fields.items() if name in cls.__slots__})


def encode_request(version: int, topics: object, replica_id: int, forgotten: str) -> bytes:
    """Return the request as kio writes it."""
    schema = load_request_schema(1, version)
    module = __import__(schema.__module__, fromlist=["x"])
    fields: dict[str, object] = {
        "replica_id": replica_id,
        "max_wait": datetime.timedelta(milliseconds=500),
        "min_bytes": 1,
        "max_bytes": 1_000_000,
        "isolation_level": 1,
        "session_id": 7,
        "session_epoch": 3,
        "rack_id": "rack-1",
        "cluster_id": "cluster",
    }
    if version >= 15:
        fields["replica_state"] = module.ReplicaState(replica_id=replica_id, replica_epoch=5)
    if version >= 7:
        fields["forgotten_topics_data"] = (
            only_known(
                module.ForgottenTopic,
                topic=forgotten,
                topic_id=topic_id_of(forgotten),
                partitions=(1, 2),
            ),
        )
    fields["topics"] = tuple(
        only_known(
            module.FetchTopic,
            topic=name,
            topic_id=topic_id_of(name),
            partitions=tuple(
                only_known(
                    module.FetchPartition,
                    partition=partition,
                    current_leader_epoch=epoch,
                    fetch_offset=offset,
                    last_fetched_epoch=last_epoch,
                    log_start_offset=start,
                    partition_max_bytes=bytes_max,
                    high_watermark=77,
                )
                for partition, epoch, offset, last_epoch, start, bytes_max in partitions
            ),
        )
        for name, partitions in topics
    )
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, only_known(schema, **fields))
    return buffer.getvalue()


@given(topics=topics, replica_id=st.integers(-1, 5), forgotten=topic_names)
def test_parses_what_kio_writes(topics: object, replica_id: int, forgotten: str) -> None:
    for version in noted_versions():
        check_parsed(version, topics, replica_id, forgotten)


def check_parsed(version: int, topics: object, replica_id: int, forgotten: str) -> None:
    body = encode_request(version, topics, replica_id, forgotten)
    request = parse_fetch(memoryview(b"header" + body), 6, version)
    assert request.replica_id == replica_id
    limits = (request.max_wait_ms, request.min_bytes, request.max_bytes, request.isolation_level)
    assert limits == (500, 1, 1_000_000, 1)
    assert (request.session_id, request.session_epoch) == ((7, 3) if version >= 7 else (0, -1))
    by_id = version >= TOPIC_ID_FROM
    expected = [
        (
            topic_id_of(name).bytes if by_id else name.encode(),
            [
                (
                    partition,
                    epoch if version >= 9 else -1,
                    offset,
                    last_epoch if version >= 12 else -1,
                    start if version >= 5 else -1,
                    bytes_max,
                )
                for partition, epoch, offset, last_epoch, start, bytes_max in partitions
            ],
        )
        for name, partitions in topics
    ]
    assert request.topics == expected
    name = topic_id_of(forgotten).bytes if by_id else forgotten.encode()
    assert request.forgotten == ([(name, [1, 2])] if version >= 7 else [])


@pytest.mark.parametrize("version", VERSIONS)
def test_rejects_a_request_cut_anywhere(version: int) -> None:
    body = encode_request(version, [("topic", [(0, 1, 2, 3, 4, 5)])], -1, "gone")
    for size in range(len(body)):
        with pytest.raises(PARSE_ERRORS):
            parse_fetch(memoryview(body[:size]), 0, version)


@given(noise=st.binary(max_size=200))
def test_noise_is_parsed_or_rejected(noise: bytes) -> None:
    for version in noted_versions():
        with contextlib.suppress(PARSE_ERRORS):
            parse_fetch(memoryview(noise), 0, version)


numbers = st.tuples(
    st.integers(0, 2**31 - 1), st.sampled_from([0, 1, 6]), *[st.integers(-1, 2**62)] * 3
)
parts = st.fixed_dictionaries(
    {
        "numbers": numbers,
        "size_bytes": st.sampled_from([0, 1, 100, SENDFILE_BYTES_MIN - 1, SENDFILE_BYTES_MIN]),
        "aborted": st.none() | st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99))),
        "diverging": st.none() | st.tuples(st.integers(0, 9), st.integers(0, 99)),
        "leader_id": st.integers(-1, 3),
    }
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    topics=st.lists(st.tuples(topic_names, st.lists(parts, max_size=3)), max_size=3),
    error_code=st.sampled_from([0, 70]),
    endpoints=st.lists(st.just(Endpoint(1, "localhost", 9092, None)), max_size=1),
)
def test_kio_reads_what_is_encoded(
    topics: object, error_code: int, endpoints: list[Endpoint], tmp_path: Path
) -> None:
    path = tmp_path / "records"
    if not path.exists():
        path.write_bytes(os.urandom(SENDFILE_BYTES_MIN + 10))
    for version in noted_versions():
        check_encoded(version, topics, error_code, endpoints, path)


def check_encoded(
    version: int, topics: object, error_code: int, endpoints: list[Endpoint], path: Path
) -> None:
    content, file = path.read_bytes(), ReadableFile(path)
    by_id = version >= TOPIC_ID_FROM
    answers = [
        (
            topic_id_of(name).bytes if by_id else name.encode(),
            [
                FetchResult(
                    *part["numbers"],
                    records=FileSlice(file, 10, part["size_bytes"]) if part["size_bytes"] else None,
                    aborted=part["aborted"],
                    diverging=part["diverging"],
                    leader_id=part["leader_id"],
                    leader_epoch=4,
                )
                for part in partitions
            ],
        )
        for name, partitions in topics
    ]
    segments = encode_fetch(
        version, 42, answers, error_code=error_code, endpoints=endpoints, throttle_ms=250
    )
    data = b"".join(
        content[s.position : s.position + s.size_bytes] if isinstance(s, FileSlice) else bytes(s)
        for s in segments
    )
    assert struct.unpack_from(">ii", data) == (len(data) - 4, 42)
    response, _ = entity_reader(load_response_schema(1, version))(
        memoryview(data), 8 + (version >= FLEXIBLE_FROM)
    )
    assert response.throttle_time.total_seconds() == 0.25
    if version >= 7:
        assert response.error_code is ErrorCode(error_code)
        assert response.session_id == 0
    assert len(response.responses) == len(topics)
    for topic, (name, partitions) in zip(response.responses, topics, strict=True):
        assert (topic.topic_id == topic_id_of(name)) if by_id else (topic.topic == name)
        for partition, part in zip(topic.partitions, partitions, strict=True):
            check_partition(version, partition, part, content)
    if version >= 16:
        found = [Endpoint(e.node_id, e.host, e.port, e.rack) for e in response.node_endpoints]
        assert found == endpoints


def check_partition(version: int, partition: object, part: dict, content: bytes) -> None:
    index, code, high_watermark, last_stable, start = part["numbers"]
    assert partition.partition_index == index
    assert partition.error_code is ErrorCode(code)
    assert partition.high_watermark == high_watermark
    assert partition.last_stable_offset == last_stable
    if version >= 5:
        assert partition.log_start_offset == start
    aborted = partition.aborted_transactions
    found = None if aborted is None else [(a.producer_id, a.first_offset) for a in aborted]
    assert found == part["aborted"]
    if version >= 11:
        assert partition.preferred_read_replica == -1
    assert bytes(partition.records or b"") == content[10 : 10 + part["size_bytes"]]
    if version >= 12:
        diverging, leader = partition.diverging_epoch, partition.current_leader
        assert (diverging.epoch, diverging.end_offset) == (part["diverging"] or (-1, -1))
        expected = (part["leader_id"], 4) if part["leader_id"] >= 0 else (-1, -1)
        assert (leader.leader_id, leader.leader_epoch) == expected
