"""The length before the elements of an array, in both encodings. Source: KIP-482."""

from __future__ import annotations

from tidelog_node.wire.primitives import INT32, write_uvarint


def array_length(count: int, *, is_flexible: bool) -> bytes:
    """Return the bytes before ``count`` elements; ``is_flexible``: of a flexible version."""
    if not is_flexible:
        return INT32.pack(count)
    encoded = bytearray()
    write_uvarint(encoded, count + 1)
    return bytes(encoded)
