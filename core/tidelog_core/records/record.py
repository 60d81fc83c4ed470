"""One record, as producers send it and consumers receive it."""

from __future__ import annotations

from typing import NamedTuple

from tidelog_core.records.varint import VARINT_SIZE_BYTES_MAX, VARLONG_SIZE_BYTES_MAX

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """A key, a value and headers at an offset. ``None`` is Kafka's null.

    A named tuple because it is by far the cheapest immutable value to make, and
    clients make one for every record. Header keys that are not UTF-8 survive a
    round trip as surrogate escapes.
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def record_size_bytes_max(key: bytes | None, value: bytes | None, headers: Headers = ()) -> int:
    """Return the largest size of a record of these parts in an uncompressed batch."""
    size = 1 + VARLONG_SIZE_BYTES_MAX + 5 * VARINT_SIZE_BYTES_MAX
    if key is not None:
        size += len(key)
    if value is not None:
        size += len(value)
    for name, content in headers:
        size += 2 * VARINT_SIZE_BYTES_MAX + 4 * len(name)
        if content is not None:
            size += len(content)
    return size
