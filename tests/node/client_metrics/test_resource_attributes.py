"""The attributes of a client are in what it pushed; what is no message of OpenTelemetry's is refused."""

from __future__ import annotations

import time
import tracemalloc
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from tidelog_node.client_metrics.resource_attributes import (
    FIELDS_MAX,
    MalformedMetrics,
    with_resource_attributes,
)

ADDED = {"client_id": "c", "principal": "User:ü" + "x" * 200}
CPU_SECONDS_MAX = 2.0


def _varint(value: int) -> bytes:
    encoded = b""
    while value > 127:
        encoded += bytes([value & 127 | 128])
        value >>= 7
    return encoded + bytes([value])


def key_value(key: str, value: str) -> KeyValue:
    return KeyValue(key=key, value=AnyValue(string_value=value))


def resource_metrics(name: str, *attributes: KeyValue) -> ResourceMetrics:
    point = NumberDataPoint(time_unix_nano=5, as_double=1.5, attributes=[key_value("topic", "t")])
    metric = Metric(name=name, gauge=Gauge(data_points=[point]))
    return ResourceMetrics(
        resource=Resource(attributes=attributes, dropped_attributes_count=3),
        scope_metrics=[ScopeMetrics(scope=InstrumentationScope(name="s"), metrics=[metric])],
        schema_url="u",
    )


def test_every_resource_gets_the_attributes_behind_its_own() -> None:
    own = key_value("own", "1")
    pushed = MetricsData(resource_metrics=[resource_metrics("a", own), resource_metrics("b")])
    expected = ExportMetricsServiceRequest.FromString(pushed.SerializeToString())
    for one in expected.resource_metrics:
        one.resource.attributes.extend(key_value(*pair) for pair in ADDED.items())
    actual = with_resource_attributes(pushed.SerializeToString(), ADDED)
    assert ExportMetricsServiceRequest.FromString(actual) == expected


def test_a_resource_that_is_not_there_is_made() -> None:
    pushed = MetricsData(resource_metrics=[ResourceMetrics(schema_url="u")])
    actual = MetricsData.FromString(with_resource_attributes(pushed.SerializeToString(), ADDED))
    (one,) = actual.resource_metrics
    assert one.schema_url == "u"
    assert [(a.key, a.value.string_value) for a in one.resource.attributes] == [*ADDED.items()]


def test_a_resource_in_two_parts_is_one() -> None:
    parts = [ResourceMetrics(resource=Resource(attributes=[key_value(k, "1")])) for k in "ab"]
    body = b"".join(part.SerializeToString() for part in parts)
    pushed = b"\x0a" + bytes([len(body)]) + body
    actual = MetricsData.FromString(with_resource_attributes(pushed, {"c": "1"}))
    (one,) = actual.resource_metrics
    assert [a.key for a in one.resource.attributes] == ["a", "b", "c"]


def test_unknown_fields_stay() -> None:
    unknown = b"\x9a\x06\x03abc" + b"\x90\x06\x05" + b"\x95\x06abcd" + b"\x91\x06abcdefgh"
    assert with_resource_attributes(unknown, ADDED) == unknown
    assert with_resource_attributes(b"", ADDED) == b""


@given(st.binary(max_size=300))
def test_bytes_of_any_kind_are_taken_or_refused(data: bytes) -> None:
    with suppress(MalformedMetrics):
        with_resource_attributes(data, ADDED)


def test_a_cut_message_is_never_taken_as_a_whole_one() -> None:
    whole = MetricsData(resource_metrics=[resource_metrics("a")]).SerializeToString()
    for end in range(1, len(whole)):
        with pytest.raises(MalformedMetrics):
            with_resource_attributes(whole[:end], ADDED)


def test_changed_messages_are_taken_or_refused() -> None:
    whole = bytearray(MetricsData(resource_metrics=[resource_metrics("a")]).SerializeToString())
    random = Random(5)
    for _ in range(2_000):
        data = bytearray(whole)
        for _ in range(random.randint(1, 4)):
            data[random.randrange(len(data))] = random.randrange(256)
        with suppress(MalformedMetrics):
            with_resource_attributes(bytes(data), ADDED)


@pytest.mark.parametrize(
    "data", [b"\x80" * 20, b"\x0a" + b"\xff" * 9 + b"\x01", b"\x00\x01", b"\x0b"]
)
def test_numbers_without_end_and_unknown_types_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedMetrics):
        with_resource_attributes(data, ADDED)


@pytest.mark.parametrize("field", [b"\x0a\x00", b"\x08\x01"], ids=["resources", "unknown fields"])
def test_what_millions_of_fields_cost_is_bounded(field: bytes) -> None:
    data = field * 4_000_000
    started = time.thread_time()
    with pytest.raises(MalformedMetrics, match=str(FIELDS_MAX)):
        with_resource_attributes(data, ADDED)
    assert time.thread_time() - started < CPU_SECONDS_MAX


def test_a_resource_in_many_large_parts_is_copied_a_few_times_only() -> None:
    part = ResourceMetrics(resource=Resource(attributes=[key_value("k", "v" * 65_536)]))
    body = part.SerializeToString() * 100
    data = b"\x0a" + _varint(len(body)) + body
    tracemalloc.start()
    with_resource_attributes(data, ADDED)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6 * len(data)
