"""Adds to metrics in OpenTelemetry's format who pushed them, without a parser of all of it.

Clients push ``MetricsData``, which is on the wire what a receiver takes, ``ExportMetricsService-
Request``::

    MetricsData { repeated ResourceMetrics resource_metrics = 1; }
    ResourceMetrics { Resource resource = 1; repeated ScopeMetrics scope_metrics = 2; ... }
    Resource { repeated KeyValue attributes = 1; ... }
    KeyValue { string key = 1; AnyValue value = 2; }
    AnyValue { string string_value = 1; ... }

The fields of these messages are walked, but for values. The attributes are put behind those of the
client, without any of the same names: a client may not pose as another one. Fields that are not
known are kept.

Source: opentelemetry/proto/metrics/v1/metrics.proto, and Protocol Buffers' encoding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tidelog_core.errors import ErrorCode, TidelogError

FIELDS_MAX = 50_000  # that are walked; Kafka's Java client needs about ten for a metric
_FIRST_FIELD = 1
_VARINT, _BYTES = 0, 2  # wire types
_FIXED_SIZES = {1: 8, 5: 4}  # by wire type
_WIRE_TYPE_MASK = 7
_VARINT_BYTES_MAX = 10
_CONTINUES = 0x80


class MalformedMetrics(TidelogError):
    """A client's metrics are not in OpenTelemetry's format."""

    code = ErrorCode.invalid_record


class MetricsTooLarge(TidelogError):
    """A client's metrics are larger than allowed, with the attributes."""

    code = ErrorCode.telemetry_too_large


def with_resource_attributes(
    metrics: bytes, attributes: Mapping[str, str], *, size_bytes_max: int
) -> bytes:
    """Return the metrics with the attributes added to each resource.

    A resource of two bytes may grow to thousands, so the result is bounded too. Raises
    ``MalformedMetrics`` and ``MetricsTooLarge``.
    """
    added = b"".join(_field(_FIRST_FIELD, _key_value(*pair)) for pair in attributes.items())
    names = frozenset(name.encode() for name in attributes)
    walk = _Walk()
    parts: list[bytes | memoryview] = []
    left_bytes = size_bytes_max
    for number, whole, content in walk.fields(memoryview(metrics)):
        part: bytes | memoryview = whole
        if number == _FIRST_FIELD and content is not None:
            part = _field(_FIRST_FIELD, _with_attributes(walk, content, added, names))
        left_bytes -= len(part)
        if left_bytes < 0:
            raise MetricsTooLarge(f"the metrics grow to more than {size_bytes_max} bytes")
        parts.append(part)
    return b"".join(parts)


def _with_attributes(
    walk: _Walk, resource_metrics: memoryview, added: bytes, names: frozenset[bytes]
) -> bytes:
    resource: list[bytes | memoryview] = []
    others: list[memoryview] = []
    for number, whole, content in walk.fields(resource_metrics):
        if number == _FIRST_FIELD and content is not None:
            # One that comes twice is merged, by Protocol Buffers' rules.
            resource += _without(walk, content, names)
        else:
            others.append(whole)
    return _field(_FIRST_FIELD, b"".join((*resource, added))) + b"".join(others)


def _without(walk: _Walk, resource: memoryview, names: frozenset[bytes]) -> Iterator[memoryview]:
    """Yield the fields of a resource but the attributes of these names."""
    for number, whole, content in walk.fields(resource):
        if number == _FIRST_FIELD and content is not None:
            keys = [
                bytes(key)
                for place, _, key in walk.fields(content)
                if place == _FIRST_FIELD and key is not None
            ]
            if keys and keys[-1] in names:  # The last one counts.
                continue
        yield whole


class _Walk:
    """Walks the fields of messages, a bounded number of them in all."""

    def __init__(self) -> None:
        self._left = FIELDS_MAX

    def fields(self, message: memoryview) -> Iterator[tuple[int, memoryview, memoryview | None]]:
        """Yield each field's number, all of its bytes, and its content if that has a length."""
        position = 0
        while position < len(message):
            self._left -= 1
            if self._left < 0:
                raise MalformedMetrics(f"the metrics have more than {FIELDS_MAX} fields")
            start = position
            tag, position = _read_varint(message, position)
            content: memoryview | None = None
            wire_type = tag & _WIRE_TYPE_MASK
            if wire_type == _BYTES:
                size_bytes, position = _read_varint(message, position)
                content = message[position : position + size_bytes]
                position += size_bytes
            elif wire_type == _VARINT:
                _, position = _read_varint(message, position)
            elif wire_type in _FIXED_SIZES:
                position += _FIXED_SIZES[wire_type]
            else:
                raise MalformedMetrics(f"the metrics have a field of wire type {wire_type}")
            if position > len(message) or tag >> 3 == 0:
                raise MalformedMetrics("the metrics are cut, or no Protocol Buffers message")
            yield tag >> 3, message[start:position], content


def _read_varint(message: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(message[position : position + _VARINT_BYTES_MAX]):
        value |= (byte & ~_CONTINUES) << (7 * index)
        if not byte & _CONTINUES:
            return value, position + index + 1
    raise MalformedMetrics("the metrics are cut, or no Protocol Buffers message")


def _key_value(key: str, value: str) -> bytes:
    any_value = _field(_FIRST_FIELD, value.encode())
    return _field(_FIRST_FIELD, key.encode()) + _field(2, any_value)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= _CONTINUES:
        encoded.append(value & ~_CONTINUES & 0xFF | _CONTINUES)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
