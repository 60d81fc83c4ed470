"""The attributes of a client are in what it pushed; what is no message of OpenTelemetry's is refused."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Mapping
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
    MetricsTooLarge,
    with_resource_attributes,
)

ADDED = {"client_id": "c", "principal": "User:ü" + "x" * 200}
CPU_SECONDS_MAX = 2.0
SIZE_BYTES_MAX = 128 * 1024 * 1024


def added_to(metrics: bytes, attributes: Mapping[str, str]) -> bytes:
    return with_resource_attributes(metrics, attributes, size_bytes_max=SIZE_BYTES_MAX)


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
    actual = added_to(pushed.SerializeToString(), ADDED)
    assert ExportMetricsServiceRequest.FromString(actual) == expected


def test_a_client_cannot_pose_as_another_one() -> None:
    own = (key_value("principal", "User:admin"), key_value("own", "1"), KeyValue(key="client_id"))
    pushed = MetricsData(resource_metrics=[resource_metrics("a", *own)])
    # Protocol Buffers takes the last of two keys, and merges two resources.
    twice = b"\x0a\x01x" + key_value("principal", "User:admin").SerializeToString()
    behind = b"\x0a" + _varint(len(twice)) + twice
    resource = pushed.resource_metrics[0].SerializeToString()
    resource += b"\x0a" + _varint(len(behind)) + behind
    actual = added_to(b"\x0a" + _varint(len(resource)) + resource, ADDED)
    (one,) = MetricsData.FromString(actual).resource_metrics
    found = [(each.key, each.value.string_value) for each in one.resource.attributes]
    assert found == [("own", "1"), *ADDED.items()]
    assert one.resource.dropped_attributes_count == 3


def test_attributes_without_end_are_refused_too() -> None:
    resource = b"\x0a\x00" * (FIELDS_MAX + 1)  # attributes of two bytes
    content = b"\x0a" + _varint(len(resource)) + resource
    with pytest.raises(MalformedMetrics, match="more than 50000"):
        added_to(b"\x0a" + _varint(len(content)) + content, ADDED)


def test_a_resource_that_is_not_there_is_made() -> None:
    pushed = MetricsData(resource_metrics=[ResourceMetrics(schema_url="u")])
    actual = MetricsData.FromString(added_to(pushed.SerializeToString(), ADDED))
    (one,) = actual.resource_metrics
    assert one.schema_url == "u"
    assert [(a.key, a.value.string_value) for a in one.resource.attributes] == [*ADDED.items()]


def test_a_resource_in_two_parts_is_one() -> None:
    parts = [ResourceMetrics(resource=Resource(attributes=[key_value(k, "1")])) for k in "ab"]
    body = b"".join(part.SerializeToString() for part in parts)
    pushed = b"\x0a" + bytes([len(body)]) + body
    actual = MetricsData.FromString(added_to(pushed, {"c": "1"}))
    (one,) = actual.resource_metrics
    assert [a.key for a in one.resource.attributes] == ["a", "b", "c"]


def test_unknown_fields_stay() -> None:
    unknown = b"\x9a\x06\x03abc" + b"\x90\x06\x05" + b"\x95\x06abcd" + b"\x91\x06abcdefgh"
    assert added_to(unknown, ADDED) == unknown
    assert added_to(b"", ADDED) == b""


@given(st.binary(max_size=300))
def test_bytes_of_any_kind_are_taken_or_refused(data: bytes) -> None:
    with suppress(MalformedMetrics):
        added_to(data, ADDED)


def test_a_cut_message_is_never_taken_as_a_whole_one() -> None:
    whole = MetricsData(resource_metrics=[resource_metrics("a")]).SerializeToString()
    for end in range(1, len(whole)):
        with pytest.raises(MalformedMetrics):
            added_to(whole[:end], ADDED)


def test_changed_messages_are_taken_or_refused() -> None:
    whole = bytearray(MetricsData(resource_metrics=[resource_metrics("a")]).SerializeToString())
    random = Random(5)
    for _ in range(2_000):
        data = bytearray(whole)
        for _ in range(random.randint(1, 4)):
            data[random.randrange(len(data))] = random.randrange(256)
        with suppress(MalformedMetrics):
            added_to(bytes(data), ADDED)


@pytest.mark.parametrize(
    "data", [b"\x80" * 20, b"\x0a" + b"\xff" * 9 + b"\x01", b"\x00\x01", b"\x0b"]
)
def test_numbers_without_end_and_unknown_types_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedMetrics):
        added_to(data, ADDED)


@pytest.mark.parametrize("field", [b"\x0a\x00", b"\x08\x01"], ids=["resources", "unknown fields"])
def test_what_millions_of_fields_cost_is_bounded(field: bytes) -> None:
    data = field * 4_000_000
    started = time.thread_time()
    with pytest.raises(MalformedMetrics, match=str(FIELDS_MAX)):
        added_to(data, ADDED)
    assert time.thread_time() - started < CPU_SECONDS_MAX


def test_a_resource_in_many_large_parts_is_copied_a_few_times_only() -> None:
    part = ResourceMetrics(resource=Resource(attributes=[key_value("k", "v" * 65_536)]))
    body = part.SerializeToString() * 100
    data = b"\x0a" + _varint(len(body)) + body
    tracemalloc.start()
    added_to(data, ADDED)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6 * len(data)


def test_many_small_resources_do_not_grow_without_bound() -> None:
    """Each has two bytes, and would get all attributes of the client."""
    size_bytes_max = 1_000_000
    data = b"\x0a\x00" * (FIELDS_MAX - 1)
    tracemalloc.start()
    with pytest.raises(MetricsTooLarge, match=str(size_bytes_max)):
        with_resource_attributes(data, ADDED, size_bytes_max=size_bytes_max)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * size_bytes_max
